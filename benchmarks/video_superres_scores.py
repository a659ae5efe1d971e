"""Scores of benchmarks/video_superres.py: test clips, frames between frames, contacts and film strips."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsde_policy.eval.compare.table import format_markdown
from nsde_policy.eval.statistics import mean, proportion
from nsde_policy.eval.video.contacts import (
    cross_fade,
    find_skipped_contacts,
    find_touching_pairs,
    measure_separation,
    score_contacts,
)
from nsde_policy.eval.video.figures import draw_film_strip
from nsde_policy.eval.video.positions import find_visible, score_positions
from nsde_policy.video.collisions import (
    CollisionsConfig,
    CollisionVideos,
    Motion,
    Objects,
    draw_frames,
    simulate_collisions,
)
from nsde_policy.video.spaces import psnr, to_unit

SUBSTEPS, CONTEXT, FRAMES = 5, 4, 20
"""Steps per frame, frames of the context, whole frames of a test video."""
Predict = Callable[[Tensor, int], Tensor]
"""Takes context frames (n, 4, size, size, 3) uint8 and a number of frames; returns five times as many frames
(n, 5 · steps, 3, size, size)."""


class Clips(NamedTuple):
    """Contexts and the true frames after them, the newest frame of the context first."""

    context: Tensor
    videos: CollisionVideos
    true: Tensor


class TestSet:
    """Simulated videos, of which only the clips that are scored are drawn."""

    def __init__(self, videos: int, size: int, seed: int, device: str) -> None:
        config = CollisionsConfig(size=size, frames=FRAMES, substeps=SUBSTEPS)
        self.objects, self.motion = simulate_collisions(videos, config, seed=seed, device=device)
        self.size = size

    def find_contacts(self) -> Tensor:
        """Return video and first frame of the context of each clip with a skipped contact, (clips, 2)."""
        pairs = find_touching_pairs(self.motion.contact, substeps=SUBSTEPS)[:, CONTEXT - 1 :]
        likely = pairs.flatten(2).any(-1).nonzero()
        found = []
        for part in likely.split(256):
            clips = self.draw(part, 1)
            contacts = find_skipped_contacts(clips.true, clips.videos, substeps=SUBSTEPS)
            found.append(part[contacts.video.unique()])
        return torch.cat(found)

    def find_all(self, videos: int, steps: int) -> Tensor:
        """Return video and first frame of the context of clips of the first videos, `steps` frames apart."""
        starts = torch.arange(0, FRAMES - CONTEXT - steps + 1, steps, device=self.motion.contact.device)
        return torch.cartesian_prod(torch.arange(videos, device=starts.device), starts)

    def draw(self, rows: Tensor, steps: int) -> Clips:
        """Draw clips of `steps` predicted frames, given video and first frame of the context, (n, 2)."""
        video, start = rows.unbind(1)
        newest = (start + CONTEXT - 1) * SUBSTEPS
        fine = newest[:, None] + torch.arange(steps * SUBSTEPS + 1, device=rows.device)
        whole = (start[:, None] + torch.arange(CONTEXT, device=rows.device)) * SUBSTEPS
        objects = Objects(*(part[video] for part in self.objects))
        motion = Motion(*(part[video[:, None], fine] for part in self.motion))
        frames = draw_frames(objects, motion.position, self.size)
        context = draw_frames(objects, self.motion.position[video[:, None], whole], self.size)
        return Clips(context, CollisionVideos(frames, objects, motion), to_unit(frames))


def score(
    predictors: dict[str, Predict], test: TestSet, rows: Tensor, steps: int, batch: int, *, contacts: bool
) -> dict[str, Any]:
    """Score all predictors on clips: their contacts, or their frames; returns plain numbers by label."""
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for part in rows.split(batch):
        clips = test.draw(part, steps)
        newest = clips.true[:, :1]
        shown = {"truth": clips.true, "cross-fade of true frames": cross_fade(clips.true[:, ::SUBSTEPS])}
        shown |= {label: torch.cat([newest, p(clips.context, steps)], 1) for label, p in predictors.items()}
        for label, frames in shown.items():
            figures = score_contact_clips(frames, clips) if contacts else score_frames(frames, clips)
            for name, values in figures.items():
                parts.setdefault(label, {}).setdefault(name, []).append(values.cpu())
    joined = {label: {n: torch.cat(v) for n, v in figures.items()} for label, figures in parts.items()}
    return {label: summarise(figures, rows[:, 0].cpu()) for label, figures in joined.items()}


def score_contact_clips(frames: Tensor, clips: Clips) -> dict[str, Tensor]:
    """Return the outcome of each skipped contact."""
    contacts = score_contacts(frames, clips.true, clips.videos, substeps=SUBSTEPS)
    return {"reached": contacts.reached, "rebounded": contacts.rebounded}


def score_frames(frames: Tensor, clips: Clips) -> dict[str, Tensor]:
    """Return figures of each clip."""
    between = [k for k in range(frames.shape[1]) if k % SUBSTEPS]
    quality = psnr(frames, clips.true)
    visible = find_visible(clips.true, clips.videos.objects)
    errors = score_positions(frames, clips.videos.objects, clips.videos.motion.position, visible)
    return {
        "between_psnr": quality[:, between].mean(1),
        "whole_psnr": quality[:, SUBSTEPS::SUBSTEPS].mean(1),
        "position_error": errors.distance[:, between].sum(1) / errors.found[:, between].sum(1).clamp(min=1),
    }


def summarise(figures: dict[str, Tensor], video: Tensor) -> dict[str, Any]:
    """Return means with intervals: Wilson for contacts, else bootstrap over videos."""
    out: dict[str, Any] = {}
    for name, values in figures.items():
        if name in ("reached", "rebounded"):
            out[name] = vars(proportion(int(values.sum()), len(values))) if len(values) else None
        else:
            clips = torch.zeros(int(video.max()) + 1).index_add(0, video, torch.ones(len(video)))
            total = torch.zeros(len(clips)).index_add(0, video, values.float())
            out[name] = vars(mean((total / clips)[clips > 0].double().numpy()))
    return out


def print_table(title: str, scores: dict[str, Any]) -> None:
    names = ["between_psnr", "whole_psnr", "position_error", "reached", "rebounded"]
    lines = []
    for label, row in scores.items():
        cells = [row[n] for n in names]
        lines.append(
            [label, *(f"{c['value']:.3f} [{c['low']:.3f}, {c['high']:.3f}]" if c else "-" for c in cells)]
        )
    reached = next(iter(scores.values()))["reached"]
    print(f"\n{title}: {reached['n'] if reached else 0} skipped contacts")
    print(format_markdown(["", *names], lines), flush=True)


def draw_contacts(predictors: dict[str, Predict], test: TestSet, rows: Tensor, out: Path) -> None:
    """Draw film strips of the three fastest skipped contacts among clips, cut out around the contact."""
    clips = test.draw(rows, 1)
    contacts = score_contacts(clips.true, clips.true, clips.videos, substeps=SUBSTEPS).contacts
    apart = measure_separation(clips.true, clips.videos.objects, contacts, substeps=SUBSTEPS)
    speed = (apart[:, 1] - apart[:, 0]).norm(dim=-1)
    half = test.size // 4
    for number, k in enumerate(speed.argsort(descending=True)[:3].tolist()):
        row, i, j = (int(part[k]) for part in (contacts.video, contacts.first, contacts.second))
        centre = clips.videos.motion.position[row, 2, [i, j]].mean(0) * (test.size / 64)
        left, top = (int(c.clamp(half, test.size - half).round()) - half for c in centre)
        area = (slice(top, top + 2 * half), slice(left, left + 2 * half))
        context = clips.context[row : row + 1]
        shown = {"truth": clips.true[row, 1:]}
        shown["cross-fade of true frames"] = cross_fade(clips.true[row : row + 1, ::SUBSTEPS])[0, 1:]
        shown |= {label: predict(context, 1)[0] for label, predict in predictors.items()}
        cut = {label: video[:, :, area[0], area[1]] for label, video in shown.items()}
        draw_film_strip(context[0][:, area[0], area[1]], cut, out, name=f"contact_{number}")
