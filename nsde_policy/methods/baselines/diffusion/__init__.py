"""Diffusion Policy (Chi et al. 2023)."""

from .model import Diffusion as Diffusion
