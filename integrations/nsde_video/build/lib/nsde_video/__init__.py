"""The paper's video experiment: models that predict the next frame of a video."""
