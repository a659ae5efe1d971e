"""Video prediction: the next frames of a video from its last four, with the method of the paper and two others."""
