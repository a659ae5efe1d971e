"""Baselines: methods that the Neural SDE is compared with, one file or folder each."""
