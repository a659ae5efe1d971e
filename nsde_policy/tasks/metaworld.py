"""Meta-World: 50 tasks of a robot arm, `metaworld:reach-v3` and others (extra `metaworld`)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

import gymnasium as gym
import numpy as np

from nsde_policy.encoders.landmarks.config import SMALL_ENCODER
from nsde_policy.envs.inputs import require_one_of
from nsde_policy.errors import ConfigError, import_optional

from .base import Info, Reporting, Task
from .drawing import Drawing
from .environments import AnyEnv, check_mujoco_renderer, guard_mujoco, make_gym_env
from .registry import TASKS
from .training_defaults import AUTO_PRESET, CAMERA_PRESET, ObservationChoice, TrainingDefaults

MEMBERS = """
assembly basketball bin-picking box-close button-press button-press-topdown button-press-topdown-wall
button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open
door-unlock drawer-close drawer-open faucet-close faucet-open hammer hand-insert handle-press
handle-press-side handle-pull handle-pull-side lever-pull peg-insert-side peg-unplug-side pick-out-of-hole
pick-place pick-place-wall plate-slide plate-slide-back plate-slide-back-side plate-slide-side push push-back
push-wall reach reach-wall shelf-place soccer stick-pull stick-push sweep sweep-into window-close window-open
"""
CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
"""Names of Meta-World's cameras; it would draw another view for any other name."""
EPISODE_STEPS = 500
"""Steps after which Meta-World's own environments end."""
FRAME_SIZE = 96
OVERSAMPLING = 2
"""Frames are drawn this many times as high and wide, and averaged, in a fifth more time: otherwise edges are
jagged, and small things jump by whole pixels."""
CAMERA_POSITION = (0.75, 0.075, 0.7)
"""Place of the camera corner2 for policies that see frames, closer to the table than Meta-World's own."""
HAND = slice(4)
"""Columns of the observation with the position of the hand and the opening of the gripper."""
ObsType = Literal["state", "pixels_agent_pos", "pixels_state"]
Observation = np.ndarray | dict[str, np.ndarray]


class MetaWorldEnv(gym.Wrapper[Observation, np.ndarray, np.ndarray, np.ndarray]):
    """A Meta-World environment that samples its start from the seed of `reset`, and ends at success.

    Its own `reset` ignores the seed, and its own episodes last 500 steps. `camera_name` is one of `CAMERAS`;
    `kwargs` are `render_mode`, `width` and `height`, the size of pictures and frames.

    ## Observation, by `obs_type`
    - `state`: 39 numbers with the goal, which Meta-World hides by default
    - `pixels_agent_pos`: {"pixels": the camera's frame, (96, 96, 3) uint8, "agent_pos": x, y and z of the
      hand and the opening of the gripper}; the info holds the 39 numbers as "state"
    - `pixels_state`: {"pixels": that frame, "state": the 39 numbers}, for recordings

    Frames show the site that marks the goal, as Meta-World draws it. They have no shadows, which would take
    most of the time without a GPU, and corner2 is moved to `CAMERA_POSITION`.
    While the attribute `draws_frames` is False, the frame of the observation is an old one.
    """

    def __init__(
        self, member: str, camera_name: str = "corner2", obs_type: ObsType = "state", **kwargs: object
    ) -> None:
        require_one_of("obs_type", obs_type, get_args(ObsType))
        if camera_name not in CAMERAS:
            raise ConfigError(
                f"Meta-World has no camera {camera_name!r}, expected one of {', '.join(CAMERAS)}; change "
                "camera_name in --env-kwargs"
            )
        environments = import_optional("metaworld", "metaworld").ALL_V3_ENVIRONMENTS
        if obs_type != "state":
            kwargs = {"width": FRAME_SIZE, "height": FRAME_SIZE, **kwargs, "render_mode": "rgb_array"}
            kwargs |= {side: OVERSAMPLING * cast(int, kwargs[side]) for side in ("width", "height")}
        inner = environments[member](camera_name=camera_name, **kwargs)
        inner._partially_observable, inner._set_task_called = False, True
        inner.seeded_rand_vec = True
        del inner.sawyer_observation_space  # a cached property, made without the goal
        inner.observation_space = inner.sawyer_observation_space
        super().__init__(inner)
        self._upside_down = camera_name.startswith("corner")
        self._obs_type = obs_type
        self.draws_frames = True
        self._frame: np.ndarray | None = None
        if obs_type != "state":
            self.observation_space = self._prepare_camera(inner)

    def _prepare_camera(self, inner: Any) -> gym.spaces.Space[Any]:
        """Set up the camera for frames, and return the space of observations with frames."""
        quality = inner.model.vis.quality
        quality.shadowsize = quality.offsamples = 0
        inner.model.camera("corner2").pos = CAMERA_POSITION
        state = inner.observation_space
        hand = gym.spaces.Box(state.low[HAND], state.high[HAND], dtype=state.dtype.type)
        shape = (inner.height // OVERSAMPLING, inner.width // OVERSAMPLING, 3)
        pixels = gym.spaces.Box(0, 255, shape, np.uint8)
        if self._obs_type == "pixels_state":
            return gym.spaces.Dict({"pixels": pixels, "state": state})
        return gym.spaces.Dict({"pixels": pixels, "agent_pos": hand})

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Observation, dict[str, object]]:
        """Start an episode with new places of the object and the goal, drawn from the seed.

        They are drawn by one reset and kept by a second one, as Meta-World's benchmarks do: the observation
        of the first shows where the object was before.
        """
        inner: Any = self.unwrapped
        if seed is not None:
            inner.seed(seed)
        inner._freeze_rand_vec = False
        self.env.reset()
        inner._freeze_rand_vec = True
        return self._observe(*self.env.reset())

    def render(self) -> Any:
        """Return the picture of the camera, upright."""
        picture: Any = self.env.render()
        return picture[::-1, ::-1] if self._upside_down else picture

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, object]]:
        """Execute an action; the episode ends if it succeeds."""
        state, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self._observe(state, info)
        return obs, float(reward), terminated or bool(info["success"]), truncated, info

    def _observe(self, state: Any, info: dict[str, object]) -> tuple[Observation, dict[str, object]]:
        """Return the observation that `obs_type` names, and the info."""
        if self._obs_type == "state":
            return state, info
        if self._frame is None:
            check_mujoco_renderer()  # its errors would otherwise end in a half-made viewer
        if self._frame is None or self.draws_frames:
            self._frame = average_pixels(self.render())
        if self._obs_type == "pixels_state":
            return {"pixels": self._frame, "state": state}, info
        return {"pixels": self._frame, "agent_pos": state[HAND]}, {**info, "state": state}


