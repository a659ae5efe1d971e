"""Attacks on the package, one module per target; `benchmarks/attack.py` runs them."""
