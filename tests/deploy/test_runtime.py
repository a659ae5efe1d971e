"""Tests for deploy/runtime: exported policies without torch, and rejection of hostile files."""

import json
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from nsde_policy.deploy.export.formats import add_record
from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import GraphRecord
from nsde_policy.deploy.runtime.onnx_file import read_record
from nsde_policy.errors import CheckpointError, ConfigError, PlanError, PolicyInputError
from tests.helpers.exported_policies import (
    build_policy,
    draw_states,
    export_small_policy,
    make_neural_sde_config,
    sign_graph,
)

ROOT = Path(__file__).parents[2]
OBS = np.array([0.4, 1.0, 300.0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return export_small_policy(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def policy(exported) -> RuntimePolicy:
    return RuntimePolicy.load(exported)


def test_runtime_needs_no_torch(exported):
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxscript', 'safetensors', 'gymnasium', 'zarr', 'tyro'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "import nsde_policy.planner.spec, nsde_policy.planner.history\n"
        "from nsde_policy.deploy.runtime import RuntimePolicy\n"
        f"policy = RuntimePolicy.load({str(exported)!r}, seed=3)\n"
        f"obs = np.array({OBS.tolist()})\n"
        "policy.reset()\n"
        "print([policy.select_action(obs).tolist() for _ in range(6)])\n"
        "print(policy.predict_action_chunk(obs, seed=1).shape)\n"
        "memory = policy.spec.new_history()\nmemory.add_observation(obs)\n"
        "print(policy.plan_from(memory.states(), steps=2, seed=0).states.shape)\n"
        "with policy.session(rate_hz=10, policy_hz=10, plan_ahead=True, deadline_s=10) as session:\n"
        "    print(session.step(obs).shape, session.last.source)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    actions, chunk, states, sent = done.stdout.splitlines()
    assert np.isfinite(json.loads(actions)).all()
    assert (chunk, states, sent) == ("(4, 2)", "(3, 5)", "(2,) plan")


def test_plan_is_reproducible_with_a_seed(policy):
    states = draw_states(2)
    plan = policy.plan_from(states, steps=4, seed=7)
    again, other = (policy.plan_from(states, steps=4, seed=seed) for seed in (7, 8))
    assert np.array_equal(plan.actions, again.actions)
    assert not np.array_equal(plan.actions, other.actions)
    assert plan.actions.shape == (4, 2)
    assert np.array_equal(plan.states[1:, 3:], plan.actions)
    assert np.array_equal(plan.states[0], states[0].astype(np.float64))


def test_shorter_plan_is_the_beginning_of_a_longer_one(policy):
    states = draw_states(2)
    whole = policy.plan_from(states, steps=4, seed=7)
    assert np.array_equal(policy.plan_from(states, steps=3, seed=7).actions, whole.actions[:3])
    (first,) = policy.plan_from(states, steps=1, seed=7).actions  # from a separate graph
    np.testing.assert_allclose(first, whole.actions[0], rtol=0, atol=1e-5)


def test_plan_is_not_overwritten_by_the_next_one(policy):
    plan = policy.plan_from(draw_states(2), steps=4, seed=0)
    kept = plan.actions.copy(), plan.states.copy()
    policy.plan_from(draw_states(2, seed=1), steps=4, seed=1)
    assert np.array_equal(plan.actions, kept[0])
    assert np.array_equal(plan.states, kept[1])


def test_actions_have_the_distribution_of_the_torch_policy(policy):
    states, n = draw_states(2), 300
    on_torch = build_policy(make_neural_sde_config())
    ours, theirs = (
        np.array([planner.plan_from(states, steps=4, seed=seed).actions for seed in range(n)])
        for planner in (policy, on_torch)
    )
    error = np.sqrt((ours.var(0) + theirs.var(0)) / n)
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) < 4.5 * error)
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.25)


def test_policy_executes_a_chunk_before_it_plans_again(policy):
    policy.reset(seed=5)
    executed = [policy.select_action(OBS) for _ in range(4)]
    assert np.array_equal(executed, policy.predict_action_chunk(OBS, seed=5))
    policy.reset(seed=5)
    assert np.array_equal(policy.select_action(OBS), executed[0])


def test_invalid_input_is_rejected(policy):
    states = draw_states(2)
    with pytest.raises(PolicyInputError, match=r"shape \(2, 5\), got \(5,\)"):
        policy.plan_from(states[0], steps=1, seed=0)
    with pytest.raises(PolicyInputError, match="finite"):
        policy.plan_from(np.full_like(states, np.nan), steps=1, seed=0)
    with pytest.raises(ConfigError, match=r"need steps from 1 to 4 .* got 5; export more --steps"):
        policy.plan_from(states, steps=5, seed=0)
    for seed, match in ((-1, "between 0 and"), (2**63, "between 0 and"), ("a", "whole"), (1.5, "whole")):
        with pytest.raises(PolicyInputError, match=match):
            policy.plan_from(states, steps=1, seed=seed)
    for steps in (2.5, "2", None, True):
        with pytest.raises(PolicyInputError, match="steps must be a whole number"):
            policy.plan_from(states, steps=steps, seed=0)
    with pytest.raises(PolicyInputError, match="states must be numbers"):
        policy.plan_from("states", steps=1, seed=0)
    with pytest.raises(PolicyInputError, match="finite"):
        policy.select_action(np.array([0.4, np.inf, 300.0]))
    with pytest.raises(PolicyInputError, match="finite"):
        policy.plan_from(np.full((2, 5), 1e300), steps=4, seed=0)


