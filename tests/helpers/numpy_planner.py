"""A small policy in numpy: it walks towards a goal, foresees the way there, and can be made to fail."""

import numpy as np

from nsde_policy.inference.calibration import Calibration
from nsde_policy.inference.spec import Plan, PolicySpec

SPEC = PolicySpec(
    obs_dim=3,
    act_dim=2,
    history=2,
    chunk=4,
    longest_chunk=0,
    first_action_from=(0, 1),
    circular=(2,),
    low=(0.0, 0.0, 0.0, 0.0, 0.0),
    high=(100.0, 100.0, 6.3, 100.0, 100.0),
    increment_std=(2.0, 2.0, 0.1, 2.0, 2.0),
)
CALIBRATION = Calibration(
    rate_hz=10.0, step=(10.0, 8.0), acceleration=(6.0, 5.0), mean=(), precision=(), threshold=0.0
)


class Walker:
    """Commands go a fifth of the way to a goal that the seed moves, with some noise; the robot follows."""

    def __init__(self, spec: PolicySpec = SPEC, *, foresees: bool = True) -> None:
        self.spec, self._foresees = spec, foresees

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        rng = np.random.default_rng(seed)
        goal, noise = rng.uniform(-20, 120, 2), rng.normal(0, 0.5, (steps, 2))
        state = states[0].astype(np.float64)
        path = [state]
        for step in range(steps):
            now = path[-1]
            command = now[3:] + 0.2 * (goal - now[3:]) + noise[step]
            path.append(np.concatenate([now[3:], now[2:3], command]))
        way = np.stack(path)
        return Plan(way[1:, 3:], way if self._foresees else None)


class FailingWalker(Walker):
    """Fails when told to: `trouble` is what goes wrong with the next plan; `failed` is what did."""

    def __init__(self, sim, **options) -> None:
        super().__init__(**options)
        self._sim = sim
        self.trouble: str | None = None
        self.failed: list[str] = []
        self.asked: list[tuple[float, int]] = []

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int) -> Plan:
        self.asked.append((self._sim.now, steps))
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            self.failed.append(trouble)
        plan = super().plan_from(states, steps=steps, seed=seed)
        match trouble:
            case "raise":
                raise RuntimeError("the network broke")
            case "nan":
                plan.actions[seed % steps, 0] = np.nan
            case "inf":
                plan.actions[0] = np.inf
            case "shape":
                return Plan(plan.actions[:, :1])
            case "empty":
                return Plan(plan.actions[:0])
            case "slow":
                self._sim.now += 0.06 + 0.05 * (seed % 10)
        return plan


class Sim:
    """A simulated clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now
