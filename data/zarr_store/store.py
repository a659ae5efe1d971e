"""Replay-buffer stores, `data/<arrays>` and `meta/episode_ends`, opened without trusting them."""

import math
import zipfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nsde_policy.errors import DemoError, MissingDependencyError, import_optional, wrap_read_errors
from nsde_policy.files import MAX_JSON_BYTES, open_regular, parse_json

from ..source import Source
from ..types import ActionLimits, Ints, Numbers, check_rate
from .arrays import StoredArray

if TYPE_CHECKING:
    from zarr.abc.store import Store as ZarrStore

ROOT_KEYS = (".zgroup", "zarr.json")
"""Files that mark the root group of a store, formats 2 and 3."""
RECORDING = "nsde_policy_recording"
"""Root attribute of stores written by `DemoWriter`; frames behind the last episode end are not committed."""
ENDS = "meta/episode_ends"
"""Array with one past the last frame of each episode."""
OTHER_FORMATS = (
    "expected zarr, LeRobot (meta/info.json), HDF5 (.hdf5), Minari, npz or csv files, or ROS 2 bags; "
    "docs/data.md describes them"
)
"""What else a path that no reader recognises could hold."""
MAX_DEPTH = 8
"""Most levels of folders in which arrays are found; a link may lead back to a folder that contains it."""