def test_plan_that_is_not_finite_is_an_error(exported, tmp_path):
    model, torch_policy = (
        onnx.load(exported.parent / "policy.first.onnx"),
        build_policy(make_neural_sde_config()),
    )
    middle = 0.5 * (np.array(torch_policy.spec.low) + np.array(torch_policy.spec.high))
    std = torch_policy.model.step_std(torch.from_numpy(np.tile(middle, 2)).float()).numpy()
    (exp,) = [node for node in model.graph.node if node.op_type == "Exp"]
    (add,) = [node for node in model.graph.node if exp.output[0] in node.input]
    floor = next(w for w in model.graph.initializer if w.name in add.input)
    variance = (std / np.array(torch_policy.spec.increment_std)) ** 2
    # below this floor, square roots are negative except near the middle of the range
    value = numpy_helper.to_array(floor) - 0.9999 * variance.min()
    floor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), floor.name))
    (tmp_path / "policy.onnx").write_bytes(sign_graph(model))
    policy = RuntimePolicy.load(tmp_path / "policy.onnx")

    def ask_everywhere() -> None:
        for seed in range(50):
            policy.plan_from(draw_states(2, seed=seed), steps=1, seed=0)

    with pytest.raises(PlanError, match=r"planned (actions|states) that are not finite"):
        ask_everywhere()


def test_threads_can_share_a_policy(policy):
    jobs = [(draw_states(2, seed=i), i) for i in range(8)]
    alone = [policy.plan_from(states, steps=4, seed=seed).actions for states, seed in jobs]
    wrong: list[int] = []

    def ask(i: int) -> None:
        states, seed = jobs[i]
        for _ in range(50):
            if not np.array_equal(policy.plan_from(states, steps=4, seed=seed).actions, alone[i]):
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_do_not_leak_memory(policy):
    states = draw_states(2)

    def many() -> int:
        for seed in range(1000):
            policy.plan_from(states, steps=4, seed=seed)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before, after = many(), many()
    finally:
        tracemalloc.stop()
    assert after - before < 2000


# Hostile files


@pytest.fixture
def model(exported) -> onnx.ModelProto:
    return onnx.load(exported)


def assert_rejected(content: bytes, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        Graph(content)


def test_unchanged_model_loads_after_serializing(model):
    Graph(sign_graph(model))


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_truncated_file_is_rejected(exported, cut):
    content = exported.read_bytes()
    with pytest.raises(CheckpointError):
        Graph(content[: int(cut * len(content))])


@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_changed_byte_is_rejected_or_does_not_change_actions(exported, at, bits):
    content = bytearray(exported.read_bytes())
    content[int(at * len(content))] ^= bits
    try:
        graph = Graph(bytes(content))
    except CheckpointError:
        return
    whole = Graph(exported.read_bytes())  # only names, versions and the spec can change
    for each in (graph, whole):
        each.inputs["states"][:] = draw_states(2)
        each.run()
    assert np.array_equal(graph.outputs["actions"], whole.outputs["actions"])


def test_random_bytes_are_rejected():
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 10, 1000, 100_000):
        with pytest.raises(CheckpointError):
            read_record(rng.bytes(size), GraphRecord)


def test_oversized_file_is_not_read(exported, tmp_path):
    huge = tmp_path / "huge.onnx"
    huge.touch()
    os.truncate(huge, 1 << 40)  # a sparse file
    with pytest.raises(CheckpointError, match="the limit is 536870912"):
        RuntimePolicy.load(huge)
    with pytest.raises(CheckpointError, match="the limit is 100"):
        RuntimePolicy.load(exported, max_bytes=100)


