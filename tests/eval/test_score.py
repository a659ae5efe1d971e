"""Tests for eval/score: scores on recorded episodes, against a process whose scores are known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nsde_policy.config import NetworkConfig, Sampling, TrainConfig
from nsde_policy.core.batches import Transitions
from nsde_policy.core.spec import StateSpec
from nsde_policy.data import Demonstrations, Episode
from nsde_policy.errors import ConfigError
from nsde_policy.eval.score.comparison import ScoreComparison
from nsde_policy.eval.score.episodes import ScoredEpisodes, choose_frames
from nsde_policy.eval.score.result import Score
from nsde_policy.eval.score.scorer import ScoreConfig, score_episodes
from nsde_policy.eval.statistics import EpisodeSums, estimate_difference
from nsde_policy.methods.base import BatchRng, PolicyModel, StepLogProb, StepPrediction
from nsde_policy.methods.baselines.lstm_gmm import LSTMGMM, LSTMGMMConfig, LSTMGMMSampling
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.policy.policy import Policy
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.training.dataset import build_states
from nsde_policy.training.train import train_run
from tests.helpers.episodes import join_episodes
from tests.helpers.rng import make_rng
from tests.helpers.toy_problems import UNIT_LINE, make_robot_demos

RHO, STD, CHUNK = 0.8, 0.3, 6
DECAY = (RHO, 1.0, RHO)
"""x' = decay · x + 0.3 ε for an observation, an angle and the action."""
SPEC = StateSpec(
    obs_dim=2, act_dim=1, circular=(1,), low=(-3.0, 0.0, -3.0), high=(3.0, 6.3, 3.0),
    increment_std=(0.3, 0.3, 0.3),
)  # fmt: skip


