"""Control sessions in simulated time, with the small policy of `numpy_planner`."""

import numpy as np

from nsde_policy.control import Session, SessionConfig
from nsde_policy.control.limits import Limits
from tests.helpers.numpy_planner import CALIBRATION, Walker
from tests.helpers.simulated_time import SimulatedWorker

OBS = np.array([50.0, 40.0, 1.0])
PERIOD = 0.1
NO_LIMITS = Limits(np.full(2, -1e6), np.full(2, 1e6), np.full(2, 1e9), np.full(2, 1e12))


def make_session(sim, planner=None, *, delay_s=None, worker=None, **settings):
    """Open a session on a simulated clock; with `delay_s`, it plans ahead in a simulated worker."""
    if delay_s is not None:
        settings["plan_ahead"] = True
        worker = SimulatedWorker(sim.clock, delay_s=delay_s)
    config = SessionConfig(**settings)
    return Session(planner or Walker(), config, calibration=CALIBRATION, clock=sim.clock, worker=worker)


def run_session(session, sim, n, *, rate=10.0, follow=True):
    """Return the commands of n control periods; the robot reaches each command one policy period later."""
    origin, obs, commands = sim.now, OBS.copy(), []
    for tick in range(n):
        sim.now = max(sim.now, origin + tick / rate)
        commands.append(session.step(obs, sim.now))
        if follow:
            obs[:2] = commands[max(0, len(commands) - 1 - int(rate * PERIOD) + 1)]
    return np.array(commands)
