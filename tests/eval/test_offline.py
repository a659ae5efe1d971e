"""Tests for eval/offline: scores on recorded episodes, against a process whose scores are known."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nsde_policy.cli.main import main
from nsde_policy.config import NetworkConfig, Sampling, TrainConfig
from nsde_policy.core.spec import StateSpec
from nsde_policy.core.targets import Transitions
from nsde_policy.data import Demonstrations, DemoWriter, Episode
from nsde_policy.errors import ComparisonError, ConfigError
from nsde_policy.eval.offline.comparison import OfflineComparison, compare_offline
from nsde_policy.eval.offline.figures import draw_offline_comparison
from nsde_policy.eval.offline.frames import ScoredEpisodes, find_parts
from nsde_policy.eval.offline.result import OfflineScore
from nsde_policy.eval.offline.score import OfflineConfig, score_episodes_offline
from nsde_policy.eval.offline.sums import EpisodeSums, estimate_difference
from nsde_policy.inference.policy import Policy
from nsde_policy.methods.base import Draws, LossParts, PolicyModel, StepLogProb, StepPrediction
from nsde_policy.methods.lstm_gmm import LSTMGMM, LSTMGMMConfig, LSTMGMMSampling
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig, SamplingConfig
from nsde_policy.run_config import DemoConfig, RunConfig
from nsde_policy.run_directory import DemoRecord, RunRecord
from nsde_policy.training.dataset import build_states
from nsde_policy.training.run import train_run
from tests.helpers.demo_stores import write_store
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

    def loss(self, batch: Transitions, generator: torch.Generator) -> LossParts:
        raise AssertionError("this model is never trained")

    def network_calls(self, steps: int, sampling: Sampling | None = None) -> int:
        return steps

    def plan(self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None) -> Tensor:
        action, noise, path = states[:, 0, 2:], self.std * draws.normal(steps, 1), []
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
    return Demonstrations.from_episodes(found, angles=(1,))


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


def score_linear(model: PolicyModel[Transitions], demos: Demonstrations, **settings: int) -> OfflineScore:
    scored = ScoredEpisodes(demos, tuple(range(len(demos))), False, "toy episodes")
    return score_episodes_offline(
        make_linear_policy(model, demos),
        scored,
        OfflineConfig(**{"stride": 1, "horizon": CHUNK, **settings}),
        name="toy",
    )


@pytest.fixture(scope="module")
def linear_demos() -> Demonstrations:
    return make_linear_demos()


@pytest.fixture(scope="module")
def linear_score(linear_demos: Demonstrations) -> OfflineScore:
    return score_linear(LinearGaussian(), linear_demos)


def test_likelihood_per_step_is_the_negative_entropy_of_the_process(linear_score: OfflineScore):
    per_dimension = -0.5 * math.log(2 * math.pi * math.e * STD**2)
    for part in ("all", "first", "last"):
        for name, dimensions in (("log_prob_action", 1), ("log_prob_state", 3)):
            found = linear_score.sums[part][name].intervals
            assert found.value == pytest.approx(dimensions * per_dimension, abs=0.12)
            assert found.low < found.value < found.high
    counts = (
        linear_score.sums["all"]["log_prob_state"].count,
        linear_score.sums["all"]["log_prob_action"].count,
    )
    assert [set(count) for count in counts] == [{49.0}, {50.0}]  # after the last action nothing was recorded


def test_error_grows_with_the_horizon_as_the_process_spreads(linear_score: OfflineScore):
    h = np.arange(1, CHUNK + 1)
    spread = STD * np.sqrt((1 - RHO ** (2 * h)) / (1 - RHO**2))
    unit = linear_score.scale.std[0]
    single, middle = (linear_score.error(name).compute() * unit for name in ("sample", "mean_plan"))
    assert single == pytest.approx(math.sqrt(2) * spread, rel=0.04)
    assert middle == pytest.approx(math.sqrt(1 + 1 / 39) * spread, rel=0.05)
    native = linear_score.sums["all"]["error_sample"].compute()[:, 0]
    assert native == pytest.approx(single)


def test_baselines_repeat_the_last_action_or_take_the_mean(
    linear_score: OfflineScore, linear_demos: Demonstrations
):
    act = linear_demos.act[:, 0].astype(float).reshape(60, 50)
    previous = np.concatenate([np.zeros((60, 1)), act[:, :-1]], axis=1)
    unit = act.std()
    assert linear_score.scale.std[0] == pytest.approx(unit)
    for h in (1, 4):
        ahead = act[:, h - 1 :]
        expected = np.sqrt(np.mean((ahead - previous[:, : 51 - h]) ** 2)) / unit
        assert linear_score.error("repeat").compute()[h - 1] == pytest.approx(expected, rel=1e-5)
        expected = np.sqrt(np.mean((ahead - act.mean()) ** 2)) / unit
        assert linear_score.error("constant").compute()[h - 1] == pytest.approx(expected, rel=1e-5)
    last = act[:, -CHUNK:]
    expected = np.sqrt(np.mean((last - act.mean()) ** 2)) / unit
    assert linear_score.error("constant", "last").compute()[0] == pytest.approx(expected, rel=1e-5)


def test_coverage_is_nominal_for_the_true_std_and_too_low_for_a_smaller_one(
    linear_score: OfflineScore, linear_demos: Demonstrations
):
    for name in ("coverage_actions", "coverage_observations", "coverage_plans"):
        found = linear_score.coverage(name)
        assert found is not None
        value, low, high = found.intervals
        assert value == pytest.approx([0.5, 0.68, 0.95], abs=0.025), name
        assert (low < value).all()
        assert (value < high).all()
    narrow = score_linear(LinearGaussian(0.5), linear_demos)
    for name in ("coverage_actions", "coverage_plans"):
        found = narrow.coverage(name)
        assert found is not None
        expected = [math.erf(z * 0.5 / math.sqrt(2)) for z in (0.6745, 0.9945, 1.96)]
        assert found.compute() == pytest.approx(expected, abs=0.025 if name == "coverage_actions" else 0.06)


def test_a_stride_gives_no_frame_of_an_episode_more_weight(linear_demos: Demonstrations):
    counts = np.zeros(50)
    parts = find_parts(linear_demos, chunk=CHUNK, stride=10)
    for mask in parts["all"].reshape(60, 50):
        assert set(np.diff(np.flatnonzero(mask))) == {10}
        counts += mask
    assert counts.min() >= 4  # 6 on average
    assert counts.max() <= 8
    assert parts["first"].reshape(60, 50)[:, :CHUNK].all()
    assert parts["last"].reshape(60, 50)[:, -CHUNK:].all()
    with pytest.raises(ConfigError, match="--stride 5000 leaves no frame"):
        find_parts(linear_demos.take(3), chunk=CHUNK, stride=5000)


def test_deterministic_plans_have_no_coverage(linear_demos: Demonstrations, tmp_path: Path):
    class Repeat(LinearGaussian):
        reports_std = has_likelihood = False

        def plan(
            self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None
        ) -> Tensor:
            return states[:, :1, 2:].expand(-1, steps, -1)

    found = score_linear(Repeat(), linear_demos, stride=10)
    assert found.coverage("coverage_plans") is None
    assert found.error("sample").compute() == pytest.approx(found.error("repeat").compute())
    alone = OfflineComparison((found,), "toy episodes")
    (line,) = [line for line in alone.as_text().splitlines() if line.startswith(f"| {found.label} |")]
    assert line.split(" | ")[1:3] == ["–", "–"], "no likelihood"
    assert draw_offline_comparison(alone, tmp_path)
    assert json.loads(found.to_json())["parts"]["all"]["coverage"] == {}


def test_angles_of_actions_are_compared_on_the_circle():
    turn = np.linspace(0, 12, 40, dtype=np.float32)[:, None]
    demos = Demonstrations.from_episodes([Episode(turn, turn % (2 * np.pi))] * 2, act_angles=(0,))

    class Follow(LinearGaussian):
        reports_std = has_likelihood = False

        def plan(
            self, states: Tensor, *, steps: int, draws: Draws, sampling: Sampling | None = None
        ) -> Tensor:
            ahead = 12 / 39 * torch.arange(steps)[:, None]
            return states[:, :1, :1] + ahead + 4 * math.pi + 0.01

    spec = replace(SPEC, obs_dim=1, circular=(1,), low=(0.0, 0.0), high=(12.0, 7.0), increment_std=(1.0, 1.0))
    policy = make_linear_policy(Follow(), demos, spec)
    scored = ScoredEpisodes(demos, (0, 1), False, "a turning joint")
    found = score_episodes_offline(policy, scored, OfflineConfig(stride=1, horizon=4), name="toy")
    assert found.sums["all"]["error_sample"].compute() == pytest.approx(np.full((4, 1), 0.01), rel=1e-3)
    assert found.sums["all"]["error_mean_plan"].compute() == pytest.approx(np.full((4, 1), 0.01), rel=1e-3)


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
    run = train_run(demos, config, tmp_path / "run", seed=0)
    policy = Policy.from_pretrained(run.path)
    scored = ScoredEpisodes(demos, (0, 1, 2, 3), True, "its own episodes")
    found = score_episodes_offline(policy, scored, OfflineConfig(stride=1, samples=2), name="run")
    states = (
        torch.from_numpy(build_states(demos, policy.record.config.demos))
        .unflatten(0, (4, 12))
        .transpose(0, 1)
    )
    expected = policy.model.path_log_prob(states, sampling=replace(model.sampling, diffusion=1.0))
    assert found.sums["all"]["log_prob_state"].total == pytest.approx(expected.numpy(), rel=1e-4)


def test_density_of_lstm_gmm_integrates_to_one_in_native_units():
    config = LSTMGMMConfig(history=2, horizon=2, hidden=8, sampling=LSTMGMMSampling(noise="low"))
    model = LSTMGMM(config, replace(UNIT_LINE, high=(1.0, 3.0)), generator=make_rng()).eval()
    grid = torch.linspace(-30, 30, 6001)
    states = torch.rand(1, 2, 2, generator=make_rng()).expand(6001, -1, -1)
    x_next = torch.stack([torch.zeros_like(grid), grid], -1)
    found = model.log_prob_step(states, x_next, sampling=model.learned_sampling())
    assert found.state is None
    assert float(found.action.exp().sum() * 0.01) == pytest.approx(1.0, abs=1e-3)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return two runs that held out the same episodes, and their store."""
    folder = tmp_path_factory.mktemp("two")
    with DemoWriter(folder / "robot.zarr", rate_hz=20, angles=(2,)) as writer:
        for episode in make_robot_demos(8, 15):
            writer.append(episode)
    common = ["train", "--demos", str(folder / "robot.zarr"), "--task", "none", "--validation", "0.5"]
    common += ["--train.steps", "10", "--train.batch-size", "16", "--device", "cpu"]
    sde = ["--model.network.width", "16", "--chunk", "4", "--out", str(folder / "sde")]
    assert main([*common, *sde]) == 0
    window = ["--policy", "regression", "--preset", "fast", "--chunk", "2"]
    assert main([*common, *window, "--out", str(folder / "regression")]) == 0
    return folder / "sde", folder / "regression", folder / "robot.zarr"


