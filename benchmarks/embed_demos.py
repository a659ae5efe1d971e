"""Make the demonstrations that come with the package: successful episodes of the shipped policy.

    python benchmarks/embed_demos.py --episodes 220

What `nsde-policy collect --policy shipped --only-success` collects, in one zip file. Seeds 300000 and up are
neither reported nor tuned on.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path

from nsde_policy.assets import EMBEDDED_DEMOS, SHIPPED
from nsde_policy.eval.generate import GenerateConfig, generate


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=220, help="successes to keep")
    parser.add_argument("--out", type=Path, default=EMBEDDED_DEMOS)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "pusht_demos.zarr"
        kept = generate(SHIPPED, store, GenerateConfig(args.episodes, only_success=True))
        with zipfile.ZipFile(args.out, "w") as archive:
            for file in sorted(store.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(store))
    print(f"{args.out}: {len(kept)} successes, {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
