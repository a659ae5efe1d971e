"""Video prediction: the next frames of a video from its last four, by the paper's method and two others."""
