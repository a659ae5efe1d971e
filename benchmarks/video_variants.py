"""What benchmarks/video.py trains: the variants of each experiment, and how they are sampled."""

from dataclasses import dataclass, field, replace
from typing import Any

from video_results import LONG, METHODS, SHORT

from nsde_policy.video.config import BackboneConfig, UnrollConfig, VideoConfig
from nsde_policy.video.presets import PAPER_SETTINGS, make_video_preset

CALLS = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Trial:
    """One way to predict with a trained model."""

    calls: int
    steps: int = SHORT
    first_phase: bool = False
    options: dict[str, float] = field(default_factory=dict)
    """Further options of sampling."""

    @property
    def label(self) -> str:
        options = "".join(f", {name} {value:g}" for name, value in self.options.items())
        return (
            f"{'first phase, ' if self.first_phase else ''}{self.calls} calls, {self.steps} frames{options}"
        )


@dataclass(frozen=True)
class Variant:
    """Settings to train and how to predict with the result."""

    name: str
    config: VideoConfig
    trials: tuple[Trial, ...] = ()
    seeds: int = 3


def make_start(preset: str, method: str = "neural_sde") -> VideoConfig:
    """Return a preset, `fast` with settings that suit short trainings: more feature maps and less noise."""
    config = make_video_preset(preset, method)
    if preset != "fast":
        return config
    model = replace(config.model, backbone=replace(config.model.backbone, features=16), context_noise=0.1)
    if not config.unroll.frames:
        return replace(config, model=model)
    second = replace(config.unroll.train, steps=1400, learning_rate=1.5e-3)
    train, unroll = replace(config.train, steps=3800), replace(config.unroll, train=second)
    return replace(config, model=model, train=train, unroll=unroll)


OTHER_METHODS = {"Flow Matching": ("flow_matching", 2, 0.2), "PFI": ("interpolants", 1, 0.0)}
"""Methods beside the Neural SDE, with settings of a training in two phases: network calls per frame of the
second phase, and noise on the context."""


def list_methods(preset: str) -> list[Variant]:
    """Return the three methods, Flow Matching and PFI after one long phase and after two."""
    trials = tuple(Trial(calls) for calls in CALLS) + tuple(Trial(c, LONG) for c in (1, 2, 5))
    sde = make_start(preset, "neural_sde")
    first = (Trial(1, first_phase=True), Trial(1, LONG, first_phase=True))
    found = [Variant("Neural SDE", sde, (*trials, *first, *_other_strengths(sde)))]
    for label, (method, calls, noise) in OTHER_METHODS.items():
        alone = make_start(preset, method)
        steps = sde.unroll.train.steps // (1 + calls)  # as many network calls as the Neural SDE has
        unrolled = replace(
            alone,
            model=replace(alone.model, context_noise=noise),
            train=replace(alone.train, steps=sde.train.steps),
            unroll=replace(sde.unroll, calls=calls, train=replace(sde.unroll.train, steps=steps)),
        )
        found.append(Variant(label, alone, trials))
        found.append(Variant(f"{label}, unrolled", unrolled, trials))
    return found


def _other_strengths(config: VideoConfig) -> tuple[Trial, ...]:
    """Return trials with α of 0, 0.5 and 1, other than that of the settings."""
    alphas = {0.0, 0.5, 1.0} - {config.model.alpha}  # type: ignore[attr-defined]
    return tuple(Trial(1, options={"alpha": alpha}) for alpha in sorted(alphas))


RATES = (8e-4, 1.5e-3, 2.5e-3)
"""Learning rates of the first phase to choose from."""


def list_rates(preset: str) -> list[Variant]:
    """Return each method with each learning rate, 1500 steps of the first phase."""
    calls = {"neural_sde": (1,), "flow_matching": (1, 2, 5), "interpolants": (1, 2, 5, 10)}
    found = []
    for label, (method, tried) in zip(METHODS, calls.items(), strict=True):
        trials = [Trial(each) for each in tried]
        if method == "neural_sde":
            trials += _other_strengths(make_start(preset))
        for rate in RATES:
            config = _shorten_first_phase(make_start(preset, method), 1500, rate)
            found.append(Variant(f"{label}, rate {rate:g}", config, tuple(trials), 1))
    return found


