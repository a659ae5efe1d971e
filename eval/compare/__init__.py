"""Comparison of trained runs: play on the same starts, tables, plots."""
