"""Sampling speed against torchsde: the same network, Euler steps, the same number of paths.

    python benchmarks/sde_speed.py [--paths 10000] [--steps 100] [--rounds 7] [--threads 1] [--json FILE]

Runs alternate, and the result is the median of the ratios of neighbouring runs, so that a drift of the
machine's speed favours neither side.

The first row is the fair one. By default torchsde 0.2.6 adds one extra step of almost zero length on this
grid by rounding, and prepares its Brownian motion for steps that short, which takes more than a second.
Passing dt to the Brownian motion avoids it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchsde
from torch import Tensor

from nsde_policy.core.networks import MLP
from nsde_policy.core.sde import AbstractSDE, Coefficients, euler_maruyama

DIM = 2


class NetworkSDE(AbstractSDE):
    """One MLP for drift and log diffusion; torchsde calls it through f_and_g."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = MLP(DIM, 2 * DIM, width=128, depth=4, layer_norm=False, generator=generator)

    def coefficients(self, x: Tensor) -> Coefficients:
        drift, log_diffusion = self.net(x).chunk(2, dim=-1)
        return Coefficients(drift, log_diffusion.exp())

    def f_and_g(self, t: Tensor, y: Tensor) -> Coefficients:
        return self.coefficients(y)

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.coefficients(y).drift

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return self.coefficients(y).diffusion


def time_call(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.no_grad()
def measure(paths: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    sde, x0 = NetworkSDE().eval(), torch.zeros(paths, DIM)
    ts = torch.linspace(0, 1, steps + 1)
    generator = torch.Generator().manual_seed(0)

    def ours() -> Tensor:
        return euler_maruyama(sde, x0, dt=1 / steps, steps=steps, generator=generator)

    def torchsde_default() -> Tensor:
        return torchsde.sdeint(sde, x0, ts, method="euler", dt=1 / steps)

    def torchsde_with_dt() -> Tensor:
        bm = torchsde.BrownianInterval(0.0, 1.0, size=x0.shape, dtype=x0.dtype, dt=1 / steps)
        return torchsde.sdeint(sde, x0, ts, bm=bm, method="euler", dt=1 / steps)

    def network_alone() -> None:
        for _ in range(steps):
            sde.coefficients(x0)

    others: dict[str, Callable[[], object]] = {
        "torchsde, Brownian motion told dt": torchsde_with_dt,
        "torchsde, default": torchsde_default,
        "network alone": network_alone,
    }
    rows = []
    for name, other in others.items():
        ours(), other()
        times = [(time_call(ours), time_call(other)) for _ in range(rounds)]
        rows.append(
            {
                "against": name,
                "nsde_policy_s": statistics.median(mine for mine, _ in times),
                "other_s": statistics.median(theirs for _, theirs in times),
                "ratio": statistics.median(theirs / mine for mine, theirs in times),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = measure(args.paths, args.steps, args.rounds)
    print(f"{args.paths} paths of {args.steps} steps, 128×4 MLP, {args.threads} thread(s)")
    print("| against | nsde_policy (s) | the other (s) | other ÷ nsde_policy |")
    print("| --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['against']} | {row['nsde_policy_s']:.3f} | {row['other_s']:.3f} | {row['ratio']:.2f} |"
        )
    if args.json is not None:
        settings = {name: getattr(args, name) for name in ("paths", "steps", "rounds", "threads")}
        args.json.write_text(json.dumps({**settings, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
