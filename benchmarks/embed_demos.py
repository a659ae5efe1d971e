"""Make the demonstrations that come with the package: successful episodes of the shipped policy.

    python benchmarks/embed_demos.py --episodes 220

Plays seeds 300000 and up, which are neither reported nor tuned on, and keeps the successes.
"""

import argparse
import shutil
import tempfile
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from nsde_policy import __version__
from nsde_policy.assets import EMBEDDED_DEMOS
from nsde_policy.data import PUSHT_ANGLES, DemoWriter, Episode
from nsde_policy.envs import PUSHT_ID
from nsde_policy.eval.rollout import RolloutConfig, Trace, one_thread, play
from nsde_policy.policy import NSDEPolicy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=220, help="successes to keep")
    parser.add_argument("--seed-start", type=int, default=300_000)
    parser.add_argument("--out", type=Path, default=EMBEDDED_DEMOS)
    args = parser.parse_args()

    policy = NSDEPolicy.from_pretrained()
    env = gym.make(PUSHT_ID)
    provenance = {
        "made_by": "benchmarks/embed_demos.py",
        "policy": "nsde_policy/assets/pusht, trained on the human demonstrations "
        f"{policy.record.demos.fingerprint} with seed {policy.record.seed}",
        "env": PUSHT_ID,
        "reset_rule": "benchmark",
        "first_seed": args.seed_start,
        "kept": "successful episodes only",
        "nsde_policy": __version__,
    }
    with tempfile.TemporaryDirectory() as folder, one_thread():
        store = Path(folder) / "pusht_demos.zarr"
        seed, kept = args.seed_start, 0
        with (
            DemoWriter(store, rate_hz=10, angles=PUSHT_ANGLES, provenance=provenance) as writer,
            tqdm(total=args.episodes, unit="episode") as bar,
        ):
            while kept < args.episodes:
                trace = Trace()
                if play(policy, env, seed, RolloutConfig(), trace).success:
                    writer.append(Episode(np.float32(trace.obs[:-1]), np.float32(trace.actions)))
                    kept += 1
                    bar.update()
                seed += 1
        packed = Path(folder) / args.out.name
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted(store.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(store))
        args.out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(packed, args.out)
    tried = seed - args.seed_start
    print(f"{args.out}: {kept} successes of {tried} episodes, {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
