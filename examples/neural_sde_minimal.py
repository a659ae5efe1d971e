"""The whole method in one file: learn a road that forks, then drive along it.

A Neural SDE policy is the equation dx = (f(x) + α d(x)) dt + g(x) dw with three learned functions of the
state: the flow f is the mean velocity of the data, the diffusion g is how far they scatter around it, and
the denoiser d points back to the data. All three are fitted to pairs of consecutive states, without
simulating the equation.

    python examples/neural_sde_minimal.py

Equation numbers refer to the paper (arXiv:2501.18871). Functions are named as in nsde_policy/core/, which
adds histories, angles, weights and other losses.
"""

import argparse
import math

import torch
from torch import Tensor, nn

DT = 0.1  # Δt, time between two states of the data
NOISE_STD = 0.035  # σ of the blur in training: much less than the distance between the branches
ALPHA = (
    2 * NOISE_STD**2
)  # α: the denoiser undoes a fifth of the blur within Δt, as with the setting alpha 0.2
SMALLEST_VARIANCE = NOISE_STD**2  # of g², so that the branches are chosen evenly at the fork
SUBSTEPS = 4  # solver steps within Δt; a step must not jump over the fork


def make_data() -> Tensor:
    """Return two roads, (points, 2 roads, 2): straight on at speed 1, then 30° left or right from t = 4.5."""
    t = DT * torch.arange(100)
    straight, turned = t.clamp(max=4.5), (t - 4.5).clamp(min=0)
    x, y = straight + turned * math.cos(math.pi / 6), turned * math.sin(math.pi / 6)
    return torch.stack([torch.stack([x, y], -1), torch.stack([x, -y], -1)], dim=1)


class Networks(nn.Module):
    """One network with three heads: the flow f, the diffusion as log g², and the denoiser as σ d."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        sizes = [2, *[width] * (depth - 1)]
        layers = [nn.Sequential(nn.Linear(n, width), nn.LayerNorm(width), nn.SiLU()) for n in sizes]
        self.trunk = nn.Sequential(*layers)
        self.drift = nn.Linear(width, 2)
        self.log_variance = nn.Linear(width, 2)
        self.score = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return drift, log_variance and score at states (..., 2), each (..., 2)."""
        h = self.trunk(x / 5)  # positions of about 1
        floor = torch.tensor(math.log(SMALLEST_VARIANCE))
        return self.drift(h), torch.logaddexp(self.log_variance(h), floor), self.score(h)


def flow_loss(drift: Tensor, velocity: Tensor) -> Tensor:
    """Return ½ ‖f − Δx/Δt‖², the square-loss limit of Eq. 24: the flow learns the mean velocity."""
    return 0.5 * (drift - velocity).square().sum(-1).mean()


def diffusion_nll(log_variance: Tensor, drift: Tensor, velocity: Tensor, dt: float) -> Tensor:
    """Return the likelihood of Eq. 16 with the flow held fixed: g² learns what the flow cannot explain."""
    error = (drift.detach() - velocity).square() * dt
    return 0.5 * (error * (-log_variance).exp() + log_variance).sum(-1).mean()


def denoiser_loss(scaled_score: Tensor, unit_noise: Tensor) -> Tensor:
    """Return ‖σ d + ε/σ‖², denoising score matching (Eq. 23): the denoiser learns to undo the blur ε."""
    return (scaled_score + unit_noise).square().sum(-1).mean()


def train(network: Networks, data: Tensor, steps: int = 1000) -> None:
    """Fit all three parts at once to the pairs of consecutive states (Algorithm 1)."""
    x, x_next = data[:-1].flatten(0, 1), data[1:].flatten(0, 1)
    velocity = (x_next - x) / DT
    optimiser = torch.optim.AdamW(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=5e-3, total_steps=steps)
    for step in range(steps):
        unit_noise = torch.randn_like(x)  # ε/σ; the blur shows the denoiser where paths may stray
        drift, log_variance, score = network(x + NOISE_STD * unit_noise)
        parts = {
            "flow": flow_loss(drift, velocity),
            "diffusion": diffusion_nll(log_variance, drift, velocity, DT),
            "denoiser": denoiser_loss(score, unit_noise),
        }
        optimiser.zero_grad()
        sum(parts.values()).backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}:", ", ".join(f"{name} {part:.3f}" for name, part in parts.items()))


@torch.no_grad()
def euler_maruyama(network: Networks, x0: Tensor, noise: Tensor, dt: float) -> Tensor:
    """Sample one path per row of x0 (Eq. 11 with the denoiser of Eq. 22); noise is (steps, rows, 2)."""
    time, path = torch.tensor(dt), [x0]
    for unit_noise in noise:
        x = path[-1]
        drift, log_variance, score = network(x)
        corrected = drift + ALPHA * (score / NOISE_STD)  # f + α d
        diffusion = (0.5 * log_variance).exp()  # g
        x = torch.addcmul(x, corrected, time)  # x + (f + α d) dt
        path.append(torch.addcmul(x, diffusion, unit_noise * time.sqrt()))  # + g dw
    return torch.stack(path)


def main(seed: int = 0, paths: int = 1000) -> tuple[int, int]:
    """Train, sample, and return how many paths end on the left and on the right branch."""
    torch.manual_seed(seed)
    data, network = make_data(), Networks()
    train(network, data)
    noise = torch.randn(SUBSTEPS * (len(data) - 1), paths, 2)
    sampled = euler_maruyama(network, torch.zeros(paths, 2), noise, DT / SUBSTEPS)
    left, right = ((sampled[-1] - end).norm(dim=-1).lt(0.4).sum().item() for end in data[-1])
    print(f"{paths} paths: {left} left, {right} right, {paths - left - right} elsewhere")
    return int(left), int(right)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
