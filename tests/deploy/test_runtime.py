"""Tests for runtime: the exported policy without torch, and files that must not be run."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from nsde_policy.deploy.runtime import RuntimePolicy
from nsde_policy.deploy.runtime.graph import Graph
from nsde_policy.deploy.runtime.metadata import KEY
from nsde_policy.deploy.runtime.onnx_file import checked_record, graph_sha256, with_metadata
from nsde_policy.errors import ConfigError, GraphError, PolicyInputError
from tests.helpers.exported_policies import export_small, fresh, neural_sde, some_states

ROOT = Path(__file__).parents[2]
OBS = np.array([0.4, 1.0, 300.0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return export_small(tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def policy(exported) -> RuntimePolicy:
    return RuntimePolicy.load(exported)


def test_it_runs_where_importing_torch_fails(exported):
    code = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxscript', 'safetensors', 'gymnasium', 'zarr', 'tyro'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np\n"
        "import nsde_policy.inference.spec, nsde_policy.inference.history\n"
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


def test_the_same_states_and_seed_give_the_same_plan(policy):
    states = some_states(2)
    plan = policy.plan_from(states, steps=4, seed=7)
    again, other = (policy.plan_from(states, steps=4, seed=seed) for seed in (7, 8))
    assert np.array_equal(plan.actions, again.actions)
    assert not np.array_equal(plan.actions, other.actions)
    assert plan.actions.shape == (4, 2)
    assert np.array_equal(plan.states[1:, 3:], plan.actions)
    assert np.array_equal(plan.states[0], states[0].astype(np.float64))


def test_a_shorter_plan_is_the_beginning_of_a_longer_one(policy):
    states = some_states(2)
    whole = policy.plan_from(states, steps=4, seed=7)
    assert np.array_equal(policy.plan_from(states, steps=3, seed=7).actions, whole.actions[:3])
    first = policy.first_action(states, seed=7)  # from a graph of its own
    np.testing.assert_allclose(first, whole.actions[0], rtol=0, atol=1e-5)


def test_a_plan_is_not_changed_by_the_next_one(policy):
    plan = policy.plan_from(some_states(2), steps=4, seed=0)
    kept = plan.actions.copy(), plan.states.copy()
    policy.plan_from(some_states(2, seed=1), steps=4, seed=1)
    assert np.array_equal(plan.actions, kept[0])
    assert np.array_equal(plan.states, kept[1])


def test_actions_have_the_law_of_the_policy_on_torch(policy):
    states, n = some_states(2), 300
    on_torch = fresh(neural_sde())
    ours, theirs = (
        np.array([planner.plan_from(states, steps=4, seed=seed).actions for seed in range(n)])
        for planner in (policy, on_torch)
    )
    error = np.sqrt((ours.var(0) + theirs.var(0)) / n)
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) < 4.5 * error)
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.25)


def test_a_chunk_is_executed_before_it_plans_again(policy):
    policy.reset(seed=5)
    executed = [policy.select_action(OBS) for _ in range(4)]
    assert np.array_equal(executed, policy.predict_action_chunk(OBS, seed=5))
    policy.reset(seed=5)
    assert np.array_equal(policy.select_action(OBS), executed[0])


def test_what_it_cannot_take_is_refused(policy):
    states = some_states(2)
    with pytest.raises(PolicyInputError, match=r"shape \(2, 5\), got \(5,\)"):
        policy.plan_from(states[0], steps=1, seed=0)
    with pytest.raises(PolicyInputError, match="finite"):
        policy.plan_from(np.full_like(states, np.nan), steps=1, seed=0)
    with pytest.raises(ConfigError, match=r"from 1 to 4 actions, 5 .* more --steps"):
        policy.plan_from(states, steps=5, seed=0)
    for seed, match in ((-1, "between 0 and"), (2**63, "between 0 and"), ("a", "whole"), (1.5, "whole")):
        with pytest.raises(PolicyInputError, match=match):
            policy.plan_from(states, steps=1, seed=seed)
    for steps in (2.5, "2", None, True):
        with pytest.raises(PolicyInputError, match="steps must be a whole number"):
            policy.plan_from(states, steps=steps, seed=0)
    with pytest.raises(PolicyInputError, match="states are numbers"):
        policy.plan_from("states", steps=1, seed=0)
    with pytest.raises(PolicyInputError, match="finite"):
        policy.select_action(np.array([0.4, np.inf, 300.0]))
    with pytest.raises(PolicyInputError, match="finite"):
        policy.plan_from(np.full((2, 5), 1e300), steps=4, seed=0)


def test_an_answer_that_is_not_finite_is_no_plan(exported, tmp_path):
    model, torch_policy = onnx.load(exported.parent / "policy.first.onnx"), fresh(neural_sde())
    middle = 0.5 * (np.array(torch_policy.spec.low) + np.array(torch_policy.spec.high))
    std = torch_policy.model.step_std(torch.from_numpy(np.tile(middle, 2)).float()).numpy()
    floor = next(w for w in model.graph.initializer if w.name == "floor")
    values = (
        numpy_helper.to_array(floor) - 0.9999 * std**2
    )  # roots of negative numbers, but not in the middle
    floor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), floor.name))
    (tmp_path / "policy.onnx").write_bytes(signed(model))
    policy = RuntimePolicy.load(tmp_path / "policy.onnx")

    def ask_everywhere() -> None:
        for seed in range(50):
            policy.plan_from(some_states(2, seed=seed), steps=1, seed=0)

    with pytest.raises(GraphError, match="actions that are not finite"):
        ask_everywhere()


def test_threads_may_share_it(policy):
    jobs = [(some_states(2, seed=i), i) for i in range(8)]
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


def test_calls_keep_no_memory(policy):
    states = some_states(2)

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


# Files that must not be run


def signed(model: onnx.ModelProto, change: Callable[[dict[str, Any]], None] = lambda record: None) -> bytes:
    """The model with its record, which fits the graph as it is now; a forger could write as much."""
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    record = json.loads(entry.value)
    del model.metadata_props[:]
    bare = model.SerializeToString()
    record["graph_sha256"] = graph_sha256(bare)
    change(record)
    return with_metadata(bare, json.dumps(record))


@pytest.fixture
def model(exported) -> onnx.ModelProto:
    return onnx.load(exported)


def refuse(content: bytes, match: str) -> None:
    with pytest.raises(GraphError, match=match):
        Graph(content)


def test_a_forged_file_that_changes_nothing_loads(model):
    Graph(signed(model))


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_a_file_cut_anywhere_is_refused(exported, cut):
    content = exported.read_bytes()
    with pytest.raises(GraphError):
        Graph(content[: int(cut * len(content))])


@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_a_changed_byte_is_refused_wherever_it_could_change_an_action(exported, at, bits):
    content = bytearray(exported.read_bytes())
    content[int(at * len(content))] ^= bits
    try:
        graph = Graph(bytes(content))
    except GraphError:
        return
    whole = Graph(exported.read_bytes())  # what can change unseen is text: names, versions, the spec
    for each in (graph, whole):
        each.inputs["states"][:] = some_states(2)
        each.run()
    assert np.array_equal(graph.outputs["actions"], whole.outputs["actions"])


@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_a_forged_graph_is_refused_or_runs_but_nothing_else_happens(exported, at, bits):
    model = onnx.load(exported)
    graph = bytearray(model.graph.SerializeToString())
    graph[int(at * len(graph))] ^= bits
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    del model.metadata_props[:]
    model.ClearField("graph")
    size, head = len(graph), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    bare = model.SerializeToString() + b"\x3a" + bytes([*head, size]) + bytes(graph)
    record = json.loads(entry.value) | {"graph_sha256": graph_sha256(bare)}
    content = with_metadata(bare, json.dumps(record))
    with contextlib.suppress(GraphError):
        Graph(content).run()


def test_a_name_that_is_no_text_is_refused_without_a_word_to_the_terminal(model, capfd):
    content = signed(model)
    graph = content.replace(b"trunk.layers.1.weight", b"trunk.layers.1.we\xff\xffht")
    record = {"graph_sha256": graph_sha256(graph)}
    (entry,) = [entry for entry in onnx.ModelProto.FromString(content).metadata_props if entry.key == KEY]
    refuse(with_metadata(graph, json.dumps(json.loads(entry.value) | record)), "UTF-8|cannot build it")
    assert capfd.readouterr() == ("", "")


def test_random_bytes_are_refused():
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 10, 1000, 100_000):
        with pytest.raises(GraphError):
            checked_record(rng.bytes(size))


def test_a_file_that_is_too_large_is_not_read(exported, tmp_path):
    huge = tmp_path / "huge.onnx"
    huge.touch()
    os.truncate(huge, 1 << 40)  # takes no room on the disk
    with pytest.raises(GraphError, match="at most 536870912 are read"):
        RuntimePolicy.load(huge)
    with pytest.raises(GraphError, match="at most 100 are read"):
        RuntimePolicy.load(exported, largest_bytes=100)


def test_what_is_no_regular_file_is_refused(tmp_path):
    with pytest.raises(GraphError, match="No such file"):
        RuntimePolicy.load(tmp_path / "absent.onnx")
    with pytest.raises(GraphError, match="no regular file"):
        RuntimePolicy.load(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would wait for ever
    with pytest.raises(GraphError, match="no regular file"):
        RuntimePolicy.load(tmp_path / "pipe.onnx")


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_a_pickle_is_refused_and_not_opened(tmp_path):
    for protocol in range(6):
        file = tmp_path / "policy.onnx"
        file.write_bytes(pickle.dumps(Bomb(tmp_path / "went off"), protocol=protocol))
        with pytest.raises(GraphError):
            RuntimePolicy.load(file)
    assert not (tmp_path / "went off").exists()


def test_a_zip_is_refused(exported, tmp_path):
    with zipfile.ZipFile(tmp_path / "policy.onnx", "w") as archive:
        archive.write(exported, "policy.onnx")
    with pytest.raises(GraphError, match="zip archive"):
        RuntimePolicy.load(tmp_path / "policy.onnx")


def test_weights_that_are_not_finite_are_refused(model):
    weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
    values = numpy_helper.to_array(weight).copy()
    for bad in (np.nan, np.inf):
        values[0, 0] = bad
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
        refuse(signed(onnx.ModelProto.FromString(model.SerializeToString())), "not finite")
    weight.CopyFrom(helper.make_tensor(weight.name, TensorProto.FLOAT, values.shape, values.ravel()))
    assert weight.float_data  # written one by one, instead of as raw bytes
    refuse(signed(model), "not finite")


def test_weights_so_large_that_answers_overflow_are_refused(model):
    weight = next(w for w in model.graph.initializer if w.name == "shift")
    weight.CopyFrom(numpy_helper.from_array(np.full(5, 3e38, np.float32), weight.name))
    refuse(signed(model), "trial call")


def test_weights_of_another_shape_are_refused(model):
    weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
    weight.CopyFrom(numpy_helper.from_array(np.zeros((16, 15), np.float32), weight.name))
    refuse(signed(model), "onnxruntime cannot build it|could not run it")


def test_weights_in_another_file_are_refused(model, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4 * 256))
    for location in (str(secret), "../../../etc/passwd", "beside.bin"):
        weight = next(w for w in model.graph.initializer if "trunk.layers.1.weight" in w.name)
        weight.ClearField("raw_data")
        del weight.external_data[:]
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        refuse(signed(onnx.ModelProto.FromString(model.SerializeToString())), "in another file")


def test_a_graph_within_an_operator_is_refused(model):
    body = helper.make_graph([], "body", [], [])
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    node = helper.make_node("If", ["flag"], ["nothing"], then_branch=body, else_branch=body)
    model.graph.initializer.append(flag)
    model.graph.node.append(node)
    refuse(signed(model), "holds a graph")


@pytest.mark.parametrize(("operator", "domain"), [("Loop", ""), ("RandomNormal", ""), ("Gelu", "com.evil")])
def test_operators_that_exports_never_use_are_refused(model, operator, domain):
    model.graph.node.append(helper.make_node(operator, [], ["nothing"], domain=domain))
    refuse(signed(model), f"operator {domain or 'ai.onnx'}.{operator}")


def test_functions_are_refused(model):
    function = helper.make_function("com.evil", "Gelu", ["x"], ["y"], [], [])
    model.functions.append(function)
    refuse(signed(model), "functions")


def test_a_file_without_its_record_is_refused(model):
    del model.metadata_props[:]
    refuse(model.SerializeToString(), "no 'nsde_policy' metadata")


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
        (lambda r: r.update(foresees=False), "outputs of its graph"),
        (lambda r: r["spec"].update(obs_dim=4), "low must hold 6"),
        (lambda r: r["spec"].update(obs_dim=10**9), "sizes"),
        (lambda r: r["spec"].update(history=3), "first input"),
        (lambda r: r["spec"]["low"].__setitem__(0, float("nan")), "finite"),
        (lambda r: r["spec"].update(first_action_from=[7, 8]), "first_action_from"),
        (lambda r: r["spec"].update(surprise=1), "no setting 'surprise'"),
        (lambda r: r["inputs"][1].update(shape=[10**6, 10**6]), "cannot have the shape"),
        (lambda r: r["inputs"][1].update(shape=[1, 1]), "metadata says"),
        (lambda r: r["inputs"][1].update(kind="states"), "only the first"),
        (lambda r: r["inputs"].pop(), "metadata says"),
        (lambda r: r.update(inputs=5), "inputs"),
        (lambda r: r.clear(), "metadata cannot be right"),
    ],
)
def test_a_record_that_cannot_be_right_is_refused(model, change, match):
    refuse(signed(model, change), match)


def test_deeply_nested_metadata_is_refused(model):
    del model.metadata_props[:]
    refuse(with_metadata(model.SerializeToString(), "[" * 100_000), "metadata cannot be right")


def test_a_first_action_graph_of_another_policy_is_refused(exported, tmp_path):
    for name in ("policy.onnx", "policy.first.onnx"):
        (tmp_path / name).write_bytes((exported.parent / name).read_bytes())
    assert RuntimePolicy.load(tmp_path / "policy.onnx").spec.chunk == 4
    other = onnx.load(tmp_path / "policy.first.onnx")
    forged = signed(other, lambda record: record.update(fingerprint="another"))
    (tmp_path / "policy.first.onnx").write_bytes(forged)
    with pytest.raises(GraphError, match="does not belong to"):
        RuntimePolicy.load(tmp_path / "policy.onnx")
