"""Demonstrations by hand: the agent follows a pointer at 10 Hz, and a person says what is kept."""

from typing import Any, Literal

import numpy as np

from nsde_policy.data import Episode
from nsde_policy.data.collection import Collection, EpisodeInfo, Provenance
from nsde_policy.data.types import MIN_STEPS
from nsde_policy.envs import PUSHT_ID
from nsde_policy.envs.pusht.dynamics import CONTROL_HZ
from nsde_policy.envs.pusht.env import ResetRule
from nsde_policy.envs.pusht.geometry import SIDE, SUCCESS_COVERAGE
from nsde_policy.errors import EpisodeError, ProtocolError
from nsde_policy.viewer.app import table
from nsde_policy.viewer.messages import (
    Aim,
    Command,
    Discard,
    Greet,
    Keep,
    Release,
    Reset,
    Take,
    Undo,
    following,
)
from nsde_policy.viewer.simulation import Deed, World

Phase = Literal["ready", "recording", "paused", "done"]

LONGEST = 120 * CONTROL_HZ
"""Control periods an episode may have, two minutes."""


def by_hand(reset_rule: ResetRule) -> Provenance:
    """What is noted in a store of demonstrations by hand."""
    return Provenance(
        by="teleoperation",
        settings={"env": PUSHT_ID, "reset_rule": reset_rule},
        notes={"input": "pointer on the page of nsde-policy collect"},
    )


class Teleop:
    """A `Stage` on which a person acts. An episode is

    - ready: the agent waits for a pointer to come to it;
    - recording: every control period, what was seen and where the agent was sent;
    - paused: the pointer has left, or the page has; time stands still until somebody points again;
    - done: the block lies in its goal, or two minutes are over.

    Kept, the next seed follows; discarded, the same seed again.
    """

    period_s = 1.0 / CONTROL_HZ
    _phase: Phase
    _aim: tuple[float, float] | None

    def __init__(
        self, collection: Collection, *, seed_start: int, reset_rule: ResetRule = "benchmark"
    ) -> None:
        self._collection = collection
        held = collection.episodes
        self._world = World(following(held[-1].seed) if held else seed_start, reset_rule)
        self.revision, self._epoch = 0, 0
        self._begin(self._world.seed)

    @property
    def hello(self) -> dict[str, Any]:
        """The table."""
        return table("collect")

    def state(self) -> dict[str, Any]:
        """The store, and how far this episode is."""
        held = self._collection.episodes
        return {
            "type": "state",
            "lanes": ["you"],
            "seed": self._world.seed,
            "paused": False,
            "epoch": self._epoch,
            "first": self._world.first,
            "coverage": [[round(c, 3) for c in self._world.coverage]],
            "store": self._collection.path.name,
            "kept": len(held),
            "solved": sum(each.success for each in held),
            "phase": self._phase,
        }

    def frame(self) -> dict[str, Any]:
        """The moment."""
        world = self._world
        lane = {
            "trail": [[round(v, 2) for v in row[:4]] + [round(row[4], 4)] for row in world.trail],
            "target": [round(v, 1) for v in (self._aim or world.now.obs[:2].tolist())],
            "coverage": round(world.now.coverage, 4),
            "solved": world.now.solved,
            "solved_s": world.solved_s(world.last),
        }
        moments = {"first": world.first, "last": world.last, "at": world.last}
        return {"type": "frame", "epoch": self._epoch, **moments, "paused": False, "lanes": [lane]}

    def tick(self) -> bool:
        """While recording, note what is seen and where the agent is sent, and send it."""
        if self._phase != "recording" or self._aim is None:
            return False
        self._seen.append(self._world.now.obs)
        self._sent.append(self._aim)
        self._world.advance(Deed(self._aim))
        if self._world.now.solved or len(self._seen) >= LONGEST:
            self._phase = "done"
            self.revision += 1
        return True

    def handle(self, command: Command) -> None:
        """Do what a page asks for."""
        self._obey(command)
        if not isinstance(command, Aim):
            self.revision += 1

    def _obey(self, command: Command) -> None:
        match command:
            case Aim(x, y):
                self._aim = min(max(x, 0.0), SIDE), min(max(y, 0.0), SIDE)
                self._turn("paused", "recording")
            case Release():
                self._turn("recording", "paused")
            case Take():
                if self._phase == "ready" and self._aim is not None:
                    self._phase = "recording"
            case Keep():
                self._keep()
            case Discard():
                self._begin(self._world.seed)
            case Undo():
                self._begin(self._collection.undo().seed)
            case Reset(seed):
                self._begin(seed)
            case Greet():
                pass
            case _:
                raise ProtocolError(f"{type(command).__name__.lower()} is for policies: nsde-policy play")

    def _turn(self, before: Phase, after: Phase) -> None:
        if self._phase == before:
            self._phase = after
            self.revision += 1

    def _keep(self) -> None:
        if len(self._seen) < MIN_STEPS:
            raise EpisodeError(
                f"an episode has at least {MIN_STEPS} control periods, this one {len(self._seen)}: move first"
            )
        world = self._world
        best = min(max(world.coverage) / SUCCESS_COVERAGE, 1.0)
        episode = Episode(np.array(self._seen, np.float32), np.array(self._sent, np.float32))
        self._collection.add(episode, EpisodeInfo(world.seed, world.now.solved, best))
        self._begin(following(world.seed))

    def _begin(self, seed: int) -> None:
        self._world.reset(seed)
        self._epoch += 1
        self._phase, self._aim = "ready", None
        self._seen: list[np.ndarray] = []
        self._sent: list[tuple[float, float]] = []
