"""Scores of predicted videos: pixels, motion, positions, contacts and distances between sets of videos."""
