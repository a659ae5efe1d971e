"""Recover known SDEs from 200,000 transitions, by every objective: the errors in docs/results/method.md.

    python benchmarks/recovery.py [--seeds 3] [--json FILE]

Errors are relative L2 errors over the central 95 % of the data. The last rows fit polynomials of degree 5 by
least squares, as a reference for what 200,000 transitions allow.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))
from tests.helpers.known_sdes import (
    OBJECTIVES,
    DoubleWell,
    OrnsteinUhlenbeck,
    fit_polynomial,
    recover,
    simulate,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500, help="training steps")
    parser.add_argument("--json", type=Path, help="also write the errors of every run to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, sde in (("Ornstein–Uhlenbeck", OrnsteinUhlenbeck()), ("double well", DoubleWell())):
        sets = [simulate(sde, seed) for seed in range(args.seeds)]
        runs = {
            label: [recover(sde, data, seed, args.steps, **objective) for seed, data in enumerate(sets)]
            for label, objective in OBJECTIVES.items()
        }
        runs["polynomial, least squares"] = [fit_polynomial(sde, data) for data in sets]
        for label, errors in runs.items():
            drift, diffusion = [each.drift for each in errors], [each.diffusion for each in errors]
            rows.append({"process": name, "objective": label, "drift": drift, "diffusion": diffusion})
            print(rows[-1], flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
