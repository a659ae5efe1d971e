"""Obstacle avoidance: its outcome, mirror symmetry, drawing and presets (tuned on seeds 200000 and up)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from nsde_policy.config import Preset, SelectionConfig, TrainConfig
from nsde_policy.envs import AVOIDING_ID, AVOIDING_PERIODS
from nsde_policy.envs.avoiding import geometry
from nsde_policy.envs.avoiding.dynamics import CONTROL_RATE_HZ
from nsde_policy.run_config import DemoConfig

from .base import Info, Outcome, Reporting, Task, read_number
from .drawing import Drawing, Forecast
from .registry import register_task
from .training_defaults import TrainingDefaults

if TYPE_CHECKING:
    import numpy as np

    from nsde_policy.data import Mirror
    from nsde_policy.envs.live import LiveTable
    from nsde_policy.envs.scene import Scene
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig


def _keep_modes(preset: Preset, *, width: int, diffusion: float, train: TrainConfig) -> Preset:
    """Return a preset of the Neural SDE that tells 24 ways apart.

    A large blur trains flow and denoiser also between the ways, where a sampled path has to be led back to
    one of them. More noise than the learned g keeps the ways balanced in spite of the strong pull of the
    denoiser. Dropout would blur the forks.
    """
    model = cast("NeuralSDEConfig", preset.model)
    network = replace(model.network, width=width, dropout=0.0)
    sampling = replace(model.sampling, alpha=1.5, diffusion=diffusion)
    model = replace(model, noise=1.5, network=network, sampling=sampling)
    dynamics = replace(train, steps=train.steps // 4)
    return replace(preset, model=model, train=train, selection=SelectionConfig(select="auto", train=dynamics))


class AvoidingDrawing(Drawing):
    """Pictures of the rod, its command and the obstacles."""

    def progress(self, info: Info) -> float:
        """Return the furthest share of the way to the line."""
        return read_number(info, "progress")

    def draw(self, obs: "np.ndarray", *, size: int, forecast: Forecast | None = None) -> "np.ndarray":
        """Draw rod, command and obstacles; a forecast as paths."""
        import numpy as np

        from nsde_policy.envs.avoiding import drawing

        if forecast is None:
            return drawing.draw_rod(obs.tolist(), size=size)
        if forecast.obs is not None:
            futures = forecast.obs[..., 2:]
        else:  # an action changes the commanded position
            command = np.broadcast_to(obs[:2], (1, *forecast.actions.shape[1:]))
            futures = np.concatenate([command, command + np.cumsum(forecast.actions, axis=0)])
        return drawing.draw_rod(obs.tolist(), size=size, futures=futures)

    def scene(self) -> "Scene":
        """Return the script, and what it draws in pixels; recorded values are stored in 1/20000 m."""
        from nsde_policy.envs.live import PAGE_SIDE
        from nsde_policy.envs.scene import Scene, read_script

        return Scene(
            read_script("nsde_policy.envs.avoiding"),
            {
                "side": PAGE_SIDE,
                "radius": geometry.ROD_RADIUS * geometry.PIXELS_PER_METRE,
                "scale": geometry.PIXELS_PER_METRE,
                "origin": geometry.PAGE.origin,
                "obstacles": geometry.OBSTACLES,
                "finish": geometry.FINISH_Y,
            },
            scales=(20_000,) * 5,
        )


class AvoidingTraining(TrainingDefaults):
    """Mirror symmetry and presets that keep the modes apart."""

    default_preset = "default"
    demos = DemoConfig(first_action_from=())

    @property
    def mirror(self) -> "Mirror":
        """Map x to 1 − x: obstacles and line are symmetric, the fixed start is not."""
        from nsde_policy.data import Mirror

        position = ((0, -1.0, 1.0), (1, 1.0, 0.0), (2, -1.0, 1.0), (3, 1.0, 0.0))
        return Mirror(obs=position, act=((0, -1.0, 0.0), (1, 1.0, 0.0)))

    def presets(self, method: str) -> Mapping[str, Preset]:
        """Blur more and sample with more noise than usual; `default` is made for a GPU."""
        presets = super().presets(method)
        if method != "neural_sde":
            return presets
        large, small = presets["default"], presets["fast"]
        return {
            **presets,
            "default": _keep_modes(large, width=512, diffusion=2.5, train=TrainConfig(steps=50_000)),
            "fast": _keep_modes(small, width=256, diffusion=2.0, train=small.train),
        }


@register_task
class AvoidingTask(Task):
    """Move a rod between six obstacles across the table, from the start of the D3IL benchmark."""

    name = "avoiding"
    env_id = AVOIDING_ID
    env_kwargs = MappingProxyType({"start": "fixed"})
    rate_hz = CONTROL_RATE_HZ
    score_name = "furthest"
    reporting = Reporting(
        title="Avoiding",
        score_note=f"Success: the rod crosses the line within {AVOIDING_PERIODS} steps and touches no "
        "obstacle. Furthest: the largest share of the way to the line.",
        modes=geometry.N_MODES,
    )
    drawing = AvoidingDrawing()
    training = AvoidingTraining()

    def outcome(self, rewards: Sequence[float], infos: Sequence[Info]) -> Outcome:
        """Score by the share of the way to the line; success is crossing it without touching."""
        return Outcome(bool(infos[-1]["success"]), read_number(infos[-1], "progress"))

    def live_table(self) -> "LiveTable":
        """Return the table on which a policy or a user plays live."""
        from nsde_policy.envs.avoiding.live import AvoidingTable

        return AvoidingTable(self.env_kwargs["start"])  # type: ignore[arg-type]  # the environment checks it


@register_task
class AvoidingVariedTask(AvoidingTask):
    """Obstacle avoidance from starts that the seed draws, with its own demonstrations."""

    name = "avoiding_varied"
    env_kwargs = MappingProxyType({"start": "varied"})
    reporting = replace(AvoidingTask.reporting, title="Avoiding, varied starts")