NOISES = (0.0, 0.2)
"""Noise on the context of Flow Matching and PFI to choose from; 0.2 is that of the Neural SDE."""


def list_settings(preset: str) -> list[Variant]:
    """Return Flow Matching and PFI with a second phase, 1500 and 300 steps: without and with gradients."""
    trials = tuple(Trial(calls) for calls in (1, 2, 5, 10))
    trials += tuple(replace(trial, first_phase=True) for trial in trials)
    second = make_start(preset).unroll
    second = replace(second, train=replace(second.train, steps=300))
    found = []
    for label, (method, calls, _) in OTHER_METHODS.items():
        base = _shorten_first_phase(make_start(preset, method), 1500)
        changes = {
            f"noise {noise:g}, second rate {second.train.learning_rate:g}": replace(
                base,
                model=replace(base.model, context_noise=noise),
                unroll=replace(second, calls=2, gradients=False),
            )
            for noise in NOISES
        }
        changes["gradients"] = replace(base, unroll=replace(second, calls=calls))
        found += [Variant(f"{label}, {name}", config, trials, 1) for name, config in changes.items()]
    return found


def _shorten_first_phase(config: VideoConfig, steps: int, rate: float | None = None) -> VideoConfig:
    """Return settings without the second phase and with another length of the first."""
    train = replace(config.train, steps=steps, learning_rate=rate or config.train.learning_rate)
    return replace(config, train=train, unroll=UnrollConfig(frames=0))


def list_ablations(preset: str) -> list[Variant]:
    """Return changes of one setting each of the Neural SDE, 2000 steps of the first phase."""
    base = _shorten_first_phase(make_start(preset), 2000)
    base = replace(base, model=replace(base.model, diffusion=True))
    once, often = (Trial(1), Trial(1, LONG)), (Trial(1), Trial(2), Trial(5), Trial(10), Trial(1, LONG))

    def change(**settings: Any) -> VideoConfig:
        return replace(base, model=replace(base.model, **settings))

    noisy = Trial(1, options={"diffusion_scale": 1.0})
    return [
        Variant("default, first phase", base, (*often, noisy, *_other_strengths(base)), 1),
        Variant("no denoiser", change(denoiser=False), once, 1),
        Variant("no noise injection", change(denoiser=False, context_noise=0.0), once, 1),
        Variant("interpolation", change(interpolation="uniform"), often, 1),
        Variant("log loss", change(flow_loss="log"), once, 1),
        Variant("fixed noise of 0.1", change(noise="fixed", context_noise=0.1), once, 1),
        Variant("settings of the paper, same network", change(**PAPER_SETTINGS), often, 1),
    ]


SIZES = (
    BackboneConfig(width=32, depth=3, stem=(16, 24), features=8),
    BackboneConfig(width=96, depth=5, stem=(24, 48), features=16),
    BackboneConfig(width=160, depth=5, stem=(40, 80), features=24),
    BackboneConfig(),
    BackboneConfig(width=512, depth=9, heads=8, stem=(96, 192), features=48),
    BackboneConfig(width=800, depth=13, heads=8, stem=(128, 256), features=64),
)
"""Networks of the scaling experiment, 0.12 to 116 million weights."""


def list_sizes(preset: str) -> list[Variant]:
    """Return a preset in six sizes, first phase only; large networks get a smaller learning rate."""
    base = make_start(preset)
    found = []
    for size in SIZES:
        rate = base.train.learning_rate * min(1.0, BackboneConfig().width / size.width)
        sized = replace(base, model=replace(base.model, backbone=size))
        config = _shorten_first_phase(sized, 2000, rate)
        found.append(
            Variant(f"width {size.width}, depth {size.depth}", config, (), 3 if size.width <= 256 else 1)
        )
    return found


EXPERIMENTS = {
    "rates": list_rates,
    "settings": list_settings,
    "methods": list_methods,
    "ablation": list_ablations,
    "scaling": list_sizes,
}
