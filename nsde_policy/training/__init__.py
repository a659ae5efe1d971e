"""Training: datasets, the optimisation loop, run directories and progress output."""
