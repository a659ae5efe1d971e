"""What every planner and control loop shares: sizes, plans, history, observations, calibration; no torch."""
