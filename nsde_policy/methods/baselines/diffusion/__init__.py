"""Diffusion Policy (Chi et al. 2023)."""

from nsde_policy.methods.baselines.diffusion.model import Diffusion as Diffusion