class LinearGaussian(PolicyModel[Transitions]):
    """The process of `make_linear_demos`, with a factor on the σ that it reports and samples with."""

    reports_std = True
    has_likelihood = True

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.config = NeuralSDEConfig(history=1)
        self.std = STD * factor

    def loss(self, batch: Transitions, generator: torch.Generator) -> dict[str, Tensor]:
        raise AssertionError("this model is never trained")

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        return steps

    def plan(self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None) -> Tensor:
        action, noise, path = states[:, 0, 2:], self.std * rng.normal(steps, 1), []
        for k in range(steps):
            action = RHO * action + noise[:, k]
            path.append(action)
        return torch.stack(path, dim=1)

    def predict_step(self, states: Tensor, *, sampling: Sampling | None = None) -> StepPrediction:
        mean = states[:, 0] * torch.tensor(DECAY)
        return StepPrediction(mean, torch.full_like(mean, self.std))

    def log_prob_step(
        self, states: Tensor, x_next: Tensor, *, sampling: Sampling | None = None
    ) -> StepLogProb:
        mean, std = self.predict_step(states)
        error = torch.remainder(x_next - mean + math.pi, 2 * math.pi) - math.pi
        each = -0.5 * (error / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        return StepLogProb(each[:, 2], each.sum(-1))


def make_linear_demos(episodes: int = 60, length: int = 50) -> Demonstrations:
    rng, found = np.random.default_rng(0), []
    for _ in range(episodes):
        noise, path = rng.normal(size=(length, 3)) * STD, np.zeros((length, 3))
        path[0] = noise[0]
        for t in range(1, length):
            path[t] = np.array(DECAY) * path[t - 1] + noise[t]
        path[:, 1] %= 2 * np.pi  # a recorded angle jumps at the end of its range
        found.append(Episode(path[:, :2].astype(np.float32), path[:, 2:].astype(np.float32)))
    return join_episodes(found, angles=(1,))


def make_linear_policy(
    model: PolicyModel[Transitions], demos: Demonstrations, spec: StateSpec = SPEC
) -> Policy:
    record = RunRecord(
        config=RunConfig(model=NeuralSDEConfig(history=1), chunk=CHUNK),
        spec=spec,
        task="none",
        seed=0,
        demos=DemoRecord("memory", "", len(demos), len(demos.obs)),
        versions={},
    )
    return Policy(record, model)


def score_linear(model: PolicyModel[Transitions], demos: Demonstrations, **settings: int) -> Score:
    scored = ScoredEpisodes(demos, tuple(range(len(demos))), False, "toy episodes")
    return score_episodes(
        make_linear_policy(model, demos),
        scored,
        ScoreConfig(**{"stride": 1, "horizon": CHUNK, **settings}),
        name="toy",
    )


@pytest.fixture(scope="module")
def linear_demos() -> Demonstrations:
    return make_linear_demos()


@pytest.fixture(scope="module")
def linear_score(linear_demos: Demonstrations) -> Score:
    return score_linear(LinearGaussian(), linear_demos)


def test_likelihood_per_step_is_the_negative_entropy_of_the_process(linear_score: Score):
    per_dimension = -0.5 * math.log(2 * math.pi * math.e * STD**2)
    for name, dimensions in (("log_prob_action", 1), ("log_prob_state", 3)):
        found = linear_score.sums[name].intervals
        assert found.value == pytest.approx(dimensions * per_dimension, abs=0.12)
        assert found.low < found.value < found.high
    counts = (linear_score.sums["log_prob_state"].count, linear_score.sums["log_prob_action"].count)
    assert [set(count) for count in counts] == [{49.0}, {50.0}]  # after the last action nothing was recorded


def test_error_grows_with_the_horizon_as_the_process_spreads(linear_score: Score):
    h = np.arange(1, CHUNK + 1)
    spread = STD * np.sqrt((1 - RHO ** (2 * h)) / (1 - RHO**2))
    unit = linear_score.scale.std[0]
    single, middle = (linear_score.error(name).compute() * unit for name in ("sample", "mean_plan"))
    assert single == pytest.approx(math.sqrt(2) * spread, rel=0.04)
    assert middle == pytest.approx(math.sqrt(1 + 1 / 39) * spread, rel=0.05)
    native = linear_score.sums["error_sample"].compute()[:, 0]
    assert native == pytest.approx(single)


def test_the_baseline_repeats_the_last_action(linear_score: Score, linear_demos: Demonstrations):
    act = linear_demos.act[:, 0].astype(float).reshape(60, 50)
    previous = np.concatenate([np.zeros((60, 1)), act[:, :-1]], axis=1)
    unit = act.std()
    assert linear_score.scale.std[0] == pytest.approx(unit)
    for h in (1, 4):
        ahead = act[:, h - 1 :]
        expected = np.sqrt(np.mean((ahead - previous[:, : 51 - h]) ** 2)) / unit
        assert linear_score.error("repeat").compute()[h - 1] == pytest.approx(expected, rel=1e-5)


def test_coverage_is_nominal_for_the_true_std_and_too_low_for_a_smaller_one(
    linear_score: Score, linear_demos: Demonstrations
):
    for name in ("coverage_actions", "coverage_observations"):
        found = linear_score.coverage(name)
        assert found is not None
        value, low, high = found.intervals
        assert value == pytest.approx([0.5, 0.68, 0.95], abs=0.025), name
        assert (low < value).all()
        assert (value < high).all()
    narrow = score_linear(LinearGaussian(0.5), linear_demos)
    found = narrow.coverage("coverage_actions")
    assert found is not None
    expected = [math.erf(z * 0.5 / math.sqrt(2)) for z in (0.6745, 0.9945, 1.96)]
    assert found.compute() == pytest.approx(expected, abs=0.025)


def test_a_stride_gives_no_frame_of_an_episode_more_weight(linear_demos: Demonstrations):
    counts = np.zeros(50)
    for mask in choose_frames(linear_demos, 10).reshape(60, 50):
        assert set(np.diff(np.flatnonzero(mask))) == {10}
        counts += mask
    assert counts.min() >= 4  # 6 on average
    assert counts.max() <= 8
    with pytest.raises(ConfigError, match="--stride 5000 leaves no frame"):
        choose_frames(linear_demos.take(3), 5000)


def test_a_method_without_a_distribution_has_neither_likelihood_nor_coverage(linear_demos: Demonstrations):
    class Repeat(LinearGaussian):
        reports_std = has_likelihood = False

        def plan(
            self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None
        ) -> Tensor:
            return states[:, :1, 2:].expand(-1, steps, -1)

    found = score_linear(Repeat(), linear_demos, stride=10)
    assert found.coverage("coverage_actions") is None
    assert found.error("sample").compute() == pytest.approx(found.error("repeat").compute())
    alone = ScoreComparison((found,), "toy episodes")
    (line,) = [line for line in alone.as_text().splitlines() if line.startswith(f"| {found.label} |")]
    assert line.split(" | ")[1:3] == ["–", "–"], "no likelihood"
    assert json.loads(found.to_json())["coverage"] == {}


def test_angles_of_actions_are_compared_on_the_circle():
    turn = np.linspace(0, 12, 40, dtype=np.float32)[:, None]
    demos = join_episodes([Episode(turn, turn % (2 * np.pi))] * 2, act_angles=(0,))

    class Follow(LinearGaussian):
        reports_std = has_likelihood = False

        def plan(
            self, states: Tensor, *, steps: int, rng: BatchRng, sampling: Sampling | None = None
        ) -> Tensor:
            ahead = 12 / 39 * torch.arange(steps)[:, None]
            return states[:, :1, :1] + ahead + 4 * math.pi + 0.01

    spec = replace(SPEC, obs_dim=1, circular=(1,), low=(0.0, 0.0), high=(12.0, 7.0), increment_std=(1.0, 1.0))
    policy = make_linear_policy(Follow(), demos, spec)
    scored = ScoredEpisodes(demos, (0, 1), False, "a turning joint")
    found = score_episodes(policy, scored, ScoreConfig(stride=1, horizon=4), name="toy")
    assert found.sums["error_sample"].compute() == pytest.approx(np.full((4, 1), 0.01), rel=1e-3)
    assert found.sums["error_mean_plan"].compute() == pytest.approx(np.full((4, 1), 0.01), rel=1e-3)


def test_intervals_resample_episodes_and_differences_are_paired():
    rng = np.random.default_rng(0)
    of_episode = rng.normal(size=80)
    count = np.full(80, 50.0)
    a = EpisodeSums(50 * of_episode, count)
    found = a.intervals
    expected = 1.96 * of_episode.std() / math.sqrt(80)  # not divided by √50: frames are not independent
    assert found.high - found.value == pytest.approx(expected, rel=0.15)
    b = EpisodeSums(50 * (of_episode + 0.1 + 0.01 * rng.normal(size=80)), count)
    difference = estimate_difference(a, b)
    assert difference.low < -0.1 < difference.high < -0.09
    alone = EpisodeSums(np.ones(1), np.ones(1)).intervals
    assert alone.to_dict() == {"value": 1.0, "low": None, "high": None}


def test_likelihood_of_a_neural_sde_uses_recorded_histories_and_the_learned_diffusion(tmp_path: Path):
    demos = make_robot_demos(4, 12)
    model = NeuralSDEConfig(
        history=2, network=NetworkConfig(width=16, depth=2), sampling=SamplingConfig(diffusion=0.5)
    )
    first = DemoConfig(first_action_from=())
    config = RunConfig(demos=first, model=model, train=TrainConfig(steps=20, batch_size=16), chunk=3)
    run = train_run(demos, config, tmp_path / "run")
    policy = Policy.from_pretrained(run.path)
    scored = ScoredEpisodes(demos, (0, 1, 2, 3), True, "its own episodes")
    found = score_episodes(policy, scored, ScoreConfig(stride=1, samples=2), name="run")
    states = (
        torch.from_numpy(build_states(demos, policy.record.config.demos))
        .unflatten(0, (4, 12))
        .transpose(0, 1)
    )
    before = torch.cat([states[:1], states])  # the history before the first state is that state
    steps = [
        policy.model.log_prob_step(
            torch.stack([states[k], before[k]], dim=1),
            states[k + 1],
            sampling=replace(model.sampling, diffusion=1.0),
        ).state
        for k in range(len(states) - 1)
    ]
    assert found.sums["log_prob_state"].total == pytest.approx(sum(steps).numpy(), rel=1e-4)


def test_density_of_lstm_gmm_integrates_to_one_in_native_units():
    config = LSTMGMMConfig(history=2, horizon=2, hidden=8, sampling=LSTMGMMSampling(noise="low"))
    model = LSTMGMM(config, replace(UNIT_LINE, high=(1.0, 3.0)), generator=make_rng()).eval()
    grid = torch.linspace(-30, 30, 6001)
    states = torch.rand(1, 2, 2, generator=make_rng()).expand(6001, -1, -1)
    x_next = torch.stack([torch.zeros_like(grid), grid], -1)
    found = model.log_prob_step(states, x_next, sampling=model.learned_sampling())
    assert found.state is None
    assert float(found.action.exp().sum() * 0.01) == pytest.approx(1.0, abs=1e-3)


def test_roughness_compares_plans_executed_in_full_with_the_recorded_commands(
    linear_demos: Demonstrations, linear_score: Score
):
    def score_whole_plans(factor: float) -> Score:
        policy = make_linear_policy(LinearGaussian(factor), linear_demos)
        policy.chunk = int(linear_demos.lengths[0])
        scored = ScoredEpisodes(linear_demos, tuple(range(len(linear_demos))), False, "toy episodes")
        return score_episodes(policy, scored, ScoreConfig(samples=1), name="toy")

    same, rough = score_whole_plans(1.0), score_whole_plans(2.5)
    assert same.roughness == pytest.approx(1.0, abs=0.05)  # plans have the noise of the process
    assert rough.roughness == pytest.approx(2.5, abs=0.15)
    assert same.to_dict()["roughness"] == same.roughness
    assert "commands are 1.0 × as rough as the demonstrations" in repr(same)
    assert "commands are 2.5 × as rough as the demonstrations: sample with less noise" in repr(rough)
    assert linear_score.roughness is not None
    assert linear_score.roughness > 1.2  # of short plans, which do not continue each other
