"""Functions that make the tables of docs/results from benchmarks/results."""
