"""Search for the best settings: what may change, and the trials."""