def average_pixels(picture: np.ndarray) -> np.ndarray:
    """Average squares of `OVERSAMPLING` pixels, (height, width, 3) uint8."""
    height, width, _ = picture.shape
    squares = picture.reshape(height // OVERSAMPLING, OVERSAMPLING, width // OVERSAMPLING, OVERSAMPLING, 3)
    averages: np.ndarray = squares.mean((1, 3)).round().astype(np.uint8)
    return averages


class MetaWorldDrawing(Drawing):
    """The state of a policy that sees frames."""

    def read_state(self, obs: np.ndarray, info: Info) -> np.ndarray:
        """Return all 39 numbers, whatever the policy observes."""
        state: Any = info.get("state", obs)
        return np.asarray(state)


class MetaWorldTraining(TrainingDefaults):
    """Camera frames as another set of observations."""

    observations: Mapping[str, ObservationChoice] = MappingProxyType(
        {
            "pixels": ObservationChoice(
                demos={
                    "obs_columns": tuple(range(HAND.stop)),
                    "images": ("camera",),
                    "encoder": "landmarks",
                },
                env_kwargs={"obs_type": "pixels_agent_pos"},
                recorded_with={"obs_type": "pixels_state"},
                preset=AUTO_PRESET,
                encoders={CAMERA_PRESET: SMALL_ENCODER},
            )
        }
    )


class MetaWorldTask(Task):
    """A task of Meta-World, such as "reach-v3"; success is what its environment reports."""

    reporting = Reporting(
        score_note="Success: Meta-World's own criterion, within 500 steps. Return: the sum of rewards up to "
        "then."
    )

    drawing = MetaWorldDrawing()
    training = MetaWorldTraining()

    def __init__(self, member: str) -> None:
        self.member = member
        self.name = self.env_id = f"metaworld:{member}"

    def make_env(self, **kwargs: object) -> AnyEnv:
        """Make the environment; raise `MissingDependencyError` if Meta-World is not installed."""
        with guard_mujoco():
            import_optional("metaworld", "metaworld")
        arguments = {"max_episode_steps": EPISODE_STEPS, **self.env_kwargs, **kwargs, "member": self.member}
        return make_gym_env(f"{__name__}:{MetaWorldEnv.__name__}", arguments)


for _name in MEMBERS.split():
    TASKS.add(f"metaworld:{_name}-v3", MetaWorldTask(f"{_name}-v3"), module=__name__)
