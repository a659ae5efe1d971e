"""Fit of how much of the camera frames is visible, after the encoder is trained."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nsde_policy.data.frames import FrameFile
from nsde_policy.data.types import Demonstrations, Ints
from nsde_policy.encoders.encoder_model import MIN_STD, EncoderModel, VisibilityHead
from nsde_policy.encoders.occlusion import disturb_frames

from .frames import split_rows

logger = logging.getLogger(__name__)

FITTED, HELD_OUT = 2048, 1024
"""Most frames that are fitted, and most frames of other episodes."""
WRONG = 0.25
"""Error beyond which a feature is wrong, in standard deviations of the feature in demonstrations."""
SMOOTHING = 1e-2
"""Weight of the penalty of the ridge regression."""


@torch.no_grad()
def fit_visibility(
    model: EncoderModel,
    frames: FrameFile,
    demos: Demonstrations,
    features: Tensor,
    held_out: Sequence[int],
    *,
    seed: int,
) -> VisibilityHead:
    """Fit the fraction of right features in partly occluded frames, and calibrate it on other episodes.

    Those are the held-out ones, or every fifth if there are none. `features` are those of all frames,
    (frames, feature_dim); the seed determines which frames are used and what occludes them.
    """
    device, rng = next(model.parameters()).device, np.random.default_rng(seed)
    generator = torch.Generator(device).manual_seed(seed)
    wrong = WRONG * features.std(0, correction=0).clamp(min=MIN_STD)

    def look(rows: Ints, *, is_disturbed: bool = True) -> tuple[Tensor, Tensor]:
        """Return the summaries of frames and the fraction of their features that are right, in float64."""
        summaries, fractions = [], []
        for block in split_rows(rows):
            cameras = [torch.from_numpy(camera).to(device) for camera in frames.read(block)]
            if is_disturbed:
                cameras = [disturb_frames(camera, generator) for camera in cameras]
            encoded, summary = model.summarize(torch.from_numpy(demos.obs[block]).to(device), *cameras)
            summaries.append(summary.float().cpu())
            fractions.append(((encoded.cpu() - features[block]).abs() <= wrong).double().mean(1))
        return torch.cat(summaries), torch.cat(fractions)

    others = [*held_out] or [*range(len(demos))][4::5] or [0]
    fitted = demos.find_rows([i for i in range(len(demos)) if i not in others] or others)
    unseen = rng.permutation(demos.find_rows(others))[:HELD_OUT]
    summary, fraction = look(rng.permutation(fitted)[:FITTED])
    head = VisibilityHead(summary.shape[1])
    head.mean.copy_(summary.mean(0))
    head.std.copy_(summary.std(0, correction=0).clamp(min=MIN_STD))
    x = head.expand(summary).double()
    gram = torch.cov(x.T, correction=0) + SMOOTHING * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram, (x - x.mean(0)).T @ fraction / len(x))
    summary, fraction = look(unseen)  # the fit is too sure of frames that it has not seen
    x = head.expand(summary).double()
    spread = torch.cov(torch.stack([x @ weight, fraction]))
    weight *= (spread[0, 1] / spread[0, 0]).nan_to_num(0.0)
    head.weight.copy_(weight[None])
    head.bias.fill_(fraction.mean() - x.mean(0) @ weight)
    head.usual.fill_(head(look(unseen, is_disturbed=False)[0]).quantile(0.01))
    agreement = torch.corrcoef(torch.stack([head(summary), fraction.float()]))[0, 1].nan_to_num()
    where = f"{len(unseen)} frames of {len(others)} other episodes"
    logger.info(
        "visible fraction: correlation %.2f with the fraction of right features in %s", agreement, where
    )
    return head
