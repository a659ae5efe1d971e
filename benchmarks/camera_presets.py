"""Train presets for your own robot with cameras, and score them on held-out episodes.

    python benchmarks/camera_presets.py --presets pixels-fast             # two cores: minutes
    python benchmarks/camera_presets.py --presets auto --device cuda      # a GPU
    python benchmarks/camera_presets.py --dropout 0.3                     # and one camera is lost

The robot is the simulated arm of examples/: 20 episodes of 8 s with two cameras of 96 × 96, of which a fifth
is held out. The policy then drives the arm 50 times. A preset that was trained before is only scored again.

With --dropout, the cameras are those of examples/two_cameras.py, 96 × 96 and 160 × 120 at 15 Hz. The policy
also drives the arm without one of them from the third second on, each in turn.
"""

import argparse
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

import nsde_policy
from nsde_policy.eval.machine import device_name
from nsde_policy.files import replace_file

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from simulated_arm import SimulatedArm, drive, record
from two_cameras import SIZES, Loss, drive_with_cameras, record_held

CAMERAS = ("top", "wrist")
FIRST_SEED = 1000
LOST_AT_S = 3.0


def measure(
    preset: str, folder: Path, device: str, steps: int | None, trials: int, dropout: float = 0.0
) -> dict[str, object]:
    """Train, or load what was trained before, and score; seconds are those of the training."""
    run, file = folder / preset, folder / f"{preset}.json"
    timing: dict[str, object] = {}
    if file.exists():
        timing = json.loads(file.read_text())
        policy = nsde_policy.Policy.from_pretrained(run)
    else:
        began, used = time.time(), resource.getrusage(resource.RUSAGE_SELF)
        settings = {
            "preset": preset,
            "validation": 0.2,
            "device": device,
            "steps": steps,
            "resume": run.exists(),
            "images_dropout": dropout,
        }
        policy = nsde_policy.train(folder / "demos.zarr", out=run, images=CAMERAS, **settings)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        timing = {"device": device_name(device), "seconds": time.time() - began, "cpu_seconds": cpu_s}
    score = nsde_policy.score(policy, folder / "demos.zarr")
    errors = {name: score.error(name).compute()[[0, -1]].tolist() for name in ("sample", "repeat")}
    figures = {**timing, "verdict": repr(score).splitlines(), "errors": errors}
    if dropout:
        losses = {"none": None, **{name: Loss(name, LOST_AT_S) for name in CAMERAS}}
        figures["lost"] = {name: measure_loss(policy, loss, trials) for name, loss in losses.items()}
    else:
        driven = [drive(policy, SimulatedArm(FIRST_SEED + k), *CAMERAS) for k in range(trials)]
        figures["delivered"] = [sum(driven), trials]
    replace_file(file, json.dumps(figures, indent=2))
    return figures


def measure_loss(policy: nsde_policy.Policy, loss: Loss | None, trials: int) -> dict[str, object]:
    """Drive the arm while a camera is lost; count commands without it, and those beyond the limits."""
    counts = dict.fromkeys(("delivered", "trials", "commands", "without_camera", "held", "outside"), 0)
    faults: Counter[str] = Counter()
    for trial in range(trials):
        arm, sent = SentArm(FIRST_SEED + trial, SIZES), []
        arm.sent = sent
        session = drive_with_cameras(policy, arm, loss=loss)
        report, limits = session.report(), session.resolved.limits
        steps = np.abs(np.diff(sent, axis=0)) > limits.speed / session.config.rate_hz + 1e-9
        outside = (np.array(sent) < limits.low - 1e-9) | (np.array(sent) > limits.high + 1e-9)
        counts["outside"] += int(outside.any(1).sum() + steps.any(1).sum())
        counts["delivered"] += arm.delivered
        counts["trials"] += 1
        counts["commands"] += report.commands
        counts["without_camera"] += sum(report.lost_cameras.values())
        counts["held"] += report.held
        faults.update(report.faults)
    return {**counts, "faults": dict(faults), "last_report": report.to_text().splitlines()}


class SentArm(SimulatedArm):
    """An arm that keeps the commands that it got."""

    sent: list[np.ndarray]

    def send(self, command: np.ndarray) -> None:
        """Keep a command, and move."""
        self.sent.append(command)
        super().send(command)


def main() -> None:
    """Parse the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["pixels-fast"], help="pixels-fast, auto")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--episodes", type=int, default=20, help="recorded episodes")
    parser.add_argument("--steps", type=int, help="fewer steps, for a smoke test")
    parser.add_argument("--trials", type=int, default=50, help="times that the policy drives the arm")
    parser.add_argument("--dropout", type=float, default=0.0, help="--images-dropout, such as 0.3")
    parser.add_argument(
        "--out", type=Path, default=Path("out/cameras"), help="folder of demonstrations and runs"
    )
    args = parser.parse_args()
    store = args.out / "demos.zarr"
    if not store.exists() and args.dropout:
        record_held(store, args.episodes)
    elif not store.exists():
        record(store, *CAMERAS, episodes=args.episodes)
    for preset in args.presets:
        figures = measure(preset, args.out, args.device, args.steps, args.trials, args.dropout)
        print(f"{preset}: {json.dumps(figures, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
