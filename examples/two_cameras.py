"""Two cameras of different sizes and rates, of which one is lost: top 96 × 96, wrist 160 × 120 at 15 Hz.

    python examples/two_cameras.py out/cameras          # about a quarter of an hour on two cores

Demonstrations hold the newest frame of each camera at every tick, and so does the control loop, at 20 Hz. It
also says when each frame was taken. Training on copies of the demonstrations without one of the cameras lets
the policy go on when a camera is lost.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from simulated_arm import RATE_HZ, SimulatedArm, parse_arguments, play_expert

import nsde_policy
from nsde_policy import Session
from nsde_policy.control import SessionConfig
from nsde_policy.data import DemoWriter
from nsde_policy.policy.base_policy import BasePolicy

SIZES = {"top": (96, 96), "wrist": (160, 120)}
"""Width and height of the frames of each camera."""
FRAMES_PER_SECOND = {"top": 20, "wrist": 15}


class Loss(NamedTuple):
    """A camera that sends no frames from some time on."""

    camera: str
    seconds: float


def find_frames(camera: str, ticks: int) -> np.ndarray:
    """Return the tick at which the newest frame of a camera was taken, for each tick."""
    tick = np.arange(ticks)
    taken = tick * FRAMES_PER_SECOND[camera] // int(RATE_HZ)
    is_new = np.diff(taken, prepend=-1) > 0
    newest: np.ndarray = np.maximum.accumulate(np.where(is_new, tick, 0))
    return newest


def record_held(path: Path, episodes: int) -> Path:
    """Write episodes of the expert in which each frame is held until the next one."""
    with DemoWriter(path, rate_hz=RATE_HZ) as writer:
        for k in range(episodes):
            episode, extras = play_expert(SimulatedArm(k, SIZES), *SIZES)
            held = {name: extras[name][find_frames(name, len(episode))] for name in SIZES}
            writer.append(episode, held)
    return path


def drive_with_cameras(
    policy: BasePolicy, arm: SimulatedArm, *, loss: Loss | None = None, seconds: float = 15.0
) -> Session:
    """Let a policy drive the arm in simulated time; frames arrive less often than states, or no more."""
    now, obs, taken, ticks = 0.0, {}, {}, round(seconds * RATE_HZ)
    frames = {name: find_frames(name, ticks) for name in SIZES}
    config = SessionConfig(rate_hz=RATE_HZ)
    with Session(policy, config, calibration=policy.calibration, clock=lambda: now) as session:
        for tick in range(ticks):
            now = tick / RATE_HZ
            for name, newest in frames.items():
                key = f"observation.images.{name}"
                if newest[tick] == tick:
                    obs[key], taken[key] = arm.look(name), now
                if loss is not None and name == loss.camera and now >= loss.seconds:
                    obs[key] = None
            obs["observation.state"], taken["observation.state"] = arm.state(), now
            arm.send(session.step(obs, taken))
            if arm.delivered:
                break
    return session


def main() -> None:
    """Record, train and drive; the camera on the wrist is lost after three seconds."""
    args = parse_arguments(__doc__)
    store = record_held(args.folder / "demos.zarr", args.episodes)
    policy = nsde_policy.train(
        store,
        out=args.folder / "run",
        images=list(SIZES),
        images_dropout=0.3,
        validation=0.2,
        steps=args.steps,
    )
    print(policy)
    print(nsde_policy.score(policy, store))
    for trial in range(args.trials):
        arm = SimulatedArm(1000 + trial, SIZES)
        session = drive_with_cameras(policy, arm, loss=Loss("wrist", 3.0))
        print(f"block delivered: {arm.delivered}; {session.report().to_text()}")


if __name__ == "__main__":
    main()
