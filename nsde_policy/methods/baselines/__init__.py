"""Baselines: methods that the Neural SDE is compared with, one file each."""
