"""Behaviour Transformer (Shafiullah et al. 2022)."""
