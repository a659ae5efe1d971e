"""A policy on another machine: a server plans, the robot's computer runs the control loop.

    nsde-policy serve out/gripper/run --device cuda             # on the machine with the GPU
    python examples/remote_gpu.py --url ws://127.0.0.1:8765     # on the robot, through an SSH tunnel
    python examples/remote_gpu.py --run out/gripper/run         # both on this machine

The run is that of examples/arm_with_gripper.py. The client needs no torch. While the connection is lost, the
session brakes and holds.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from simulated_arm import SimulatedArm, drive

from nsde_policy.deploy.client import RemotePolicy


@contextmanager
def serve(run: Path) -> Iterator[str]:
    """Start a server on this machine, and yield its address."""
    command = [sys.executable, "-m", "nsde_policy", "serve", str(run), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait()


def control(url: str, trials: int) -> None:
    """Connect, and drive the simulated arm."""
    with RemotePolicy.connect(url, deadline_s=0.5, timeout_s=2.0) as policy:
        print(policy)
        cameras = [camera.name.rpartition(".")[2] for camera in policy.spec.cameras]
        delivered = [drive(policy, SimulatedArm(1000 + trial), *cameras) for trial in range(trials)]
    print(f"delivered the block in {sum(delivered)} of {trials} trials")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--url", help="address of a server")
    place.add_argument("--run", type=Path, help="run directory to serve on this machine")
    parser.add_argument("--trials", type=int, default=5, help="times that the policy drives the robot")
    args = parser.parse_args()
    with nullcontext(args.url) if args.url else serve(args.run) as url:
        control(url, args.trials)


if __name__ == "__main__":
    main()
