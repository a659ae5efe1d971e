"""Conversion of demonstrations of any format to a zarr store, episode by episode."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nsde_policy.data.edit import EditedArray
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.readers import load_demonstrations
from nsde_policy.data.readers.registry import load_from
from nsde_policy.data.roles import is_camera
from nsde_policy.data.source import Progress, Source, SourceArray, get_short_name
from nsde_policy.data.zarr_store.store import RECORDING
from nsde_policy.data.zarr_store.writer import MADE_WITH, DemoWriter, LazyRows
from nsde_policy.errors import DemoError


def write_zarr(
    source: Source,
    out: Path,
    *,
    obs_keys: Sequence[str] = ("state",),
    act_key: str = "action",
    rate_hz: float | None = None,
    progress: Progress = iter,
) -> int:
    """Write demonstrations to a zarr store and compare what was written; returns the number of episodes.

    Observations become `state` and actions `action`; all other arrays keep the last part of their name. An
    interrupted conversion goes on behind its last whole episode.

    Raises:
        DemoError: If the original is damaged, or `out` holds anything but the beginning of this conversion.
    """
    demos = load_from(source, obs_keys=obs_keys, act_key=act_key, rate_hz=rate_hz)
    used = {name for key in (*obs_keys, act_key) for name in source.resolve(key)}
    others = _name_arrays(source, used)
    info = {
        re.sub(r"\W+", "_", name.removeprefix("episode_")): values
        for name, values in source.read_info().items()
        if values.shape == (len(demos),)
    }
    attributes = dict(source.attributes)
    made_with = {**attributes.pop(MADE_WITH, {}), "converted": demos.fingerprint}
    for name in (RECORDING, "rate_hz", "sessions"):
        attributes.pop(name, None)
    attributes["columns"] = {"state": demos.obs_names, "action": demos.act_names}
    with DemoWriter(
        out,
        resume=True,
        rate_hz=demos.rate_hz,
        angles=demos.angles,
        act_angles=demos.act_angles,
        provenance={"converted_from": str(source.path), "format": source.format},
        made_with=made_with,
        attributes=attributes,
    ) as writer:
        for k in progress(range(len(writer), len(demos))):
            span = np.array([[demos.starts[k], demos.episode_ends[k]]])
            extras: dict[str, LazyRows] = {}
            for name, array in others.items():
                rows = EditedArray(array, span)
                extras[name] = LazyFrames(rows, len(rows)) if is_camera(array.shape) else rows
            writer.append(demos[k], extras, {name: values[k] for name, values in info.items()})
    written = load_demonstrations(out)
    if written.fingerprint != demos.fingerprint:
        raise DemoError(f"{out} does not hold the numbers of {source.path}: delete it and convert again")
    return len(written)


def _name_arrays(source: Source, used: set[str]) -> dict[str, SourceArray]:
    """Open the arrays that are neither observation nor action, under names that a store can have."""
    names = [name for name in source.find_arrays() if name not in used]
    if not names:
        return {}
    _, arrays = source.open_episodes(names)
    found: dict[str, SourceArray] = {}
    for name, array in zip(names, arrays, strict=True):
        short = re.sub(r"\W+", "_", get_short_name(name))
        if short in found or short in ("state", "action"):
            short = re.sub(r"\W+", "_", name)
        found[short] = array
    return found
