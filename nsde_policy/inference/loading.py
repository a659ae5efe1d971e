"""Building models from settings, and loading trained ones from run directories."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from nsde_policy.errors import CheckpointError
from nsde_policy.inference.spec import PolicySpec
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.run_directory import RunDirectory, RunRecord


def build_policy_spec(record: RunRecord) -> PolicySpec:
    """The sizes of a run's policy."""
    config, layout = record.config, record.layout
    return PolicySpec(
        obs_dim=layout.obs_dim,
        act_dim=layout.act_dim,
        history=config.model.history,
        chunk=config.chunk,
        longest_chunk=config.model.longest_chunk or 0,
        first_action_from=config.demos.first_action_from,
        circular=layout.circular,
        low=layout.low,
        high=layout.high,
        increment_std=layout.increment_std,
        method=config.method,
        encoder=config.demos.encoder,
    )


def build_model(record: RunRecord) -> PolicyModel[Any]:
    """The model of a run, with fresh weights drawn from its seed."""
    model = get_method(record.config.method).model_class()
    return model(record.config.model, record.layout, generator=torch.Generator().manual_seed(record.seed))


@contextmanager
def at_most_parameters(most: int) -> Iterator[None]:
    """Raise `RuntimeError` before this thread makes modules of more parameters than that, in numbers.

    Settings can name sizes that no memory holds; weights of such sizes would be in a file.
    """
    made, thread = 0, threading.get_ident()

    def count(module: object, name: str, parameter: object) -> None:
        nonlocal made
        if isinstance(parameter, torch.Tensor) and threading.get_ident() == thread:
            made += parameter.numel()
            if made > most:
                raise RuntimeError(f"its settings make more than {most} parameters")

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def load_model(run: RunDirectory) -> tuple[RunRecord, PolicyModel[Any]]:
    """A trained model in evaluation mode, strictly: every weight there, of its shape, finite."""
    record, weights = run.record(), run.weights()
    try:
        with at_most_parameters(4 * sum(tensor.numel() for tensor in weights.values()) + 1000):
            model = build_model(record)
        model.allocate_for(weights)
        model.load_state_dict(weights)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"{run.model} does not fit its config.json: {problem}") from None
    return record, model.eval()
