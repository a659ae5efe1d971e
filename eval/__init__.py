"""Evaluation: rollouts, scores with intervals, pictures and reports."""
