"""The 2-D bifurcation experiment (section "2D Branching Trajectories"): data, methods, scores, figures."""
