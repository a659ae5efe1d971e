"""`nsde-policy data`: inspect, check, view, convert, edit and download demonstrations."""

import json
import logging
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from nsde_policy.bounds import NonNegative
from nsde_policy.errors import ConfigError

from .shared import options
from .shared.page import PageFlags

if TYPE_CHECKING:
    from nsde_policy.data.source import Source
    from nsde_policy.data.summary import StoreSummary

logger = logging.getLogger(__name__)

StorePathFlag = Annotated[
    options.DemosPath,
    Positional,
    arg(help="Demonstrations: a file or folder of any format that training reads."),
]
ObsKeysFlag = Annotated[tuple[str, ...], arg(help="Arrays that make up an observation, side by side.")]
ActKeyFlag = Annotated[str, arg(help="Array that holds the actions.")]
OutFlag = Annotated[Path, Positional, arg(help="New folder; it appears when it is complete.")]


@dataclass(frozen=True)
class StoreFlags(options.Command):
    """Flags of the commands that read any store of demonstrations."""

    path: StorePathFlag
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False


@dataclass(frozen=True)
class DataInfo(StoreFlags):
    """Print episodes, shapes, ranges, rates and provenance of a store of demonstrations."""

    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Print the summary of the store."""
        from nsde_policy.data.summary import summarize
        from nsde_policy.tasks import find_task

        summary = summarize(self.path, accept_omitted_chunks=self.accept_omitted_chunks)
        task = find_task(self.path)
        if self.json:
            print(json.dumps({"task": task.name, **asdict(summary)}, indent=2))
            return
        print(summary.to_text())
        if summary.observations and summary.actions:
            print(f"\n{task.reason}")
            _print_training(summary, has_env=task.env_id is not None)


def _print_training(summary: "StoreSummary", *, has_env: bool) -> None:
    """Print the command that trains; without an environment, held-out episodes judge the policy."""
    from nsde_policy.data.split import advise_validation, suggest_fraction

    command = f"nsde-policy train --demos {shlex.quote(summary.path)}{summary.train_flags}"
    if has_env:
        print(f"train: {command}")
        return
    if not summary.rate_hz:
        command += " --rate HZ"
    if fraction := suggest_fraction(summary.episodes):
        command += f" --validation {fraction:g}"
    else:
        print(f"for a verdict on unseen episodes, {advise_validation(summary.episodes)}")
    print(f"train: {command}")
    if summary.videos:
        print(f"with cameras: {command} --images {' '.join(summary.videos)}")


@dataclass(frozen=True)
class DataCheck(StoreFlags):
    """Read every chunk of every array, images included, and list all problems."""

    def run(self) -> None:
        """Print the problems; raise `DemoError` if there are any."""
        from tqdm import tqdm

        from nsde_policy.data.check import check_store
        from nsde_policy.data.summary import summarize
        from nsde_policy.errors import DemoError

        problems = check_store(
            self.path,
            accept_omitted_chunks=self.accept_omitted_chunks,
            progress=lambda chunks: tqdm(chunks, desc="reading", unit="chunk", leave=False, disable=None),
        )
        if problems:
            print("\n".join(problems))
            count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise DemoError(f"{self.path} has {count}, listed above; do not train on it")
        summary = summarize(self.path, accept_omitted_chunks=self.accept_omitted_chunks)
        print("\n".join([f"OK: {self.path}: every frame can be read", *summary.oddities]))


@dataclass(frozen=True, kw_only=True)
class DataView(PageFlags):
    """Browse episodes on a web page: cameras, curves, flags, and marks for `data edit`."""

    path: StorePathFlag
    obs_keys: ObsKeysFlag = ("state",)
    act_key: ActKeyFlag = "action"

    def run(self) -> None:
        """Serve the page until a signal."""
        from nsde_policy.data import load_demonstrations, open_images
        from nsde_policy.data.readers import open_source
        from nsde_policy.data.roles import find_cameras, is_colour
        from nsde_policy.errors import DemoError
        from nsde_policy.viewer.episodes import EpisodePage, EpisodeServer

        demos = load_demonstrations(self.path, obs_keys=self.obs_keys, act_key=self.act_key)
        with open_source(self.path) as source:
            names = [name for name, shape in find_cameras(source).items() if is_colour(shape)]
        cameras = {}
        for name in names:
            try:
                cameras[name] = open_images(self.path, key=name)
            except DemoError as error:
                logger.warning("%s is not shown: %s", name, error)
        settings = self.make_settings()
        flags = "" if self.obs_keys == ("state",) else f" --obs-keys {' '.join(self.obs_keys)}"
        flags += "" if self.act_key == "action" else f" --act-key {self.act_key}"
        page = EpisodePage(demos, cameras, demos.starts.tolist(), range(len(demos)), flags)
        server = EpisodeServer(page, settings)
        self.run_server(server, settings, what="episodes")


@dataclass(frozen=True)
class DataConvert(options.Command):
    """Write demonstrations of any format to a zarr store or a LeRobot data set, and check the result."""

    path: StorePathFlag
    out: OutFlag
    to: Literal["zarr", "lerobot"] = "zarr"
    """Format to write: zarr, or LeRobot v3.0."""
    obs_keys: ObsKeysFlag = ("state",)
    act_key: ActKeyFlag = "action"
    rate: NonNegative = 0.0
    """Frames per second; 0: as the files say."""
    task_text: str = ""
    """With --to lerobot, what the robot does, such as "push the T"; empty: as the files say."""
    resample: NonNegative = 0.0
    """Frames per second to resample to, for a control loop of another rate; 0: as recorded."""
    accept_omitted_chunks: options.AcceptOmittedChunksFlag = False

    def run(self) -> None:
        """Convert with a progress bar."""
        from functools import partial

        from tqdm import tqdm

        from nsde_policy.data.convert import check_output, write_zarr
        from nsde_policy.data.readers.lerobot.writer import write_lerobot
        from nsde_policy.data.resample import ResampledSource, resample

        if self.task_text and self.to != "lerobot":
            raise ConfigError("--task-text is a part of LeRobot data sets; add --to lerobot or leave it out")
        check_output(self.path, self.out)
        write = partial(write_lerobot, task_text=self.task_text) if self.to == "lerobot" else write_zarr
        bar = partial(tqdm, desc="writing", unit="episode", leave=False, disable=None)
        obs_keys, act_key, rate_hz = self.obs_keys, self.act_key, self.rate or None
        with self._open() as source:
            if self.resample:
                source = resample(
                    source, self.resample, recorded_hz=rate_hz, obs_keys=obs_keys, act_key=act_key
                )
                rate_hz = self.resample
            if isinstance(source, ResampledSource):
                logger.info("%s: %s", self.path, source.describe())
            written = write(
                source, self.out, obs_keys=obs_keys, act_key=act_key, rate_hz=rate_hz, progress=bar
            )
        print(f"OK: {self.out} holds {written} episodes, with equal observations and actions")

    def _open(self) -> "Source":
        from nsde_policy.data.readers import open_source

        return open_source(self.path, accept_omitted_chunks=self.accept_omitted_chunks)


@dataclass(frozen=True)
class DataEdit(DataConvert):
    """Leave out or shorten episodes; writes a new store, the original is not touched."""

    drop: tuple[str, ...] = ()
    """Episodes to leave out, by number from 0: 3, or 7-9."""
    trim: tuple[str, ...] = ()
    """Frames of an episode to keep, EPISODE:START:STOP as in a Python slice: 5:20:180."""

    def _open(self) -> "Source":
        import numpy as np

        from nsde_policy.data.convert import EditedSource, parse_cuts

        source = super()._open()
        ends, _ = source.open_episodes(source.find_arrays())
        return EditedSource(source, parse_cuts(np.diff(ends, prepend=0).tolist(), self.drop, self.trim))


@dataclass(frozen=True)
class DataDownload(options.Command):
    """Download a public set of demonstrations and verify the content."""

    name: Positional[Literal["pusht"]]
    """pusht: 206 human demonstrations of Push-T, 32 MB (Chi et al., RSS 2023; MIT licence)."""
    out: Path = Path("pusht.zarr.zip")
    """Zip of a zarr store to write; a complete one is kept."""
    url: str | None = None
    """Download the zip file from this address instead; its content must be the same."""

    def run(self) -> None:
        """Download with a progress bar."""
        from nsde_policy.data.download import download
        from nsde_policy.errors import NsdePolicyError
        from nsde_policy.tasks import get_task

        public = get_task(self.name).training.public_demos
        if public is None:
            raise NsdePolicyError(f"the task {self.name!r} has no public demonstrations")
        fresh = download(public, self.out, url=self.url, progressbar=sys.stderr.isatty())
        print(f"{'OK' if fresh else 'OK, already there'}: {self.out} holds the expected demonstrations")
