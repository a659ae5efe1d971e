"""Score policies on recorded episodes, without an environment."""
