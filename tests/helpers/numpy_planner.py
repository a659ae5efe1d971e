"""A small policy in numpy that moves towards a goal, predicts its states, and can fail on demand."""

import numpy as np

from nsde_policy.interface.calibration import Calibration
from nsde_policy.interface.planner import Plan, Planner, PolicySpec

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


class Walker(Planner):
    """Planner whose commands move a fifth of the way to a goal drawn from the seed, with some noise."""

    def __init__(self, spec: PolicySpec = SPEC, *, predicts: bool = True) -> None:
        self.spec, self._predicts = spec, predicts

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        rng = np.random.default_rng(seed)
        goal, noise = rng.uniform(-20, 120, 2), rng.normal(0, 0.5, (steps, 2))
        state = states[0].astype(np.float64)
        path = [state]
        for step in range(steps):
            now = path[-1]
            command = now[3:] + 0.2 * (goal - now[3:]) + noise[step]
            path.append(np.concatenate([now[3:], now[2:3], command]))
        predicted = np.stack(path)
        return Plan(predicted[1:, 3:], predicted if self._predicts else None)


class FailingWalker(Walker):
    """Planner that fails on demand: `trouble` is the fault of the next plan."""

    def __init__(self, sim, **options) -> None:
        super().__init__(**options)
        self._sim = sim
        self.trouble: str | None = None

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        trouble, self.trouble = self.trouble, None
        plan = super().plan_from(states, steps=steps, seed=seed)
        match trouble:
            case "raise":
                raise RuntimeError("the network broke")
            case "nan":
                plan.actions[seed % steps, 0] = np.nan
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

    def sleep(self, seconds: float) -> None:
        self.now += seconds
