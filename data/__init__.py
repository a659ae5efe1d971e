"""Demonstrations: zarr stores to episodes, and episodes to what a model trains on."""
