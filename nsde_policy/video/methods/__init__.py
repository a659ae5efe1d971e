"""Methods of video prediction, one file each."""
