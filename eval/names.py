"""Names of runs in tables."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunRecord


def choose_names(records: Mapping[Path, RunRecord]) -> dict[Path, str]:
    """Name each run; runs that differ only in their training seed get the same name, and are pooled."""
    names: dict[Path, str] = {}
    settings: dict[str, tuple[str, RunConfig]] = {}
    owners: dict[tuple[str, int], Path] = {}
    for path, record in records.items():
        # What training measures on the demonstrations depends on the episodes that the seed holds out.
        demos = replace(record.config.demos, first_action=(), accept_omitted_chunks=False)
        own = record.demos.fingerprint, replace(record.config, demos=demos)
        name = next((name for name, others in settings.items() if others == own), None)
        if name is None:
            name = ", ".join(filter(None, [record.config.method, _find_detail(path, record)]))
            name = f"{name} ({path})" if name in settings else name
            settings[name] = own
        names[path] = name
        other = owners.setdefault((name, record.seed), path)
        if other != path:
            raise ComparisonError(
                f"{other} and {path} cannot be told apart: same settings, training seed and demonstrations; "
                "leave one out"
            )
    return names


def _find_detail(path: Path, record: RunRecord) -> str:
    """Return what is special about a run: the preset in a directory TASK-METHOD-PRESET-SEED, or its name.

    It is empty for the preset `default`, and for the policies of this package.
    """
    if get_shipped_name(path) is not None:
        return ""
    folder = re.sub(rf"[-_]{record.seed}$", "", path.resolve().name)
    folder = re.sub(rf"^(.*-)?{re.escape(record.config.method)}-", "", folder)
    return "" if folder in ("default", record.config.method) else folder
