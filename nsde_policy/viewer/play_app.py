"""Policies that run live, one or two side by side, under people's hands."""

import time
from collections.abc import Sequence
from typing import Any

from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.errors import ConfigError, EnvInputError, ProtocolError
from nsde_policy.methods.neural_sde.config import SamplingConfig
from nsde_policy.viewer.app import table
from nsde_policy.viewer.controls import RANGES, Controls
from nsde_policy.viewer.messages import (
    Choose,
    Command,
    Greet,
    Hold,
    Pause,
    Release,
    Reset,
    Scrub,
    Set,
    Step,
    following,
)
from nsde_policy.viewer.policy_runner import Lane, Performer

REST = 2 * CONTROL_HZ
"""Control periods that a success is shown before the next seed follows, where that is wanted."""
_PUSHT = (5, 2)
_REPLANS = ("alpha", "diffusion", "chunk")
"""Controls that a plan depends on."""


class Play:
    """A `Stage` of lanes."""

    def __init__(self, performers: Sequence[Performer], *, seed: int, patience_s: float = 0.1) -> None:
        """`patience_s` is how long a control period waits for a plan before others are listened to again;
        simulated time stands still until it is there.
        """
        for performer in performers:
            spec = performer.policy.spec
            if (spec.obs_dim, spec.act_dim) != _PUSHT:
                raise ConfigError(
                    f"{performer.name} takes {spec.obs_dim} numbers and answers {spec.act_dim}; "
                    "what can be played here is Push-T from its state, 5 in and 2 out"
                )
        self._performers = {performer.name: performer for performer in performers}
        self._controls = Controls.of(performers[0].policy)
        self._lanes = [Lane(performers[0], seed)]
        self._seed, self._epoch, self._rested, self.revision = seed, 0, 0, 0
        self._patience_s = patience_s
        self._paused = self._one_step = False
        self._viewed: int | None = None
        self._hand: Hold | None = None
        self._letting_go = self._replan = False

    @property
    def hello(self) -> dict[str, Any]:
        """The table, the methods there are, and the ranges of the controls."""
        return {
            **table("play"),
            "ranges": RANGES,
            "methods": [
                {
                    "name": p.name,
                    "title": p.title,
                    "sde": isinstance(p.policy.model.config.sampling, SamplingConfig),
                    "longest": p.policy.model.config.longest_chunk,
                }
                for p in self._performers.values()
            ],
        }

    @property
    def period_s(self) -> float:
        """A tenth of a second at speed 1."""
        return 1.0 / (CONTROL_HZ * self._controls.speed)

    def state(self) -> dict[str, Any]:
        """Controls, lanes, and the coverage of every remembered moment."""
        world = self._lanes[0].world
        return {
            "type": "state",
            "controls": self._controls.to_dict(),
            "lanes": [lane.performer.name for lane in self._lanes],
            "seed": self._seed,
            "paused": self._paused,
            "epoch": self._epoch,
            "first": world.first,
            "coverage": [[round(c, 3) for c in lane.world.coverage] for lane in self._lanes],
            "latency": {p.name: p.latency(self._controls) for p in self._performers.values()},
        }

    def frame(self) -> dict[str, Any]:
        """The moment that is looked at, in every lane."""
        world = self._lanes[0].world
        return {
            "type": "frame",
            "epoch": self._epoch,
            "first": world.first,
            "last": world.last,
            "at": world.last if self._viewed is None else self._viewed,
            "paused": self._paused,
            "lanes": [lane.look(self._controls, self._viewed) for lane in self._lanes],
        }

    def tick(self) -> bool:
        """Step every lane; where all rest, wait."""
        if self._paused and self._hand is None and not self._one_step:
            return False
        if self._hand is None and all(lane.solved for lane in self._lanes):
            self._rested += 1
            if not self._controls.onward or self._rested < REST:
                return False
            self._reset(following(self._seed))
            return True
        self._step()
        return True

    def handle(self, command: Command) -> None:
        """Do what a page asks for."""
        self._obey(command)
        if not isinstance(command, Hold | Release | Scrub):
            self.revision += 1

    def _obey(self, command: Command) -> None:
        match command:
            case Pause(on):
                self._paused, self._one_step = on, False
                if not on:
                    self._go_on_from_here()
            case Step():
                self._go_on_from_here()
                self._paused = self._one_step = True
            case Reset(seed):
                self._reset(seed)
            case Scrub(period):
                world = self._lanes[0].world
                self._paused, self._one_step = True, False
                self._viewed = min(max(period, world.first), world.last)
            case Set(name, value):
                self._controls = self._controls.turned(name, value)
                if name in _REPLANS:
                    self._replan = True
                    for performer in self._performers.values():
                        performer.plan_s.clear()  # of plans of another kind
            case Choose(names):
                self._choose(names)
            case Hold():
                self._hold(command)
            case Release():
                self._letting_go = self._hand is not None
            case Greet():
                pass
            case _:
                raise ProtocolError(f"{type(command).__name__.lower()} is for recording: nsde-policy collect")

    def close(self, patience_s: float) -> bool:
        """Make no more plans; whether those being made have ended within so many seconds."""
        for lane in self._lanes:
            lane.leave()
        ends = time.monotonic() + patience_s
        threads = [performer.thread for performer in self._performers.values()]
        ended = [thread.close(max(0.0, ends - time.monotonic())) for thread in threads]  # every one of them
        return all(ended)

    def _step(self) -> None:
        """Run one control period in every lane; where somebody still thinks, all wait, but for a hand."""
        if self._replan:
            for lane in self._lanes:
                lane.forget_plan()
            self._replan = False
        acting = not self._paused or self._one_step
        thinks = [acting and lane.thinks(self._controls, self._patience_s) for lane in self._lanes]
        if self._hand is None and any(thinks):
            return
        for i, (lane, busy) in enumerate(zip(self._lanes, thinks, strict=True)):
            lane.step(self._hand if self._reaches(i) else None, acts=acting and not busy)
        self._rested, self._one_step = 0, False
        if self._letting_go:
            for i, lane in enumerate(self._lanes):
                if self._reaches(i):
                    lane.let_go()
            self._hand, self._letting_go = None, False

    def _reaches(self, lane: int) -> bool:
        return self._hand is not None and (self._controls.together or self._hand.lane == lane)

    def _hold(self, hand: Hold) -> None:
        """Where time stands still it goes on while the hand is there, though the policy does not act."""
        if hand.lane >= len(self._lanes):  # there were two a moment ago
            raise EnvInputError(f"there is one table now, got a hand on number {hand.lane}")
        self._go_on_from_here()
        self._hand, self._letting_go = hand, False

    def _go_on_from_here(self) -> None:
        """Make the moment that is looked at the present."""
        if self._viewed is None:
            return
        if self._viewed < self._lanes[0].world.last:
            for lane in self._lanes:
                lane.restore(self._viewed)
            self._epoch += 1
            self.revision += 1
        self._viewed = None

    def _reset(self, seed: int) -> None:
        self._seed, self._viewed, self._hand, self._letting_go, self._rested = seed, None, None, False, 0
        self._one_step = False
        self._epoch += 1
        self.revision += 1
        for lane in self._lanes:
            lane.reset(seed)

    def _choose(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self._performers]
        if unknown:
            raise ProtocolError(
                f"there is no method {unknown[0]!r:.60}; there are: {', '.join(self._performers)}"
            )
        for lane in self._lanes:
            lane.leave()
        self._lanes = [Lane(self._performers[name], self._seed) for name in names]
        self._reset(self._seed)
