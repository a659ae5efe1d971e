"""Build models from settings and load trained ones from run directories."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from nsde_policy.core.spec import CameraSpec
from nsde_policy.encoders.encoder_model import VISIBILITY_FILE, EncoderModel, VisibilityHead
from nsde_policy.encoders.registry import get_encoder
from nsde_policy.errors import CheckpointError, NsdePolicyError
from nsde_policy.interface.planner import PolicySpec
from nsde_policy.methods.base import PolicyModel
from nsde_policy.methods.registry import get_method
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory, RunRecord, check_encoder

LoadedModel = PolicyModel[Any]
"""A model of any method: its training data do not matter here."""


def build_policy_spec(record: RunRecord) -> PolicySpec:
    """Return sizes and ranges of a run's policy."""
    config = record.config
    return PolicySpec(
        **vars(record.spec),
        history=config.model.history,
        chunk=config.chunk,
        longest_chunk=config.model.longest_chunk or 0,
        first_action_from=config.demos.first_action_from or (),
        first_action=config.demos.first_action,
        method=config.method,
        encoder=config.demos.encoder,
        cameras=record.cameras,
        survives_lost_camera=config.demos.images_dropout > 0,
    )


def build_model(record: RunRecord) -> LoadedModel:
    """Build the model of a run with initial weights sampled from its seed."""
    model: type[LoadedModel] = get_method(record.config.method).model_class()
    return model(record.config.model, record.spec, generator=torch.Generator().manual_seed(record.seed))


def build_encoder(
    config: RunConfig, cameras: Sequence[CameraSpec], *, plain_dim: int, seed: int
) -> EncoderModel:
    """Build the encoder of images of a run with initial weights sampled from its seed."""
    model: Any = get_encoder(config.demos.encoder).model_class()
    encoder: EncoderModel = model(
        config.encoder, cameras, plain_dim=plain_dim, generator=torch.Generator().manual_seed(seed)
    )
    return encoder


def load_model(run: RunDirectory) -> tuple[RunRecord, LoadedModel]:
    """Load a trained model in evaluation mode; raise `CheckpointError` if its weights do not fit."""
    record, weights = run.read_record(), run.read_weights()
    with check_weights(run, weights):
        model = build_model(record)
        model.allocate_for(weights)
        model.load_state_dict(weights)
    return record, model.eval()


def load_encoder(run: RunDirectory, record: RunRecord) -> EncoderModel | None:
    """Load the encoder of images of a run in evaluation mode; None if the run has no cameras."""
    if not record.cameras:
        return None
    directory = run.encoder
    weights = directory.read_weights()
    check_encoder(run.model, weights)
    margin = get_encoder(record.config.demos.encoder).model_class().build_margin
    with check_weights(directory, weights, margin=margin):
        spec = record.spec
        model = build_encoder(record.config, record.cameras, plain_dim=spec.plain_dim, seed=record.seed)
        model.load_state_dict(weights)
        if model.feature_dim != spec.image_features:
            raise RuntimeError(
                f"its features have {model.feature_dim} values, the policy expects {spec.image_features}"
            )
    file = directory.path / VISIBILITY_FILE
    if os.path.lexists(file):  # a training that was stopped has none
        head = directory.read_tensors(file)
        check_encoder(file, weights)
        with check_weights(directory, head, advice=f"; restore {file}, or delete it"):
            model.visibility = VisibilityHead(len(head["mean"]))
            model.visibility.load_state_dict(head)
    return model.eval()


@contextmanager
def check_weights(
    run: RunDirectory, weights: Mapping[str, torch.Tensor], *, advice: str = "", margin: int = 4
) -> Iterator[None]:
    """Raise `CheckpointError` if the weights of a run do not fit the model that the block builds.

    A forged config.json may describe a network that fills the memory, so modules far larger than the weights
    are refused before they are created: `margin` times as large.
    """
    most, count = margin * sum(tensor.numel() for tensor in weights.values()) + 1000, 0
    thread = threading.get_ident()

    def refuse_too_many(module: object, name: str, parameter: object) -> None:
        nonlocal count
        if isinstance(parameter, torch.Tensor) and threading.get_ident() == thread:
            count += parameter.numel()
            if count > most:
                raise ValueError(f"its settings make more than {most} parameters")

    hook = register_module_parameter_registration_hook(refuse_too_many)
    try:
        yield
    except NsdePolicyError:
        raise
    except (RuntimeError, MemoryError, OverflowError, TypeError, ValueError, LookupError) as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"{run.model} does not match its config.json: {problem}{advice}") from None
    finally:
        hook.remove()
