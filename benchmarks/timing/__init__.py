"""Timing cases of benchmarks/speed.py, one function each."""
