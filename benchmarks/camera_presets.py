"""Train presets for your own robot with cameras, and score them on held-out episodes.

    python benchmarks/camera_presets.py --presets pixels-fast             # two cores: minutes
    python benchmarks/camera_presets.py --presets auto --device cuda      # a GPU

The robot is the simulated arm of examples/: 20 episodes of 8 s with two cameras of 96 × 96, of which a fifth
is held out. The policy then drives the arm 50 times. A preset that was trained before is only scored again.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import nsde_policy
from nsde_policy.eval.latency import device_name
from nsde_policy.files import replace_file

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from simulated_arm import SimulatedArm, drive, record

CAMERAS = ("top", "wrist")
FIRST_SEED = 1000


def measure(preset: str, folder: Path, device: str, steps: int | None, trials: int) -> dict[str, object]:
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
        }
        policy = nsde_policy.train(folder / "demos.zarr", run, images=CAMERAS, **settings)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        timing = {"device": device_name(device), "seconds": time.time() - began, "cpu_seconds": cpu_s}
    score = policy.evaluate(folder / "demos.zarr")
    errors = {name: score.error(name).compute()[[0, -1]].tolist() for name in ("sample", "repeat")}
    driven = [drive(policy, SimulatedArm(FIRST_SEED + k), *CAMERAS) for k in range(trials)]
    found = {
        **timing,
        "verdict": repr(score).splitlines(),
        "errors": errors,
        "delivered": [sum(driven), trials],
    }
    replace_file(file, json.dumps(found, indent=2))
    return found


def main() -> None:
    """Parse the command line, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["pixels-fast"], help="pixels-fast, auto")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--episodes", type=int, default=20, help="recorded episodes")
    parser.add_argument("--steps", type=int, help="fewer steps, for a smoke test")
    parser.add_argument("--trials", type=int, default=50, help="times that the policy drives the arm")
    parser.add_argument(
        "--out", type=Path, default=Path("out/cameras"), help="folder of demonstrations and runs"
    )
    args = parser.parse_args()
    if not (args.out / "demos.zarr").exists():
        record(args.out / "demos.zarr", *CAMERAS, episodes=args.episodes)
    for preset in args.presets:
        found = measure(preset, args.out, args.device, args.steps, args.trials)
        print(f"{preset}: {json.dumps(found, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
