"""`nsde-policy data`: what a store of demonstrations holds, and whether it is whole."""

from dataclasses import dataclass
from pathlib import Path

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
        from nsde_policy.data.summary import summarize

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

        from nsde_policy.data.check import check_store
        from nsde_policy.errors import DemoError

        problems = check_store(
            self.path,
            episode_ends=self.episode_ends,
            accept_omitted_chunks=self.accept_omitted_chunks,
            progress=lambda readings: tqdm(readings, desc="reading", unit="chunk", leave=False),
        )
        if problems:
            print("\n".join(problems))
            raise DemoError(f"{self.path} has {len(problems)} problem(s), listed above; do not train on it")
        print(f"OK: {self.path} is whole")
