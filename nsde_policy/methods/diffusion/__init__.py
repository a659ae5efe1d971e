"""Diffusion Policy (Chi et al. 2023)."""
