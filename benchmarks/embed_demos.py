"""Make the demonstrations that come with the package, one zip file per task.

    python benchmarks/embed_demos.py pusht
    python benchmarks/embed_demos.py avoiding avoiding_varied

What `nsde-policy collect --only-success` collects: with the shipped policy for Push-T, with a scripted
demonstrator for obstacle avoidance. Seeds 300000 and up are neither reported nor tuned on.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

from nsde_policy.assets import ASSETS, EMBEDDED_FIRST_SEED, SHIPPED
from nsde_policy.eval.generate import GenerateConfig, generate

AVOIDING_EXPERT = "nsde_policy.envs.avoiding.demonstrator:AvoidingExpert"
DEMOS = {
    "pusht": (SHIPPED, 220),
    "avoiding": (AVOIDING_EXPERT, 240),
    "avoiding_varied": (AVOIDING_EXPERT, 240),
}
"""Demonstrator and number of episodes by task."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="+", choices=DEMOS)
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder of the files")
    args = parser.parse_args()

    for task in args.tasks:
        demonstrator, episodes = DEMOS[task]
        out = args.out / f"{task}_demos.zarr.zip"
        config = GenerateConfig(episodes, seed_start=EMBEDDED_FIRST_SEED, env=task, only_success=True)
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / f"{task}_demos.zarr"
            kept = generate(demonstrator, store, config)
            with zipfile.ZipFile(out, "w") as archive:
                for file in sorted(store.rglob("*")):
                    if file.is_file():
                        archive.write(file, file.relative_to(store))
        print(f"{out}: {len(kept)} successes, {out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
