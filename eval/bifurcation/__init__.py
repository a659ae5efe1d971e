"""The 2-D bifurcation (section "2D Branching Trajectories"): data, methods, scores, figures."""
