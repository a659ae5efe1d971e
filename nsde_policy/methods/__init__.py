"""Imitation-learning methods: the Neural SDE and its baselines behind one interface (`base.py`)."""
