"""Contacts between two frames of `collisions`: do predicted in-between frames show touch and rebound?

A contact is *skipped* if it happens between two coarse frames that do not show it: in both, the two objects
are more than `CLEARANCE` farther apart than at their closest in the true in-between frames. A prediction

- *reaches* the contact if the two objects come within `REACH` of the true closest distance in an in-between
  frame, and
- *rebounds* if, besides, they part as they should: their relative velocity, from their closest frame to the
  next coarse frame, differs from the true one by at most `REBOUND` of its length, and their closest distance
  is not more than `CLEARANCE` below the true one, as it is if objects pass through each other.

Positions are the centroids of the objects' colours, in the true frames as well, so the truth scores 100 %.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from nsde_policy.eval.video.positions import find_objects
from nsde_policy.video.collisions import CollisionVideos, Objects

SUBSTEPS = 5
"""Fine frames per coarse frame; the first of every five is a coarse one."""
CLEARANCE = 1.0
"""A coarse frame shows a contact if the objects are at most this much farther apart than at their closest,
pixels of a frame of 64."""
REACH = 0.5
"""Largest distance beyond the true closest one at which a contact is reached, pixels of a frame of 64."""
REBOUND = 0.5
"""Largest error of the relative velocity after a contact, as a share of its length."""


class SkippedContacts(NamedTuple):
    """Contacts between coarse frames; each tensor has one entry per contact."""

    video: Tensor
    """Index of the video it is in."""
    start: Tensor
    """Index of the last coarse frame before the contact, among the fine frames."""
    first: Tensor
    """Index of one object."""
    second: Tensor
    """Index of the other object."""


def find_skipped_contacts(true: Tensor, videos: CollisionVideos) -> SkippedContacts:
    """Find the contacts that no coarse frame shows.

    A pair counts if its objects touch nothing else between the two coarse frames.

    Args:
        true: Fine frames, (n, length, 3, size, size); every `SUBSTEPS`-th is a coarse one, from the first on.
        videos: Objects and motion of the same fine frames.
    """
    pairs = find_touching_pairs(videos.motion.contact[:, : true.shape[1]])
    video, interval, first, second = torch.triu(pairs).nonzero(as_tuple=True)
    found = SkippedContacts(video, interval * SUBSTEPS, first, second)
    distance = measure_separation(true, videos.objects, found).norm(dim=-1)
    closest = distance[:, 1:-1].amin(dim=1)
    is_skipped = distance[:, [0, -1]].amin(dim=1) > closest + CLEARANCE
    is_skipped &= distance.isfinite().all(1)
    return SkippedContacts(*(part[is_skipped] for part in found))


def find_touching_pairs(contact: Tensor) -> Tensor:
    """Find the pairs of objects that touch each other, and nothing else, between two coarse frames.

    Args:
        contact: Whether two objects touch in a fine frame, (n, length, objects, objects) bool.

    Returns:
        (n, intervals between coarse frames, objects, objects) bool.
    """
    intervals = (contact.shape[1] - 1) // SUBSTEPS
    fine = contact[:, 1 : intervals * SUBSTEPS + 1]
    touches = fine.reshape(len(fine), intervals, SUBSTEPS, *fine.shape[2:]).any(2)
    alone = touches.sum(-1) == 1
    return touches & alone[..., None] & alone[..., None, :]


def measure_separation(frames: Tensor, objects: Objects, contacts: SkippedContacts) -> Tensor:
    """Return the vector between the objects of each contact, (contacts, SUBSTEPS + 1, 2).

    It is measured in the fine frames from the coarse frame before the contact to the one after it, and
    infinite in frames in which one of the objects is lost.
    """
    steps = contacts.start[:, None] + torch.arange(SUBSTEPS + 1, device=frames.device)
    clips = frames[contacts.video[:, None], steps]
    chosen = Objects(*(part[contacts.video] for part in objects))
    position = find_objects(clips, chosen)
    rows = torch.arange(len(position), device=frames.device)
    return (position[rows, :, contacts.first] - position[rows, :, contacts.second]).nan_to_num(nan=torch.inf)


def score_contacts(
    predicted: Tensor, true: Tensor, videos: CollisionVideos
) -> tuple[SkippedContacts, Tensor, Tensor]:
    """Return the skipped contacts, and which of them predicted fine frames reach and rebound.

    Args:
        predicted: Fine frames, (n, length, 3, size, size) with values from -1 to 1.
        true: True fine frames at the same times; every `SUBSTEPS`-th is a coarse one, from the first on.
        videos: Objects and motion of the true fine frames.
    """
    contacts = find_skipped_contacts(true, videos)
    found, expected = (
        _measure_encounter(measure_separation(frames, videos.objects, contacts))
        for frames in (predicted, true)
    )
    reached = found.closest <= expected.closest + REACH
    error = (found.parting - expected.parting).norm(dim=-1)
    parted = error <= REBOUND * expected.parting.norm(dim=-1)  # false for NaN
    return contacts, reached, reached & parted & (found.closest >= expected.closest - CLEARANCE)


class _Encounter(NamedTuple):
    """How two objects meet and part, one row per contact."""

    closest: Tensor
    """Smallest distance in the in-between frames, (contacts,)."""
    parting: Tensor
    """Relative velocity per fine frame from there to the end, (contacts, 2)."""


def _measure_encounter(separation: Tensor) -> _Encounter:
    """Measure encounters from the vectors between the objects, (contacts, SUBSTEPS + 1, 2)."""
    closest, at = separation[:, 1:-1].norm(dim=-1).min(dim=1)
    rows = torch.arange(len(separation), device=separation.device)
    moved = separation[:, -1] - separation[rows, at + 1]
    return _Encounter(closest, moved / (separation.shape[1] - 2 - at)[:, None])


def cross_fade(frames: Tensor) -> Tensor:
    """Mix neighbouring coarse frames (n, length, …) linearly, (n, (length - 1) · SUBSTEPS + 1, …)."""
    share = torch.arange(SUBSTEPS, device=frames.device).reshape(1, 1, SUBSTEPS, 1, 1, 1) / SUBSTEPS
    mixed = torch.lerp(frames[:, :-1, None], frames[:, 1:, None], share)
    return torch.cat([mixed.flatten(1, 2), frames[:, -1:]], dim=1)
