"""Training in several processes, the ranks of torchrun, each with its own GPU or its own cores.

Each rank samples its own part of every batch: its number is part of the seed. All of them then make the same
update with the mean gradient, so that their weights stay equal. Rank 0 writes the run directory.
"""

import atexit
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nsde_policy.errors import ConfigError, NsdePolicyError
from nsde_policy.files import PARTIAL
from nsde_policy.ranks import is_launched

logger = logging.getLogger(__name__)

LONGEST_WAIT = timedelta(minutes=30)
"""Time after which a rank gives up waiting for the others, which may decode frames for minutes."""


def is_distributed() -> bool:
    """Return whether this process trains together with others."""
    return bool(dist.is_available() and dist.is_initialized())


def get_rank() -> int:
    """Return the number of this process among those that train together; 0 if it trains alone."""
    return dist.get_rank() if is_distributed() else 0


def is_first_rank() -> bool:
    """Return whether this process writes the run: it trains alone, or has rank 0."""
    return get_rank() == 0


def use_own_gpu(device: str) -> None:
    """Make "cuda" the GPU of this process; without torchrun, leave the choice to torch.

    Raises:
        ConfigError: If the device has a number, or there are fewer GPUs than processes.
    """
    if not is_launched() or device == "cpu" or not torch.cuda.is_available():
        return
    if ":" in device:
        raise ConfigError(f"torchrun gives each process its own GPU: use --device cuda, not {device}")
    gpu, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if gpu >= gpus:
        raise ConfigError(f"process {gpu} has no GPU: use --nproc-per-node {gpus}, or --device cpu")
    torch.cuda.set_device(gpu)


def join_ranks(path: Path, batches: Mapping[str, int], *, device: str, resume: bool) -> Path:
    """Connect the processes of torchrun, and return the run directory of this one; without torchrun, `path`.

    Rank 0 trains into `path`. Any other rank works in a folder next to it, which is deleted at its end. To
    resume, it starts with a copy of `path`, which all machines have to see.

    Raises:
        ConfigError: If one of the `batches`, sizes by their flags, cannot be divided evenly, or a process
            does not see the files of a run to resume.
    """
    if not is_launched():
        return path
    if not dist.is_initialized():
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        store, rank, ranks = next(dist.rendezvous("env://", timeout=LONGEST_WAIT))
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # holds no older addresses
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=LONGEST_WAIT)
    for flag, size in batches.items():
        split_batch(size, flag)
    ranks = dist.get_world_size()
    logger.info("training in %d processes: each samples 1/%d of every batch (--batch-size)", ranks, ranks)
    has_run = resume and path.exists()
    own = path if is_first_rank() else _make_own_folder(path, copy=has_run)
    if is_any_rank(has_run) and is_any_rank(resume and not has_run):  # waits until all ranks have a copy
        raise ConfigError(f"only some of the machines have {path}: --resume needs it on all of them")
    return own


def _make_own_folder(path: Path, *, copy: bool) -> Path:
    """Return the folder of a rank other than 0, which is deleted when this process ends."""
    whole = path.resolve()
    own = whole.with_name(f".{whole.name}.rank{dist.get_rank()}")
    shutil.rmtree(own, ignore_errors=True)  # a killed process leaves it behind
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    if copy:
        shutil.copytree(whole, own, ignore=shutil.ignore_patterns(f"*{PARTIAL}"))
    return own


def split_batch(size: int, flag: str = "--batch-size") -> int:
    """Return how many rows of a batch this process samples.

    Raises:
        ConfigError: If a batch cannot be divided evenly; the message names the `flag`.
    """
    ranks = dist.get_world_size() if is_distributed() else 1
    if size % ranks:
        raise ConfigError(
            f"a batch of {size} cannot be divided evenly among {ranks} processes: use {flag} "
            f"{size - size % ranks or ranks}, or another number of processes"
        )
    return size // ranks


def copy_first_rank(model: nn.Module) -> None:
    """Give a model the weights that it has in rank 0; other machines may round differently."""
    if is_distributed():
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)


def average_ranks(parameters: Sequence[nn.Parameter], losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace gradients by their means over all ranks, and return the mean losses.

    Everything is exchanged at once. A loss that is not finite in one rank makes the mean
    non-finite in every rank.

    Raises:
        NsdePolicyError: If another process has ended.
    """
    if not is_distributed():
        return dict(losses)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tensors = [*grads, *losses.values()]
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    try:
        dist.all_reduce(flat)
    except RuntimeError as error:
        raise NsdePolicyError(
            "another process of this training ended; continue with the same command and --resume"
        ) from error
    flat /= dist.get_world_size()
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    means = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(grads, means[: len(grads)])
    return dict(zip(losses, means[len(grads) :], strict=True))


def is_any_rank(condition: bool) -> bool:
    """Return whether a condition holds in any of the processes, which all have to ask."""
    if not is_distributed():
        return condition
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    is_true = torch.tensor(float(condition), device=device)
    dist.all_reduce(is_true, dist.ReduceOp.MAX)
    return bool(is_true)
