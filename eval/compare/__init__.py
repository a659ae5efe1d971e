"""Comparison of trained runs on the same seeds: entries, tables and plots."""
