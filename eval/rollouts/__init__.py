"""Roll out policies in environments: episodes, their processes, scores and disturbances."""
