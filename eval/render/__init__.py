"""Pictures and videos of episodes."""
