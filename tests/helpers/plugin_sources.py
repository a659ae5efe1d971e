"""Source files of a third-party method, task and reader, which tests install or copy into the package."""

from pathlib import Path

import numpy as np

METHOD = '''
"""Linear regression of an action chunk."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsde_policy.config import Preset, Sampling, TrainConfig, WindowConfig
from nsde_policy.core.networks import weights_from
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.state import StateLayout
from nsde_policy.core.targets import Windows
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, Stage
from nsde_policy.methods.registry import register_method


@dataclass(frozen=True)
class LinearConfig(WindowConfig):
    """Settings of linear regression."""

    horizon: int = 5
    """Actions predicted."""
    noise: float = 0.0
    """Noise added to actions."""


QUICK = Preset(LinearConfig(), TrainConfig(steps=300, batch_size=64, learning_rate=0.05, ema=0), chunk=4)


@register_method(
    "linear", title="Linear regression", config=LinearConfig, presets={"default": QUICK, "fast": QUICK}
)
class LinearPolicy(PolicyModel[Windows]):
    """Actions that are linear in the states."""

    def __init__(self, config: LinearConfig, layout: StateSpec, *, generator: torch.Generator) -> None:
        super().__init__()
        self.config, self.layout = config, StateLayout(layout)
        with weights_from(generator):
            self.network = nn.Linear(
                config.history * self.layout.feature_dim, config.horizon * layout.act_dim
            )

    def loss(self, batch: Windows, generator: torch.Generator) -> LossParts:
        error = self._predict(batch.states) - self.layout.to_unit(batch.actions)
        return LossParts({"square": error.square().mean()})

    def stages(self) -> tuple[Stage, ...]:
        return (Stage(("square",), tuple(self.parameters())),)

    @torch.no_grad()
    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        present = self.config.history - 1
        actions = self.layout.from_unit(self._predict(states)[:, present : present + steps])
        return actions + self.config.noise * draws.normal(*actions.shape[1:])

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        return 1

    def _predict(self, states: Tensor) -> Tensor:
        features = self.layout.features(states).flatten(-2)
        return self.network(features).reshape(len(states), self.config.horizon, -1)
'''

TASK = '''
"""Move a point to the origin."""

from nsde_policy.run_config import DemoConfig
from nsde_policy.tasks.base import Outcome, Task
from nsde_policy.tasks.registry import register_task


@register_task
class ReachTask(Task):
    """A point in the plane whose action is its next position."""

    name = "reach"
    rate_hz = 5.0
    score_name = "closeness"
    demos = DemoConfig(first_action_from=(0, 1))

    def make_env(self, **kwargs):
        import gymnasium as gym
        import numpy as np

        class ReachEnv(gym.Env):
            observation_space = gym.spaces.Box(-2.0, 2.0, (2,))
            action_space = gym.spaces.Box(-2.0, 2.0, (2,))

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                self.position = self.np_random.uniform(-1.0, 1.0, 2)
                return self.position.copy(), {"distance": 9.0}

            def step(self, action):
                self.position = np.asarray(action, float)
                distance = float(np.linalg.norm(self.position))
                return self.position.copy(), 0.0, False, False, {"distance": distance}

        return gym.wrappers.TimeLimit(ReachEnv(**kwargs), 12)

    def outcome(self, rewards, infos):
        distance = infos[-1]["distance"]
        return Outcome(distance < 0.1, 1.0 - distance, {"distance": distance})
'''

READER = '''
"""Demonstrations in one text file: observation and action columns, an empty line after each episode."""

import numpy as np

from nsde_policy.data.readers.base import Reader
from nsde_policy.data.readers.registry import register_reader
from nsde_policy.data.types import Demonstrations, Episode


@register_reader
class TableReader(Reader):
    name = "table"

    def probe(self, path):
        return path.suffix == ".table"

    def load(self, path, *, obs_keys, act_key, angles, act_angles, rate_hz):
        blocks = path.read_text().strip().split("\\n\\n")
        tables = [np.array([line.split() for line in block.splitlines()], np.float32) for block in blocks]
        episodes = [Episode(table[:, :-2], table[:, -2:]) for table in tables]
        return Demonstrations.from_episodes(episodes, angles=angles or (), rate_hz=rate_hz or 5.0)
'''

PYPROJECT = """
[build-system]
requires = ["setuptools>=68"]
build-backend = "setuptools.build_meta"

[project]
name = "reach-plugin"
version = "1.2.3"

[project.entry-points."nsde_policy.methods"]
linear = "reach_plugin.linear"

[project.entry-points."nsde_policy.tasks"]
reach = "reach_plugin.reach"

[project.entry-points."nsde_policy.readers"]
table = "reach_plugin.table"

[tool.setuptools]
packages = ["reach_plugin"]
"""


def write_package(folder: Path) -> Path:
    """Write the source tree of a distribution with a method, a task and a reader."""
    package = folder / "reach_plugin"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    sources = {"__init__": "", "linear": METHOD, "reach": TASK, "table": READER}
    for name, source in sources.items():
        (package / f"{name}.py").write_text(source)
    return folder


def reach_episodes(count: int = 20) -> list[tuple[np.ndarray, np.ndarray]]:
    """Make demonstrations of the task: each action is 0.6 times the position, which it becomes."""
    rng, episodes = np.random.default_rng(0), []
    for _ in range(count):
        obs = rng.uniform(-1, 1, 2) * 0.6 ** np.arange(13)[:, None]
        episodes.append((obs[:-1].astype("f4"), obs[1:].astype("f4")))
    return episodes


def write_table(path: Path) -> Path:
    """Write demonstrations of the task for the third-party reader."""
    blocks = [
        "\n".join(" ".join(map(str, [*o, *a])) for o, a in zip(obs, act, strict=True))
        for obs, act in reach_episodes()
    ]
    path.write_text("\n\n".join(blocks) + "\n")
    return path
