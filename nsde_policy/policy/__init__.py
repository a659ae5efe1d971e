"""From a run directory to actions: policies, loading of models, threads of torch."""
