"""Many episodes side by side in one process, for evaluation."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from nsde_policy.errors import EnvInputError


class EpisodeVectorEnv(gym.vector.VectorEnv[Any, np.ndarray, np.ndarray]):
    """`num_envs` independent episodes of one environment, each played once.

    A finished episode leaves the batch: it is stepped no more, its index leaves `active`, and its
    row keeps its last observation and its `terminated`/`truncated`, with reward 0. A policy need
    answer only for the rows of `active`:

        obs, info = envs.reset(seed=[100000, 100001, 100002])
        while len(envs.active):
            actions[envs.active] = policy(obs[envs.active])
            obs, reward, terminated, truncated, info = envs.step(actions)

    Every episode has a world and a generator of its own, so what happens in row i depends on its
    seed and its actions alone: not on the other rows, their number, their order, or the process.
    """

    envs: Sequence[gym.Env[Any, np.ndarray]] = ()  # Gymnasium closes even what was refused

    def __init__(self, env_id: str, num_envs: int, **env_kwargs: Any) -> None:
        if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
            raise EnvInputError(
                f"a batch needs a whole number of episodes from 1 on, got num_envs={num_envs!r}"
            )
        self.envs = [gym.make(env_id, **env_kwargs) for _ in range(num_envs)]
        first = self.envs[0]
        self.num_envs = num_envs
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = first.render_mode
        self.spec = first.spec
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._obs: list[Any] = []
        self._terminated = np.ones(num_envs, dtype=np.bool_)
        self._truncated = np.zeros(num_envs, dtype=np.bool_)

    @property
    def active(self) -> np.ndarray:
        """Indices of the episodes that are still running, increasing."""
        return np.flatnonzero(~(self._terminated | self._truncated))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | np.ndarray | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start all episodes: seeds one by one, or the first of `num_envs` consecutive ones."""
        seeds = self._one_each(seed)
        self._obs = []
        infos: dict[str, Any] = {}
        for i, (env, env_seed) in enumerate(zip(self.envs, seeds, strict=True)):
            obs, info = env.reset(seed=env_seed, options=options)
            self._obs.append(obs)
            infos = self._add_info(infos, info, i)
        self._terminated[:] = False
        self._truncated[:] = False
        return self._stacked(), infos

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step the active episodes; rows of `actions` that belong to finished ones are ignored."""
        if not self._obs:
            raise EnvInputError("the episodes have not begun yet: call reset() first")
        if np.ndim(actions) == 0 or len(actions) != self.num_envs:
            raise EnvInputError(
                f"actions of shape {np.shape(actions)} for {self.num_envs} episodes; give one for each"
            )
        rewards = np.zeros(self.num_envs)
        infos: dict[str, Any] = {}
        for i in self.active:
            obs, reward, terminated, truncated, info = self.envs[i].step(actions[i])
            self._obs[i], rewards[i] = obs, reward
            self._terminated[i], self._truncated[i] = terminated, truncated
            infos = self._add_info(infos, info, i)
        return self._stacked(), rewards, self._terminated.copy(), self._truncated.copy(), infos

    def render(self) -> tuple[Any, ...] | None:
        """Return every episode's frame."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **_: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _one_each(self, seed: int | Sequence[int | None] | np.ndarray | None) -> Sequence[int | None]:
        """A seed for every episode; `PushTEnv` checks each of them."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return range(int(seed), int(seed) + self.num_envs)
        seeds = np.asarray(seed, dtype=object)
        if seeds.shape != (self.num_envs,):
            raise EnvInputError(f"seeds {seed!r:.60} for {self.num_envs} episodes; give one for each")
        return [s.item() if isinstance(s, np.integer) else s for s in seeds.tolist()]

    def _stacked(self) -> Any:
        """Observations of all rows in a fresh array: an earlier answer never changes later."""
        out: Any = create_empty_array(self.single_observation_space, n=self.num_envs)
        return concatenate(self.single_observation_space, self._obs, out)
