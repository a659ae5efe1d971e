"""From a run directory to actions: policies, loading of models, threads of torch."""

from nsde_policy.deprecated import find_moved_modules

find_moved_modules()