class Store(Source):
    """An open store, a directory or a zip, zarr format 2 or 3; raises `DemoError` for anything else.

    Files are named by their key, such as data/state/.zarray.
    """

    def __init__(self, path: Path, *, accept_omitted_chunks: bool = False) -> None:
        self.path = path
        self._accept_omitted = accept_omitted_chunks
        if not path.exists():
            raise DemoError(f"{path} does not exist; expected a zarr directory or a zip of one")
        self._root: Path | zipfile.Path = path
        if not path.is_dir():
            open_regular(path, error=DemoError).close()
            if path.suffix != ".zip" and not zipfile.is_zipfile(path):
                raise DemoError(f"{path} is neither a zarr directory nor a zip of one", OTHER_FORMATS)
            with wrap_read_errors(f"{path} is neither a zarr directory nor an undamaged zip of one"):
                archive = zipfile.ZipFile(path)
                roots = [name for name in archive.namelist() if name.rpartition("/")[2] in ROOT_KEYS]
                key = min(roots, key=lambda name: name.count("/"), default="")  # closest to the top
                self._root = zipfile.Path(archive, key[: key.rfind("/") + 1])
        if not any(self.size(key) for key in ROOT_KEYS):
            self.close()
            raise DemoError(
                f"{path} is not a zarr group: it holds neither .zgroup nor zarr.json", OTHER_FORMATS
            )

    @cached_property
    def format(self) -> str:  # type: ignore[override]
        """Version of the format and kind of the container."""
        container = "directory" if isinstance(self._root, Path) else "zip"
        return f"zarr format {self.zarr_format}, {container}"

    @cached_property
    def rate_hz(self) -> float | None:  # type: ignore[override]
        """Frames per second that the attributes record."""
        rate_hz = self.attributes.get("rate_hz")
        check_rate(rate_hz)
        return rate_hz

    @cached_property
    def act_limits(self) -> ActionLimits | None:  # type: ignore[override]
        """Limits in the attribute `action_space`."""
        return parse_action_space(self)

    @cached_property
    def zarr_store(self) -> "ZarrStore":
        """The files as zarr reads them; closed with the last array that reads them."""
        from zarr.storage import LocalStore, ZipStore

        if isinstance(self._root, Path):
            return LocalStore(self.path, read_only=True)
        return ZipStore(self.path, mode="r")

    def close(self) -> None:
        """Close the zip file of the store, if it is one."""
        if isinstance(self._root, zipfile.Path):
            self._root.root.close()

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist; raise for pipes and devices."""
        file = self._root / key
        if not file.exists():
            return None
        if not file.is_file():
            raise DemoError(f"{file} is not a regular file")
        return file.stat().st_size if isinstance(file, Path) else file.root.getinfo(file.at).file_size

    def read(self, key: str, length: int) -> bytes:
        """Read the first `length` bytes of a file that `size` has found."""
        file = self._root / key
        with (
            wrap_read_errors(f"{key} cannot be read"),
            open_regular(file, error=DemoError) if isinstance(file, Path) else file.open("rb") as content,
        ):
            return content.read(length)

    def read_metadata(self, key: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file does not exist."""
        size = self.size(key)
        if size is None:
            return {}
        if size > MAX_JSON_BYTES:
            raise DemoError(f"{key} has {size} bytes, expected at most {MAX_JSON_BYTES}")
        return parse_json(self.read(key, size), name=key, error=DemoError, allow_nan=True)

    @property
    def zarr_format(self) -> int:
        """Version of the zarr format, 2 or 3."""
        return 2 if self.size(".zgroup") is not None else 3

    @property
    def attributes(self) -> dict[str, Any]:  # type: ignore[override]
        """Attributes of the root group."""
        if self.zarr_format == 2:
            return self.read_metadata(".zattrs")
        attributes = self.read_metadata("zarr.json").get("attributes", {})
        if not isinstance(attributes, dict):
            raise DemoError(f"the attributes in zarr.json are {attributes!r:.80}, expected a JSON object")
        return attributes

    def find_arrays(self) -> list[str]:
        """Return the names of all arrays below data/, readable or not."""
        return [path.removeprefix("data/") for path in self.find_paths("data")]

    def find_paths(self, folder: str) -> list[str]:
        """Return the paths of all arrays below `folder`, readable or not."""
        paths: list[str] = []
        path = self._root / folder
        folders = [child.name for child in path.iterdir() if child.is_dir()] if path.is_dir() else []
        for name in (f"{folder}/{child}" for child in folders):
            if self._is_array(name):
                paths.append(name)
            elif name.count("/") < MAX_DEPTH:
                paths += self.find_paths(name)
        return sorted(paths)

    def open_array(self, name: str) -> StoredArray:
        """Open an array below data/."""
        return self.open_path(f"data/{name}")

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
        zarr_format: Literal[2, 3] = 2 if self.size(f"{name}/.zarray") is not None else 3
        metadata = self.read_metadata(f"{name}/{'.zarray' if zarr_format == 2 else 'zarr.json'}")
        codecs = str([metadata.get(key) for key in ("filters", "compressor", "codecs")])
        if "pickle" in codecs:
            raise DemoError(f"{name} is stored as pickles, which can run code; they are never loaded")
        if "imagecodecs_" in codecs:  # JPEG XL, in UMI's stores
            try:
                import_optional("imagecodecs.numcodecs", "umi").register_codecs(verbose=False)
            except MissingDependencyError as error:  # other arrays can be read without it
                raise DemoError(f"{name} holds compressed images: {error}") from None
        self.read_metadata(f"{name}/.zattrs")  # zarr reads it too, and trusts it
        inside = "" if isinstance(self._root, Path) else self._root.at
        with wrap_read_errors(f"the metadata of {name} is invalid"):  # unknown codecs, types, shapes
            zarray = zarr.open_array(self.zarr_store, path=inside + name, mode="r", zarr_format=zarr_format)
        if zarray.dtype.kind not in "biuf":
            raise DemoError(f"{name} holds {zarray.dtype}, expected real numbers")
        if zarray.ndim == 0 or 0 in zarray.shape[1:] or 0 in zarray.chunks:
            raise DemoError(f"{name} has shape {zarray.shape}, expected (frames, at least one column)")
        return StoredArray(name, zarray, self, accept_omitted=self._accept_omitted)

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
        if self.size(f"{name}/.zarray") is not None:
            return True
        try:
            return self.read_metadata(f"{name}/zarr.json").get("node_type") == "array"
        except DemoError:
            return True


def parse_action_space(source: Source) -> ActionLimits | None:
    """Return the limits in the attribute `action_space`, {"low": […], "high": […]}; null is no limit."""
    space = source.attributes.get("action_space")
    if space is None:
        return None
    try:
        low = tuple(-math.inf if value is None else float(value) for value in space["low"])
        high = tuple(math.inf if value is None else float(value) for value in space["high"])
        is_valid = all(a <= b and a < math.inf and b > -math.inf for a, b in zip(low, high, strict=True))
    except (KeyError, TypeError, ValueError, OverflowError):
        is_valid = False
    if not is_valid:
        raise DemoError(
            f"the attribute action_space of {source.path} is {space!r:.80}, expected lists 'low' and 'high' "
            "of as many numbers as an action has, low below high: correct it or remove it"
        )
    return low, high
