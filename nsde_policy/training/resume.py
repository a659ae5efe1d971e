"""Whether a directory may be trained into: it is empty, or holds the training that is to be resumed."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nsde_policy.errors import CheckpointError
from nsde_policy.files import PARTIAL, find_difference, read_json, replace_file
from nsde_policy.run_directory import ENCODER_FOLDER, SELECTION_FOLDER, RunDirectory

logger = logging.getLogger(__name__)


class Record(Protocol):
    """What a run directory says about its training."""

    @property
    def config(self) -> Any:
        """Settings of the training."""

    def same_training(self, other: Any) -> bool:
        """Return whether `other` can resume this training."""


def check_files(run: RunDirectory, *, resume: bool) -> None:
    """Raise `CheckpointError` if a directory holds other files, or a run that is not to be resumed.

    Log that there is nothing to resume.
    """
    files = [file for file in run.path.iterdir() if file.suffix != PARTIAL] if run.path.exists() else []
    trained_first = {SELECTION_FOLDER, ENCODER_FOLDER}
    if not run.config.exists() and {file.name for file in files} - trained_first:
        raise CheckpointError(f"{run.path} holds files that are not a run; choose another --out")
    if files and not resume:
        raise CheckpointError(
            f"{run.path} already holds a run; continue with --resume or choose another --out"
        )
    if resume and not any(run.path.rglob(run.training.name)):
        logger.info("%s holds no checkpoint to resume: training starts from the beginning", run.path)


def check_record(run: RunDirectory, recorded: Record | None, record: Record) -> None:
    """Raise `CheckpointError` if a directory holds another training than the one to resume."""
    if recorded is not None and not recorded.same_training(record):
        raise _build_refusal(run.path, recorded.config.to_dict(), record.config.to_dict())


def record_or_check_settings(
    run: RunDirectory, part: RunDirectory, settings: Mapping[str, Any], *, resume: bool
) -> None:
    """Write the settings of a part that is trained before the policy, in its own folder.

    To resume, raise `CheckpointError` if the run was begun with others, or without this part.
    """
    settings = json.loads(json.dumps(settings))
    is_begun = resume and (part.config.exists() or run.config.exists())
    if not is_begun:
        replace_file(part.config, json.dumps(settings, indent=2).encode())
        return
    recorded = read_json(part.config, error=CheckpointError) if part.config.exists() else {}
    if recorded != settings:
        raise _build_refusal(run.path, recorded, settings)


def _build_refusal(path: Path, recorded: object, settings: object) -> CheckpointError:
    """Return the error about a directory that was trained with `recorded` settings instead of others."""
    both = (json.loads(json.dumps(value)) for value in (recorded, settings))
    change = find_difference(*both).removeprefix("config.")
    return CheckpointError(
        f"{path} was trained with other settings, another seed or other demonstrations"
        f"{change and f' ({change})'}; resume with the same ones or choose another --out"
    )
