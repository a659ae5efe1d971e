"""Diffusion Policy (Chi et al. 2023)."""

from nsde_policy.methods.diffusion.model import Diffusion as Diffusion
