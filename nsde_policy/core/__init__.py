"""The mathematics of the paper: SDEs, training targets, losses, networks and the state layout."""
