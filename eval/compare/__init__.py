"""Comparison of trained runs on the same starts: entries, tables and plots."""
