"""Push-T: its state, its mirror symmetry, its outcome and its presets (tuned on seeds 200000 and up)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from nsde_policy.config import Preset, SelectionConfig, TrainConfig
from nsde_policy.encoders.keypoints.config import SMALL_ENCODER, KeypointConfig
from nsde_policy.run_config import DemoConfig

from .base import Info, Outcome, Reporting, Task, read_number
from .drawing import Drawing, Forecast
from .registry import register_task
from .training_defaults import ObservationChoice, TrainingDefaults

if TYPE_CHECKING:
    import numpy as np

    from nsde_policy.data import Mirror
    from nsde_policy.data.augmentation import RigidMotions
    from nsde_policy.data.download import PublicDemos
    from nsde_policy.envs.live import LiveTable
    from nsde_policy.envs.scene import Scene
    from nsde_policy.methods.baselines.diffusion import DiffusionConfig
    from nsde_policy.methods.baselines.gpi import GPIConfig
    from nsde_policy.methods.neural_sde.config import NeuralSDEConfig

_SIDE = 512.0
PIXEL_ENCODER = KeypointConfig(level_brightness=True, occlusion_steps=5000)
"""Encoder of camera frames, for all methods that are trained on its keypoints."""
SMALL_PIXEL_ENCODER = replace(
    SMALL_ENCODER, level_brightness=True, train=replace(SMALL_ENCODER.train, steps=2000, batch_size=64)
)
"""The same encoder, small enough to be trained on a CPU."""
_GHOSTS = 4
"""Futures whose final pose of the block is drawn."""


def _tune(preset: Preset, dynamics: TrainConfig) -> Preset:
    """Return a preset of the Neural SDE that selects plans, halves the noise and weighs final actions more.

    The last action of a demonstration is the one that completes the goal.
    """
    model = cast("NeuralSDEConfig", preset.model)
    return replace(
        preset,
        model=replace(model, sampling=replace(model.sampling, diffusion=0.5)),
        demos={**preset.demos, "final_action_weight": 10.0},
        selection=SelectionConfig(select="auto", train=dynamics),
    )


def _align(preset: Preset) -> Preset:
    """Return a preset that aligns the ends of demonstrations, and blurs the block half as much.

    People stop within a few pixels of the goal, each on another side of it. Aligned demonstrations agree on
    the goal, and a smaller blur of the block lets the policy see which side it is on.
    """
    model = cast("NeuralSDEConfig", preset.model)
    return replace(
        preset,
        model=replace(model, noise_factors=(1.0, 1.0, 0.5, 0.5, 0.5)),
        demos={**preset.demos, "align_ends": True},
    )


def _take_images(preset: Preset) -> Preset:
    """Return Diffusion Policy's settings for images: a larger U-Net, trained with a ResNet-18.

    Deviation: 200 000 steps, as in LeRobot, on all demonstrations; the original has 3050 epochs of 90.
    """
    model = cast("DiffusionConfig", preset.model)
    unet = replace(model.unet, channels=(512, 1024, 2048), step_embedding=128)
    train = replace(preset.train, steps=200_000, batch_size=64, warmup=0.0025, ema_power=0.75)
    demos = {**preset.demos, "encoder": "resnet", "mirror": False}
    return replace(preset, model=replace(model, unet=unet), train=train, demos=demos)


def _follow_block(preset: Preset) -> Preset:
    """Return a preset of GPI that follows demonstrations in the frame of the block, as its authors do."""
    return replace(preset, model=replace(cast("GPIConfig", preset.model), object_pose=(2, 3, 4)))


class PushTDrawing(Drawing):
    """Pictures of agent, block and goal."""

    progress_name = "coverage"
    success_progress = 0.95

    def progress(self, info: Info) -> float:
        """Return the covered share of the goal."""
        return read_number(info, "coverage")

    def read_state(self, obs: "np.ndarray", info: Info) -> "np.ndarray":
        """Return agent x, y, block x, y, angle, whatever the policy observes."""
        import numpy as np

        if obs.shape == (5,):
            return obs
        state = np.hstack([np.asarray(info["pos_agent"]), np.asarray(info["block_pose"])])
        state[4] %= 2 * math.pi
        return state

    def draw(self, obs: "np.ndarray", *, size: int, forecast: Forecast | None = None) -> "np.ndarray":
        """Draw agent and block on the table; a forecast as paths and outlines of the block."""
        import numpy as np

        from nsde_policy.envs.pusht import drawing

        agent, block = obs[:2].tolist(), obs[2:].tolist()
        if forecast is None:
            return drawing.frame(agent, block, size=size)
        if forecast.obs is None:  # an action is a target of the agent
            here = np.broadcast_to(obs[:2], (1, *forecast.actions.shape[1:]))
            return drawing.frame(agent, block, size=size, futures=np.concatenate([here, forecast.actions]))
        ghosts = forecast.obs[-1, :_GHOSTS, 2:].tolist()
        return drawing.frame(agent, block, size=size, futures=forecast.obs[..., :2], ghosts=ghosts)

    def scene(self) -> "Scene":
        """Return the script and its shapes; poses are in px, from −256 to 768, angles in rad."""
        from nsde_policy.envs.pusht import geometry
        from nsde_policy.envs.scene import Scene, read_script

        return Scene(
            read_script("nsde_policy.envs.pusht"),
            {
                "side": geometry.SIDE,
                "outline": geometry.OUTLINE,
                "goal": geometry.GOAL_POSE,
                "radius": geometry.AGENT_RADIUS,
                "centre": geometry.CENTRE_OF_GRAVITY,
            },
            scales=(32, 32, 32, 32, 4096, 20_000),
        )


class PushTTraining(TrainingDefaults):
    """Mirror symmetry, human demonstrations and tuned presets."""

    default_preset = "default"
    demos = DemoConfig(angles=(4,), first_action_from=(0, 1), mirror=True)
    observations = MappingProxyType(
        {
            "pixels": ObservationChoice(
                demos={"obs_columns": (0, 1), "angles": (), "images": ("img",), "encoder": "keypoints"},
                env_kwargs={"obs_type": "pixels_agent_pos"},
                recorded_with={"obs_type": "pixels_state"},
                preset="pixels",
                encoders={"fast": SMALL_PIXEL_ENCODER},
            )
        }
    )

    @property
    def mirror(self) -> "Mirror":
        """(x, y) ↦ (512 − y, 512 − x): table and goal are symmetric about the diagonal of the goal's stem.

        The walls are 0.5 px off that symmetry; nothing else is.
        """
        from nsde_policy.data import Mirror

        swap = ((1, -1.0, _SIDE), (0, -1.0, _SIDE))
        block = ((3, -1.0, _SIDE), (2, -1.0, _SIDE), (4, -1.0, math.pi / 2))
        return Mirror(obs=swap + block, act=swap, frame="antitranspose")

    @property
    def motions(self) -> "RigidMotions":
        """Move agent, block and commands together: pushing is the same everywhere on the table."""
        from nsde_policy.data.augmentation import RigidMotions

        return RigidMotions(points=((0, 1), (2, 3)), angles=(4,), act_points=((0, 1),), body=(2, 3, 4))

    @property
    def public_demos(self) -> "PublicDemos":
        """206 human demonstrations (Chi et al., RSS 2023; MIT licence), 32 MB."""
        from nsde_policy.data.download import PublicDemos

        return PublicDemos(
            url="https://diffusion-policy.cs.columbia.edu/data/training/pusht.zip",
            fingerprint="a98719ddbca719f849bae2e010cd285d84124c955a00f22c862dfe7ba73778a7",
            angles=self.demos.angles,
            frames=25_650,
        )

    def presets(self, method: str) -> Mapping[str, Preset]:
        """Tune the Neural SDE and GPI; add Diffusion Policy's settings and presets for pixels."""
        presets = super().presets(method)
        if method == "neural_sde":
            dynamics = {
                "default": TrainConfig(steps=15_000),
                "fast": TrainConfig(steps=5_000, batch_size=256),
            }
            tuned = {name: _tune(presets[name], train) for name, train in dynamics.items()}
            usual = tuned
            if not self.demos.images:
                usual = {name: _align(tuned[name]) for name in tuned}
                usual["fast"] = replace(usual["fast"], train=replace(tuned["fast"].train, steps=15_000))
            pixels = replace(tuned["default"], encoder=PIXEL_ENCODER)
            small = replace(pixels, train=tuned["fast"].train, encoder=SMALL_PIXEL_ENCODER)
            return {**presets, **usual, "pixels": pixels, "pixels-fast": small}
        if method != "diffusion":
            pixels = replace(presets["default"], encoder=PIXEL_ENCODER)
            if method == "gpi":
                presets = {name: _follow_block(preset) for name, preset in presets.items()}
            return {**presets, "pixels": pixels}
        return {**presets, "pixels": _take_images(presets["default"])}

    def adapt(self, preset: Preset) -> Preset:
        """Align the ends of demonstrations, unless a camera sees the block or no plans are selected."""
        return preset if self.demos.images or preset.selection.select == "none" else _align(preset)


@register_task
class PushTTask(Task):
    """Push a T-shaped block onto its outline."""

    name = "pusht"
    env_id = "nsde_policy/PushT-v0"
    env_kwargs = MappingProxyType({"reset_rule": "benchmark"})
    rate_hz = 10.0
    score_name = "max_reward"
    reporting = Reporting(
        title="Push-T",
        success_name="strict success",
        score_note="Strict success: more than 95 % of the goal covered within 300 steps. Reward: coverage ÷ "
        "0.95, at most 1, the best moment of each episode.",
    )
    drawing = PushTDrawing()
    training = PushTTraining()

    def outcome(self, rewards: Sequence[float], infos: Sequence[Info]) -> Outcome:
        """Score by the largest reward, clip(coverage / 0.95, 0, 1); success is coverage above 0.95."""
        last = infos[-1]
        return Outcome(
            bool(last["success"]), max(0.0, *rewards), {"final_coverage": read_number(last, "coverage")}
        )

    def live_table(self) -> "LiveTable":
        """Return the table on which a policy or a user plays live; the block can be dragged."""
        from nsde_policy.envs.pusht.live import PushTTable

        return PushTTable(self.env_kwargs["reset_rule"])  # type: ignore[arg-type]  # the environment checks it
