"""Train a policy of a simulated arm as a new user does, and count the blocks that it delivers.

    python benchmarks/arms.py simulated                       # two cores: half an hour per row, or more
    python benchmarks/arms.py teleoperated --device cuda
    python benchmarks/arms.py simulated --seed-start 200000   # while settings are chosen
    python benchmarks/arms.py simulated --full-state          # two minutes per training
    python benchmarks/arms.py simulated --full-state --noise 0.7
    python benchmarks/arms.py simulated --smoke               # all of it, tiny, to see that it works

The arms are those of examples/simulated_arm.py and examples/teleoperated_arm.py. 20 episodes with two cameras
of 96 × 96 are recorded, and 20 with twice the expert's noise. With `--full-state`, the place of the block is
observed in place of frames. `auto` chooses every setting; `--noise` sets the noise augmentation instead. The
policy then drives the arm 50 times. Commands are compared with the demonstrations by their roughness: as
planned, and as sent after the limits of the session.

Run it again to resume: everything that is finished is kept in --out.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nsde_policy
from nsde_policy.errors import NsdePolicyError
from nsde_policy.eval.machine import device_name
from nsde_policy.eval.statistics import proportion
from nsde_policy.files import replace_file
from nsde_policy.interface.planner import Plan
from nsde_policy.interface.roughness import compare_roughness, measure_roughness

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from simulated_arm import MAX_SECONDS, SimulatedArm, drive, record
from teleoperated_arm import TeleoperatedArm

ARMS = {"simulated": SimulatedArm, "teleoperated": TeleoperatedArm}
CAMERAS = ("top", "wrist")
NOISE = {"as recorded": 1.0, "noise doubled": 2.0}
"""Factor on the noise of the expert, by the name of the row."""
SMOKE_STEPS, SMOKE_EPISODES, SMOKE_SECONDS = 3, 5, 1.0
HEADER = """\
| demonstrations | delivered | gripped | roughness, planned | sent | training | machine |
| --- | --- | --- | --- | --- | --- | --- |"""


class RecordingPolicy(nsde_policy.Policy):
    """A policy that keeps the actions that are executed of its plans, without the limits of the session."""

    planned: list[np.ndarray]

    def plan_from(self, states: np.ndarray, *, steps: int, seed: int, candidates: int | None = None) -> Plan:
        """Plan, and keep the actions."""
        plan = super().plan_from(states, steps=steps, seed=seed, candidates=candidates)
        self.planned.extend(plan.actions[: self.chunk])
        return plan


class RecordingArm:
    """An arm that keeps the commands that it gets, and whether it gripped the block."""

    def __init__(self, arm: SimulatedArm) -> None:
        self.arm, self.commands, self.gripped = arm, list[np.ndarray](), False

    def send(self, command: np.ndarray) -> None:
        """Keep a command, and move."""
        self.commands.append(command)
        self.arm.send(command)
        self.gripped |= self.arm.holds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arm, name)


def train(
    store: Path, run: Path, cameras: Sequence[str], device: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Train with the settings that `auto` chooses; return seconds, unknown after a pause, and the machine."""
    file = run.with_suffix(".json")
    if not file.exists():
        began, resume = time.time(), run.exists()
        policy = nsde_policy.train(store, out=run, images=cameras, device=device, resume=resume, **changes)
        seconds = None if resume else time.time() - began
        replace_file(file, json.dumps({"seconds": seconds, "machine": device_name(policy.device)}))
    trained: dict[str, Any] = json.loads(file.read_text())
    return trained


def deliver(
    run: Path,
    file: Path,
    arms: Sequence[tuple[int, SimulatedArm]],
    cameras: Sequence[str],
    device: str,
    seconds: float,
) -> list[dict[str, Any]]:
    """Let the policy drive each arm in a session, by seed; resume after the episodes in the file."""
    played: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    policy = RecordingPolicy.from_pretrained(run).to(device)
    for seed, simulated in arms:
        if str(seed) not in played:
            policy.planned, arm = [], RecordingArm(simulated)
            delivered = drive(policy, arm, *cameras, seconds=seconds)
            played[str(seed)] = {
                "delivered": bool(delivered),
                "gripped": bool(arm.gripped),
                "planned": compare(policy, policy.planned),
                "sent": compare(policy, arm.commands),
            }
            replace_file(file, json.dumps(played))
    return [played[str(seed)] for seed, _ in arms]


def compare(policy: nsde_policy.Policy, commands: Sequence[np.ndarray]) -> float | None:
    """Return how many times as rough as the demonstrations commands are."""
    roughness = measure_roughness([np.stack(commands)], policy.spec)
    return compare_roughness(roughness, policy.calibration.roughness)


def measure_row(name: str, args: argparse.Namespace) -> str:
    """Record, train and deliver what is missing; return a row of the table."""
    make_arm, noise = ARMS[args.arm], NOISE[name]
    cameras = () if args.full_state else CAMERAS
    kind = [args.arm, "full_state" * args.full_state, f"noise_{args.noise}" * (args.noise is not None)]
    folder = args.out / "_".join(filter(None, [*kind, "smoke" * args.smoke])) / name.replace(" ", "_")
    store, steps, episodes, trials, seconds = folder / "demos.zarr", args.steps, 20, 50, MAX_SECONDS
    if args.smoke:
        steps, episodes, trials, seconds = SMOKE_STEPS, SMOKE_EPISODES, 1, SMOKE_SECONDS
    settings = {"steps": steps, "model.noise": args.noise}
    changes = {setting: value for setting, value in settings.items() if value is not None}
    if not store.exists():
        partial = store.with_name("partial.zarr")
        shutil.rmtree(partial, ignore_errors=True)
        record(partial, *cameras, episodes=episodes, make_arm=lambda seed: make_arm(seed, noise=noise))
        partial.rename(store)
    trained = train(store, folder / "run", cameras, args.device, changes)
    seeds = range(args.seed_start, args.seed_start + trials)
    file = folder / f"played_{args.seed_start}.json"
    arms = [(seed, make_arm(seed)) for seed in seeds]
    played = deliver(folder / "run", file, arms, cameras, args.device, seconds)
    planned, sent = (np.sqrt(np.mean([each[key] ** 2 for each in played])) for key in ("planned", "sent"))
    delivered, gripped = (sum(each[key] for each in played) for key in ("delivered", "gripped"))
    time_taken = "–" if trained["seconds"] is None else f"{trained['seconds'] / 60:.0f} min"
    share = f"{delivered} of {trials}, {proportion(delivered, trials)}"
    return (
        f"| {name} | {share} | {gripped} | {planned:.1f} | {sent:.1f} | {time_taken} | {trained['machine']} |"
    )


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arm", choices=ARMS)
    parser.add_argument("--full-state", action="store_true", help="observe the block, not its pictures")
    parser.add_argument("--noise", type=float, help="noise augmentation; default: as auto chooses")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--steps", type=int, help="training steps; default: as auto chooses")
    parser.add_argument("--seed-start", type=int, default=100_000, help="first seed of the deliveries")
    parser.add_argument("--out", type=Path, default=Path("out/arms"), help="folder of all results")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes of everything")
    args = parser.parse_args()
    try:
        rows = [measure_row(name, args) for name in NOISE]
    except NsdePolicyError as error:
        parser.error(str(error))
    print("\n".join([HEADER, *rows]))


if __name__ == "__main__":
    main()
