"""Sample the futures that a policy expects, for drawings."""

from collections.abc import Sequence

import numpy as np
import torch

from nsde_policy.config import Sampling
from nsde_policy.eval.episode import EpisodeResult
from nsde_policy.eval.rollout import Player
from nsde_policy.inference.policy import Policy
from nsde_policy.planner.history import History
from nsde_policy.tasks.drawing import Forecast

FORECAST_STEPS = 24
"""Control periods of a forecast; longer plans are shown to their end."""
FORECAST_SAMPLES = 64


def sample_forecast(
    policy: Policy,
    history: History,
    *,
    steps: int,
    generators: Sequence[torch.Generator],
    sampling: Sampling | None = None,
    std: bool = False,
) -> Forecast:
    """Sample one future per generator, without plan selection; `std` adds σ if the method reports it."""
    plans = policy.plan_batch(
        [history] * len(generators), generators=generators, steps=steps, sampling=sampling, candidates=1
    )
    actions = np.stack([plan.actions for plan in plans], axis=1)
    paths = [plan.states for plan in plans if plan.states is not None]
    if not paths:
        return Forecast(actions)
    obs = np.stack(paths, axis=1)[..., : policy.obs_dim]
    if not (std and policy.model.reports_std):
        return Forecast(actions, obs)
    past = torch.from_numpy(history.states()).expand(len(paths), -1, -1)
    futures = torch.from_numpy(np.stack(paths)).float()
    with torch.inference_mode():
        spread = policy.model.futures_std(past, futures, sampling=sampling)[..., : policy.obs_dim]
    return Forecast(actions, obs, spread.double().numpy().swapaxes(0, 1))


def sample_episode_forecasts(player: Player, result: EpisodeResult) -> list[Forecast]:
    """Return the forecast of the plan in force for every control period of an episode but its end."""
    policy, config, trace = player.policy, player.config, result.trace
    seed = 2**32 + result.seed  # never that of an episode: those are below 2³²
    generators = [torch.Generator().manual_seed(seed)] * FORECAST_SAMPLES
    chunk = config.chunk or policy.chunk
    steps = max(FORECAST_STEPS, chunk) if policy.model.foresees_states else chunk
    found: list[Forecast] = []
    ends = [start for start, _ in trace.histories[1:]] + [len(trace.actions)]
    for (start, history), end in zip(trace.histories, ends, strict=True):
        forecast = sample_forecast(
            policy, history, steps=steps, generators=generators, sampling=config.sampling
        )
        found += [forecast.skip(k) for k in range(end - start)]
    return found
