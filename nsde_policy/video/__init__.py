"""The paper's video experiment: models that predict the next frame of a video.

settings.py      settings and presets
videos.py        videos of a store, and training windows of them
uvit.py          the network
next_frame.py    what all models share: state, noise, unrolled training, generation
neural_sde.py    the Neural SDE
baselines.py     Flow Matching and PFI
video_run.py     training into a run directory, and loading
frame_scores.py  PSNR, SSIM and motion of predicted frames
video_stores.py  video files as stores
command.py       `nsde-policy video`
"""
