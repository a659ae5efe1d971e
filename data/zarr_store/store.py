"""Replay-buffer stores, `data/<arrays>` and `meta/episode_ends`, opened without trusting them."""

import json
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from nsde_policy.errors import DemoError, MissingDependencyError, import_optional, wrap_read_errors

from ..source import MAX_DEPTH, Source, parse_action_space
from ..types import ActionLimits, Ints, Numbers, check_rate
from .arrays import StoredArray
from .files import StoreFiles

RECORDING = "nsde_policy_recording"
"""Root attribute of stores written by `DemoWriter`; frames behind the last episode end are not committed."""
ENDS = "meta/episode_ends"
"""Array with one past the last frame of each episode."""


class Store(Source):
    """An open store, a directory or a zip, zarr format 2 or 3; raises `DemoError` for anything else."""

    def __init__(self, path: Path) -> None:
        self.path, self._files = path, StoreFiles(path)
        self.zarr_format = 2 if self._files.size(".zgroup") is not None else 3
        self.format = f"zarr format {self.zarr_format}, {self._files.container}"

    @cached_property
    def rate_hz(self) -> float | None:  # type: ignore[override]
        """Frames per second that the attributes record."""
        rate_hz = self.attributes.get("rate_hz")
        check_rate(rate_hz)
        return rate_hz

    @cached_property
    def act_limits(self) -> ActionLimits | None:  # type: ignore[override]
        """Limits in the attribute `action_space`."""
        return parse_action_space(self.attributes.get("action_space"), self.path)

    def close(self) -> None:
        """Close the zip file of the store, if it is one."""
        self._files.close()

    @property
    def attributes(self) -> dict[str, Any]:  # type: ignore[override]
        """Attributes of the root group."""
        if self.zarr_format == 2:
            return self._files.read_json(".zattrs")
        attributes = self._files.read_json("zarr.json").get("attributes", {})
        if not isinstance(attributes, dict):
            raise DemoError(f"the attributes in zarr.json are {attributes!r:.80}, expected a JSON object")
        return attributes

    def find_arrays(self) -> list[str]:
        """Return the names of all arrays below data/, readable or not."""
        return [path.removeprefix("data/") for path in self.find_paths("data")]

    def find_paths(self, folder: str) -> list[str]:
        """Return the paths of all arrays below `folder`, readable or not."""
        paths: list[str] = []
        for name in self._files.list_folders(folder):
            if self._is_array(name):
                paths.append(name)
            elif name.count("/") < MAX_DEPTH:
                paths += self.find_paths(name)
        return sorted(paths)

    def open_array(self, name: str) -> StoredArray:
        """Open an array below data/; its columns have the names in the root attribute `columns`."""
        array, columns = self.open_path(f"data/{name}"), self.attributes.get("columns", {})
        names = columns.get(name, []) if isinstance(columns, dict) else columns
        is_list = isinstance(names, list) and all(isinstance(column, str) for column in names)
        if not is_list or len(names) not in (0, array.width):
            raise DemoError(
                f"the attribute 'columns' of the store has {json.dumps(names):.80} for {array.name}, "
                f"expected a list of {array.width} names"
            )
        array.columns = tuple(names)
        return array

    def read_info(self) -> dict[str, Numbers]:
        """Read the arrays of numbers below meta/ other than episode ends, such as meta/episode_seed."""
        info = {}
        for path in self.find_paths("meta"):
            with suppress(DemoError):
                info[path.removeprefix("meta/")] = self.open_path(path).read_checked()
        return {name: values for name, values in info.items() if f"meta/{name}" != ENDS}

    def open_path(self, name: str) -> StoredArray:
        """Open the array at the path `name`, such as data/state.

        Raises:
            DemoError: If it is missing, holds pickles or no real numbers, or has an empty shape.
        """
        import zarr

        if not self._is_array(name):
            raise DemoError(self.describe_missing(name))
        zarr_format: Literal[2, 3] = 2 if self._files.size(f"{name}/.zarray") is not None else 3
        metadata = self._files.read_json(f"{name}/{'.zarray' if zarr_format == 2 else 'zarr.json'}")
        codecs = str([metadata.get(key) for key in ("filters", "compressor", "codecs")])
        if "pickle" in codecs:
            raise DemoError(f"{name} is stored as pickles, which can run code; they are never loaded")
        if "imagecodecs_" in codecs:  # JPEG XL, in UMI's stores
            try:
                import_optional("imagecodecs.numcodecs", "umi").register_codecs(verbose=False)
            except MissingDependencyError as error:  # other arrays can be read without it
                raise DemoError(f"{name} holds compressed images: {error}") from None
        self._files.read_json(f"{name}/.zattrs")  # zarr reads it too, and trusts it
        with wrap_read_errors(f"the metadata of {name} is invalid"):  # unknown codecs, types, shapes
            zarray = zarr.open_array(
                self._files.zarr_store, path=self._files.root + name, mode="r", zarr_format=zarr_format
            )
            dict(zarray.attrs)  # zarr does not check that they are an object
        if zarray.dtype.kind not in "biuf":
            raise DemoError(f"{name} holds {zarray.dtype}, expected real numbers")
        if zarray.ndim == 0 or 0 in zarray.shape[1:] or 0 in zarray.chunks:
            raise DemoError(f"{name} has shape {zarray.shape}, expected (frames, at least one column)")
        return StoredArray(name, zarray, self._files, accept_omitted=self.accept_omitted_chunks)

    def read_ends(self) -> Ints:
        """Read meta/episode_ends."""
        if not self._is_array(ENDS):
            others = ", ".join(self.find_paths("meta")) or "nothing"
            raise DemoError(
                f"no array {ENDS!r} in {self.path}; meta holds: {others}; write one past the last frame of "
                "each episode there, such as [100, 250] for episodes of 100 and 150 frames"
            )
        ends = self.open_path(ENDS).read_checked()
        if not ends.size:
            raise DemoError(f"{ENDS} is empty: {self.path} holds 0 episodes")
        return ends

    @property
    def ignores_rest(self) -> bool:  # type: ignore[override]
        """Whether `DemoWriter` made the store, which may be growing or interrupted."""
        return RECORDING in self.attributes

    def _is_array(self, name: str) -> bool:
        """Return whether a folder is an array; one with damaged metadata is, so that the damage is named."""
        if self._files.size(f"{name}/.zarray") is not None:
            return True
        try:
            return self._files.read_json(f"{name}/zarr.json").get("node_type") == "array"
        except DemoError:
            return True
