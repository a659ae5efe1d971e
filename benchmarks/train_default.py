"""Train the policy that comes with the package: preset `default`, seed 0, alone on the device.

    python benchmarks/train_default.py --demos pusht_cchi_v7_replay.zarr [--ship]

Prints the training time. The run is stored where `pusht_runs.py` finds and scores it. `--ship` copies it to
`nsde_policy/assets/pusht`; make the embedded demonstrations (`embed_demos.py`) and the pictures
(`pictures.py`) again afterwards, because they use that policy.
"""

import argparse
import shutil
import time
from pathlib import Path

import torch
from pusht_runs import make_run

from nsde_policy.assets import SHIPPED_POLICY
from nsde_policy.eval.latency import device_name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demos", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/pusht_runs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=0, help="training steps, for a try")
    parser.add_argument("--ship", action="store_true", help="copy it into the package")
    args = parser.parse_args()

    run = make_run("default", 0, out=args.out, demos=args.demos, device=args.device, steps=args.steps)
    started = time.perf_counter()
    run.prepare()
    prepared = time.perf_counter() - started
    run.finish(alone=True)
    print(
        f"on {device_name(args.device)}, torch {torch.__version__}: {prepared:.1f} s for the demonstrations, "
        f"the model and the first 5 steps (on CUDA with the capture), {run.note.seconds:.1f} s for the other "
        f"{run.config.train.steps - 5} and saving the weights; imports are not counted"
    )
    if args.ship:
        for file in (run.files.config, run.files.model):
            shutil.copy(file, SHIPPED_POLICY)
        print(f"copied to {SHIPPED_POLICY}")


if __name__ == "__main__":
    main()
