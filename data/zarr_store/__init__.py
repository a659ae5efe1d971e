"""Replay-buffer zarr stores: reading, checking, recording and extracting them."""
