"""Inputs that `benchmarks/attack.py` attacks, and the damage that it does to them."""
