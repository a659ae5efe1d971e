"""Obstacle avoidance: `geometry` (obstacles, modes), `dynamics` (lag), `drawing`, `env`, `live`."""
