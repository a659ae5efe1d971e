"""Video prediction in keypoints, where motion is piecewise linear and a Neural SDE can be stepped finely."""
