"""Two cameras at other rates than the robot: top at 10 Hz, wrist at 5 Hz, joints at 20 Hz.

    python examples/two_cameras.py out/cameras          # about a quarter of an hour on two cores

Demonstrations hold the newest frame of each camera at every tick, and so does the control loop. It also says
when each frame was taken, so that a camera that stops is a fault.
"""

from pathlib import Path

import numpy as np
from simulated_arm import RATE_HZ, SimulatedArm, parse_arguments, play_expert

import nsde_policy
from nsde_policy import Session
from nsde_policy.control import SessionConfig
from nsde_policy.data import DemoWriter

TICKS = {"top": 2, "wrist": 4}
"""Ticks of the control loop from one frame to the next."""


def record_held(path: Path, episodes: int) -> Path:
    """Write episodes of the expert in which each frame is held until the next one."""
    with DemoWriter(path, rate_hz=RATE_HZ) as writer:
        for k in range(episodes):
            episode, extras = play_expert(SimulatedArm(k), *TICKS)
            tick = np.arange(len(episode))
            held = {name: extras[name][tick - tick % every] for name, every in TICKS.items()}
            writer.append(episode, held)
    return path


def drive_with_cameras(policy: nsde_policy.Policy, arm: SimulatedArm, seconds: float = 15.0) -> Session:
    """Let a policy drive the arm in simulated time; frames arrive less often than states."""
    now, obs, taken = 0.0, {}, {}
    config = SessionConfig(rate_hz=RATE_HZ, max_age_s=0.3, max_frozen_s=0.5)
    with Session(policy, config, calibration=policy.calibration, clock=lambda: now) as session:
        for tick in range(round(seconds * RATE_HZ)):
            now = tick / RATE_HZ
            for name, every in TICKS.items():
                if tick % every == 0:
                    obs[f"observation.images.{name}"] = arm.look(name)
                    taken[f"observation.images.{name}"] = now
            obs["observation.state"], taken["observation.state"] = arm.state(), now
            arm.send(session.step(obs, taken))
            if arm.delivered:
                break
    return session


def main() -> None:
    """Record, train and drive."""
    args = parse_arguments(__doc__)
    store = record_held(args.folder / "demos.zarr", args.episodes)
    policy = nsde_policy.train(
        store, args.folder / "run", images=list(TICKS), validation=0.2, steps=args.steps
    )
    print(policy)
    print(policy.evaluate(store))
    for trial in range(args.trials):
        arm = SimulatedArm(1000 + trial)
        session = drive_with_cameras(policy, arm)
        print(f"block delivered: {arm.delivered}; {session.report().to_text().splitlines()[0]}")


if __name__ == "__main__":
    main()