def test_command_prints_tables_and_writes_json_and_figure(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, _, store = two_runs
    file = tmp_path / "score.json"
    flags = ["--samples", "5", "--horizon", "5", "--render", "--json", str(file), "--out", str(tmp_path)]
    assert main(["score", str(run), "--demos", str(store), *flags]) == 0
    text = capsys.readouterr().out
    for words in ("the 4 of 8 episodes", "in nats", "repeat the last action", "h = 5", "coverage"):
        assert words in text
    values = json.loads(file.read_text())
    assert len(values["episodes"]) == 4
    assert not values["seen_in_training"]
    assert np.shape(values["parts"]["last"]["error_per_action"]["sample"]["value"]) == (5, 3)
    assert np.shape(values["parts"]["all"]["coverage"]["observations"]["low"]) == (3,)
    assert (tmp_path / "offline.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--demos", "STORE", "--push", "7"], "Unrecognized options: --push"),
        (["--stride", "2"], "--demos"),
        (["--demos", "STORE", "--horizon", "0"], "need --horizon >= 1"),
        (["--demos", "STORE", "--horizon", "100000"], "the longest episode has"),
        (["--demos", "missing.zarr"], "missing.zarr"),
        (["--demos", "OTHER"], "data/ctrl, meta/episode_ends; the run was trained on the observations state"),
        (["--demos", "WIDE"], "observations of 5 and actions of 3 numbers, the run was trained on 4 and 3"),
    ],
)
def test_command_explains_flags_and_stores_that_do_not_fit(
    two_runs: tuple[Path, Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    words: str,
):
    run, _, store = two_runs
    with DemoWriter(tmp_path / "wide.zarr") as writer:
        writer.append(make_robot_demos(1, obs_dim=5)[0])
    names = ("data/state", "data/action", "data/keypoint", "data/img")
    write_store(tmp_path / "other.zarr", {**dict.fromkeys(names), "data/ctrl": np.ones((40, 2))})
    places = {"STORE": store, "WIDE": tmp_path / "wide.zarr", "OTHER": tmp_path / "other.zarr"}
    assert main(["score", str(run), *(str(places.get(flag, flag)) for flag in flags)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "--obs-keys" not in said


def test_omitted_chunks_of_a_scored_store_are_accepted_on_request(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = {"data/state": np.eye(40, 4), "data/action": np.zeros((40, 3))}
    store = write_store(tmp_path / "still.zarr", arrays, every_chunk=False)
    args = ["score", str(two_runs[0]), "--demos", str(store)]
    assert main(args) == 2
    assert "--accept-omitted-chunks" in capsys.readouterr().err
    assert main([*args, "--accept-omitted-chunks"]) == 0


def test_store_of_another_rate_is_refused_and_other_units_are_reported(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, rate, unit in (("fast", 40, 1.0), ("units", 20, 1000.0)):
        with DemoWriter(tmp_path / f"{name}.zarr", rate_hz=rate, angles=(2,)) as writer:
            for episode in make_robot_demos(3, 15):
                scale = np.array([unit, unit, 1, 1], np.float32)
                writer.append(Episode(episode.obs * scale, episode.act))
    flags = ["score", str(two_runs[0]), "--samples", "2", "--demos"]
    assert main([*flags, str(tmp_path / "fast.zarr")]) == 2
    assert "recorded at 40 Hz, the run was trained at 20 Hz" in capsys.readouterr().err
    assert main([*flags, str(tmp_path / "units.zarr")]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "implausible" in line]
    assert "obs[" in line
    assert main([*flags, str(two_runs[2])]) == 0
    assert "implausible" not in capsys.readouterr().err


def test_unfinished_run_is_reported(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    early = Path(shutil.copytree(two_runs[0], tmp_path / "early"))
    (early / "metrics.jsonl").write_text('{"step": 4, "seconds": 1.0}\n')
    assert main(["score", str(early), "--demos", str(two_runs[2]), "--samples", "2"]) == 0
    assert "stopped at step 4 of 10: finish it with train --resume" in capsys.readouterr().err


@pytest.fixture(scope="module")
def comparison(two_runs: tuple[Path, Path, Path]) -> OfflineComparison:
    return compare_offline(two_runs[:2], two_runs[2], config=OfflineConfig(samples=4))


def test_runs_are_compared_on_the_episodes_that_all_held_out(comparison: OfflineComparison):
    sde, regression = comparison.runs
    held_out = list(sde.record.demos.held_out)
    assert sde.context["episodes"] == regression.context["episodes"] == held_out
    assert len(held_out) == 4
    assert comparison.note.endswith("4 episodes of " + sde.record.demos.source + ", unseen in training")
    own, other = sde.error("sample").pool(1), regression.error("sample").first(8).pool(1)
    found = regression.difference(sde, "error")
    assert found is not None
    assert found.n == 4
    assert found.value == pytest.approx(float(other.compute() - own.compute()))
    assert regression.difference(sde, "log_prob_action") is None
    values = json.loads(comparison.to_json())
    assert values["differences"][0]["error"]["value"] == pytest.approx(found.value)
    assert [run["horizon"] for run in values["runs"]] == [8, 8]  # chunks of 4 and 2 actions
    assert "on at least 6 episodes; fewer give no verdict" in comparison.as_text()


def test_runs_are_ranked_by_error_if_the_paired_interval_excludes_zero(comparison: OfflineComparison):
    def scale(factor: float, label: str) -> OfflineScore:
        run, sums = comparison.reference, comparison.reference.sums
        squared = sums["all"]["error_sample"]
        total, count = (np.tile(part, (3, 1, 1)) for part in (factor * squared.total, squared.count))
        parts = {**sums, "all": {**sums["all"], "error_sample": EpisodeSums(total, count, root=True)}}
        return replace(run, name=label, sums=parts)

    small, large = scale(1.0, "small"), scale(1.44, "large")
    assert large.decide(small) == small.decide(large) == "small ahead"
    assert small.decide(small) == "no difference shown"


def test_runs_that_held_out_different_episodes_cannot_be_paired(two_runs: tuple[Path, Path, Path]):
    sde, _, store = two_runs
    record = json.loads((sde / "config.json").read_text())
    held_out = record["demos"]["held_out"]
    record["demos"]["held_out"] = [i for i in range(8) if i not in held_out]
    record["seed"] += 1
    other = Path(shutil.copytree(sde, sde.parent / "other"))
    (other / "config.json").write_text(json.dumps(record))
    with pytest.raises(ComparisonError, match="same --seed and --validation"):
        compare_offline([sde, other], store)


def test_command_compares_several_runs(
    two_runs: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    *runs, store = map(str, two_runs)
    file = tmp_path / "scores.json"
    flags = ["--demos", store, "--samples", "2"]
    assert main(["score", *runs, *flags, "--json", str(file)]) == 0
    assert "| minus Neural SDE, sde | error |" in capsys.readouterr().out
    assert [len(values["parts"]) for values in json.loads(file.read_text())["runs"]] == [3, 3]
    assert main(["score", *runs, *flags, "--reference", "nothing"]) == 2
    assert "no row 'nothing' to refer to" in capsys.readouterr().err
    assert main(["compare", *runs, "--out", str(tmp_path)]) == 2
    assert "use `nsde-policy score` on recorded episodes" in capsys.readouterr().err
