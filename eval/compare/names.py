"""Names of runs in a comparison: their method, and what their directories say beyond it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nsde_policy.assets import get_shipped_name
from nsde_policy.errors import ComparisonError
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunRecord


def choose_names(records: Mapping[Path, RunRecord]) -> dict[Path, str]:
    """Name each run; runs that differ only in seed and number of demonstrations get the same name.

    Runs on as many, but other, demonstrations have different names.
    """
    names: dict[Path, str] = {}
    settings: dict[str, RunConfig] = {}
    data: dict[tuple[str, int], str] = {}
    owners: dict[tuple[str, int, int], Path] = {}
    for path, record in records.items():
        # how many demonstrations, and what training measures on them, makes no other name
        chosen = replace(record.config.demos, episodes=0, first_action=(), accept_omitted_chunks=False)
        config, demos = replace(record.config, demos=chosen), record.demos
        alike = (known for known, other in settings.items() if other == config)
        found = (n for n in alike if data.get((n, demos.episodes), demos.fingerprint) == demos.fingerprint)
        name = next(found, None)
        if name is None:
            name = ", ".join(filter(None, [record.config.method, _find_detail(path, record)]))
            name = f"{name} ({path})" if name in settings else name
            settings[name] = config
        names[path] = name
        data[name, demos.episodes] = demos.fingerprint
        other = owners.setdefault((name, demos.episodes, record.seed), path)
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
