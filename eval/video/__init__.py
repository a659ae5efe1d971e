"""Scores of predicted videos: pixels, motion and distances between sets of videos."""
