"""Imitation-learning methods: one file or folder per method, one interface (`base.py`)."""
