"""Policies at run time: sizes, history, observations, calibration and planning."""
