"""Settings and fixtures of all tests: markers, one torch thread, the human demonstrations."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nsde_policy.cli.main import main
from tests.helpers.browser import chromium
from tests.helpers.shared_files import make_once

if TYPE_CHECKING:
    import numpy as np
    from playwright.sync_api import Browser

settings.register_profile("repeatable", derandomize=True, deadline=None)  # no failures on a busy machine
settings.load_profile("repeatable")
# With AVX-512, gradients of narrow convolutions over batches of two crash oneDNN (torch 2.13, some Xeons).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

DEFAULT_DEMOS = Path(__file__).parents[2] / "shared/demos/pusht_cchi_v7_replay.zarr"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options of single files."""
    parser.addoption(
        "--kills", type=int, default=2, help="ranks to kill in tests/training/test_distributed.py"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use a browser, skip those that cannot run here, run some first.

    Files whose tests export, and tests of Diffusion Policy, then run in one process: torch takes seconds to
    prepare for the first export, and so does the import of diffusers.
    """
    import torch  # only where tests run: the process that starts the others does not need it

    exporting = {item.path for item in items if "onnx_operators" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (item.path not in exporting, "diffusion" not in find_parameter(item)))
    for item in items:
        if "browser_process" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
        if item.get_closest_marker("ray") and "PYTEST_XDIST_WORKER" in os.environ:
            item.add_marker(pytest.mark.skip(reason="starts Ray, which takes a quiet machine: pytest -m ray"))


def find_parameter(item: pytest.Item) -> str:
    """Return the parameters in the name of a test, and the name of its file."""
    return f"{item.path.stem}{item.name.partition('[')[2]}"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Limit torch to one thread, also in processes of tests and in the training of encoders.

    Results then do not depend on the number of cores, and threads do not wait for each other: with one for
    each core in every test process, a training took ten times as long.
    """
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def onnx_operators() -> None:
    """Let torch collect the operators of ONNX once in a process: it takes a third of each small export."""
    with suppress(ImportError, AttributeError):  # in other versions of torch
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score policies on recorded episodes with few plans from each frame."""
    from nsde_policy.eval.score import scorer

    monkeypatch.setattr(scorer, "score", partial(scorer.score, samples=4))


@pytest.fixture(scope="module")
def browser_process() -> "Iterator[Browser]":
    """Run a browser for one file of tests: while it runs, the process cannot run another event loop."""
    with chromium() as found:
        yield found


@pytest.fixture
def browser(browser_process: "Browser") -> "Iterator[Browser]":
    """Return the browser, and close all of its pages afterwards: an open page goes on drawing."""
    yield browser_process
    for context in browser_process.contexts:
        context.close()


@pytest.fixture(scope="session")
def human_demos() -> Path:
    """Return the store of 206 human Push-T demonstrations, which is not part of the repository."""
    path = Path(os.environ.get("NSDE_POLICY_DEMOS", DEFAULT_DEMOS))
    if not path.exists():
        pytest.skip(f"no human demonstrations at {path}: data download pusht, set NSDE_POLICY_DEMOS")
    return path


@pytest.fixture(scope="session")
def shared_demos() -> Path:
    """Return the folder with demonstrations of other tasks, which are not part of the repository."""
    if not DEFAULT_DEMOS.parent.exists():
        pytest.skip(f"no demonstrations in {DEFAULT_DEMOS.parent}")
    return DEFAULT_DEMOS.parent


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all test processes use."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def pixel_run(shared_folder: Path) -> Path:
    """Return the run directory of a barely trained Push-T policy from camera frames; do not change it."""
    from tests.helpers.pixel_runs import train_pixel_run

    return make_once(shared_folder / "pixels", train_pixel_run) / "run"


@pytest.fixture(scope="session")
def shipped_graph(shared_folder: Path, onnx_operators: None) -> Path:
    """Return the shipped policy without selection as an ONNX graph of nine actions; do not change it."""
    from nsde_policy.deploy.export import export_policy
    from nsde_policy.policy.policy import Policy

    def export(folder: Path) -> None:
        policy = Policy.from_pretrained().use_selection("none")
        export_policy(policy, folder / "policy.onnx", steps=9, cases=4)

    return make_once(shared_folder / "shipped", export) / "policy.onnx"


@pytest.fixture(scope="session")
def small_graph(tmp_path_factory: pytest.TempPathFactory, onnx_operators: None) -> Path:
    """Return a small Neural SDE as an ONNX graph of four actions; do not change it."""
    from tests.helpers.exported_policies import export_small_policy

    return export_small_policy(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def human_states(human_demos: Path) -> "tuple[np.ndarray, np.ndarray]":
    """Return all recorded states, (25650, 5), and the end of each episode, (206,)."""
    from nsde_policy.data import load_demonstrations

    demos = load_demonstrations(human_demos)
    return demos.obs, demos.episode_ends


@pytest.fixture(scope="session")
def quick_runs(shared_folder: Path) -> list[Path]:
    """Two Neural SDEs that differ in their seed, and a regression, trained for a few steps; leave them."""
    quick = ["--train.steps", "20", "--train.log-every", "10", "--model.network.width", "16"]
    quick += ["--select", "none", "--demos.no-align-ends", "--device", "cpu"]
    methods = {"ours-0": "neural_sde", "ours-1": "neural_sde", "theirs-0": "regression"}

    def train(folder: Path) -> None:
        for name, method in methods.items():
            flags = ["--policy", method, "--seed", name[-1], "--out", str(folder / name)]
            assert main(["train", *quick, *flags]) == 0

    folder = make_once(shared_folder / "quick", train)
    return [folder / name for name in methods]