def test_missing_or_irregular_file_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        RuntimePolicy.load(tmp_path / "absent.onnx")
    with pytest.raises(CheckpointError, match="not a regular file"):
        RuntimePolicy.load(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would block
    with pytest.raises(CheckpointError, match="not a regular file"):
        RuntimePolicy.load(tmp_path / "pipe.onnx")


class Bomb:
    """Unpickling it creates a directory."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_pickle_is_rejected_and_not_executed(tmp_path):
    for protocol in range(6):
        file = tmp_path / "policy.onnx"
        file.write_bytes(pickle.dumps(Bomb(tmp_path / "went off"), protocol=protocol))
        with pytest.raises(CheckpointError):
            RuntimePolicy.load(file)
    assert not (tmp_path / "went off").exists()


def test_zip_archive_is_rejected(exported, tmp_path):
    with zipfile.ZipFile(tmp_path / "policy.onnx", "w") as archive:
        archive.write(exported, "policy.onnx")
    with pytest.raises(CheckpointError, match="zip archive"):
        RuntimePolicy.load(tmp_path / "policy.onnx")


def test_weights_that_are_not_finite_are_rejected(model):
    weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
    values = numpy_helper.to_array(weight).copy()
    for bad in (np.nan, np.inf):
        values[0, 0] = bad
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        assert_rejected(sign_graph(onnx.ModelProto.FromString(model.SerializeToString())), "not finite")
    weight.CopyFrom(helper.make_tensor(weight.name, TensorProto.FLOAT, values.shape, values.ravel()))
    assert weight.float_data  # written one by one, instead of as raw bytes
    assert_rejected(sign_graph(model), "not finite")


def test_weights_that_overflow_are_rejected(model):
    weight = next(w for w in model.graph.initializer if "drift.bias" in w.name)
    weight.CopyFrom(numpy_helper.from_array(np.full(5, 3e38, np.float32), weight.name))
    assert_rejected(sign_graph(model), "trial run")


def test_weights_of_wrong_shape_are_rejected(model):
    weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
    weight.CopyFrom(numpy_helper.from_array(np.zeros((16, 15), np.float32), weight.name))
    assert_rejected(sign_graph(model), "onnxruntime cannot (load|run) the graph")


def test_weights_in_another_file_are_rejected(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4 * 256))
    for location in (str(secret), "../../../etc/passwd", "beside.bin"):
        weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
        weight.ClearField("raw_data")
        del weight.external_data[:]
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        assert_rejected(
            sign_graph(onnx.ModelProto.FromString(model.SerializeToString())),
            "onnxruntime cannot load the graph",
        )


def test_huge_inputs_and_outputs_are_rejected(model):
    def enlarge(record):
        record["inputs"] += [{"name": f"n{i}", "kind": "normal", "shape": [2**23]} for i in range(3)]

    assert_rejected(sign_graph(model, enlarge), "inputs or outputs of 251[0-9]+ numbers are too large")


def test_file_without_record_is_rejected(model):
    del model.metadata_props[:]
    assert_rejected(model.SerializeToString(), "no 'nsde_policy' metadata")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda r: r.update(format=1), "format 1, this version reads 2; export it again"),
        (lambda r: r.pop("calibration"), "calibration"),
        (lambda r: r["calibration"].update(step=[1.0], acceleration=[1.0]), "belongs to another run"),
        (lambda r: r["calibration"].update(threshold=float("nan")), "finite"),
        (lambda r: r["calibration"]["precision"].append([1.0]), "square"),
        (lambda r: r.update(format="1"), "format must be int"),
        (lambda r: r.pop("spec"), "spec"),
        (lambda r: r.update(graph_sha256="0" * 64), "damaged or changed"),
        (lambda r: r.update(steps=3), "chunk sizes"),
        (lambda r: (r.update(steps=3), r["spec"].update(longest_chunk=3, chunk=3)), "metadata says"),
        (lambda r: r.update(foresees=False), "outputs of the graph"),
        (lambda r: r["spec"].update(obs_dim=4), "low must hold 6"),
        (lambda r: r["spec"].update(obs_dim=10**9), "needs 1 to 100000 dimensions"),
        (lambda r: r["spec"].update(history=3), "first input"),
        (lambda r: r["spec"]["low"].__setitem__(0, float("nan")), "finite"),
        (lambda r: r["spec"].update(first_action_from=[7, 8]), "first_action_from"),
        (lambda r: r["spec"].update(surprise=1), "no setting 'surprise'"),
        (lambda r: r["inputs"][1].update(shape=[10**6, 10**6]), "invalid shape"),
        (lambda r: r["inputs"][1].update(shape=[1, 1]), "metadata says"),
        (lambda r: r["inputs"][1].update(kind="states"), "only the first"),
        (lambda r: r["inputs"].pop(), "metadata says"),
        (lambda r: r.update(inputs=5), "inputs"),
        (lambda r: r.clear(), "metadata is invalid"),
    ],
)
def test_invalid_record_is_rejected(model, change, match):
    assert_rejected(sign_graph(model, change), match)


def test_deeply_nested_metadata_is_rejected(model):
    del model.metadata_props[:]
    assert_rejected(add_record(model.SerializeToString(), "[" * 100_000), "metadata is invalid")


def test_first_action_graph_of_another_policy_is_rejected(exported, tmp_path):
    for name in ("policy.onnx", "policy.first.onnx"):
        (tmp_path / name).write_bytes((exported.parent / name).read_bytes())
    assert RuntimePolicy.load(tmp_path / "policy.onnx").spec.chunk == 4
    other = onnx.load(tmp_path / "policy.first.onnx")
    forged = sign_graph(other, lambda record: record.update(fingerprint="another"))
    (tmp_path / "policy.first.onnx").write_bytes(forged)
    with pytest.raises(CheckpointError, match="does not belong to"):
        RuntimePolicy.load(tmp_path / "policy.onnx")
