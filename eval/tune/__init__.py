"""Search for the best settings: spaces of settings, trials in other processes, and the search itself."""
