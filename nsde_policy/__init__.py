"""Neural SDE policies: imitation learning with one small network call per action.

Importing this package costs nothing: torch, gymnasium and pygame are imported by the modules
that need them.
"""

from pathlib import Path

__version__ = "0.1.0"

# pyproject.toml installs envs/, data/ and eval/ as sub-packages of this one; in a
# checkout they stand beside this folder, so let the checkout find them there.
_here = Path(__file__).parent
if __name__ == "nsde_policy" and not (_here / "envs").is_dir():
    __path__.append(str(_here.parent))
