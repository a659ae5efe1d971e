"""`nsde-policy data`: what a store of demonstrations holds, whether it is whole, and where to get one."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class DataInfo:
    """Tell what a store of demonstrations holds: episodes, shapes, ranges, rates, provenance."""

    path: tyro.conf.Positional[Path]
    """Zarr directory, or a zip of one."""
    json: bool = False
    """Print JSON instead of text."""
    episode_ends: str = "episode_ends"
    """Array below meta/ that holds one past the last frame of each episode."""
    accept_omitted_chunks: bool = False
    """Believe the fill value where a chunk is not there."""

    def run(self) -> None:
        """Print the summary."""
        from nsde_policy.data.zarr_store.summary import summarize

        summary = summarize(
            self.path, episode_ends=self.episode_ends, accept_omitted_chunks=self.accept_omitted_chunks
        )
        print(summary.as_json() if self.json else summary.as_text())


@dataclass(frozen=True)
class DataCheck:
    """Read every chunk of every array, images included, and list all that is wrong."""

    path: tyro.conf.Positional[Path]
    """Zarr directory, or a zip of one."""
    episode_ends: str = "episode_ends"
    """Array below meta/ that holds one past the last frame of each episode."""
    accept_omitted_chunks: bool = False
    """Believe the fill value where a chunk is not there."""

    def run(self) -> None:
        """Print one line where all is well; list the problems and raise where not."""
        from tqdm import tqdm

        from nsde_policy.data.zarr_store.check import check_store
        from nsde_policy.errors import DemoError

        problems = check_store(
            self.path,
            episode_ends=self.episode_ends,
            accept_omitted_chunks=self.accept_omitted_chunks,
            progress=lambda readings: tqdm(readings, desc="reading", unit="chunk", leave=False, disable=None),
        )
        if problems:
            print("\n".join(problems))
            raise DemoError(f"{self.path} has {len(problems)} problem(s), listed above; do not train on it")
        print(f"OK: {self.path} is whole")


@dataclass(frozen=True)
class DataReplay:
    """Replay Push-T demonstrations open loop in the environment and say how far they stray."""

    path: tyro.conf.Positional[Path]
    """Zarr directory of Push-T demonstrations with 5-D states, or a zip of one."""
    start: Literal["state", "seed"] = "state"
    """Start at the recorded first state, or, for episode k, where benchmark seed k does (the human
    demonstrations were recorded so; stored as float32, their first states are rounded)."""
    out: Path | None = None
    """Write a picture of the first episodes here (PNG)."""
    json: bool = False
    """Print JSON instead of text."""

    def run(self) -> None:
        """Print the report, write the picture."""
        from tqdm import tqdm

        from nsde_policy.data import PUSHT_ANGLES, load_demonstrations
        from nsde_policy.eval.replay import ReplayReport, picture_of, replay_pusht

        if self.out is not None:
            from nsde_policy.eval.render.pictures import check_png

            check_png(self.out)
        demos = load_demonstrations(self.path, angles=PUSHT_ANGLES)
        replays = replay_pusht(demos, start=self.start)
        report = ReplayReport(
            list(tqdm(replays, "replaying", len(demos), unit="episode", leave=False, disable=None))
        )
        print(report.as_json() if self.json else report.as_text())
        if self.out is not None:
            picture_of(report.replays, self.out)
            print(f"wrote {self.out}", file=sys.stderr)


@dataclass(frozen=True)
class DataDownload:
    """Fetch a public set of demonstrations, or go on fetching it, and check it number by number."""

    name: tyro.conf.Positional[Literal["pusht"]]
    """pusht: 206 human demonstrations of Push-T, 32 MB (Chi et al., RSS 2023; MIT licence)."""
    out: Path = Path("pusht_cchi_v7_replay.zarr")
    """Zarr directory to make; one that is there already, and whole, is kept."""
    url: str | None = None
    """Fetch the zip file from this address instead of its authors'; the content must be the same."""

    def run(self) -> None:
        """Download with a progress bar; say where the store is."""
        from tqdm import tqdm

        from nsde_policy.data.download import PUSHT, download

        def bar(total: int | None, done: int) -> tqdm:
            size = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
            return tqdm(desc="downloading", total=total, initial=done, leave=False, disable=None, **size)

        try:
            fresh = download(PUSHT, self.out, url=self.url, progress=bar)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted; the same command goes on where this one stopped") from None
        print(f"{'OK' if fresh else 'OK, already there'}: {self.out} holds the expected demonstrations")
