"""Environments, registered with Gymnasium under `nsde_policy/`."""
