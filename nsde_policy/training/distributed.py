"""Training in several processes, the ranks of torchrun, each with its own GPU or its own cores.

Each rank computes the gradient of its share of every batch. All of them then make the same update with the
mean gradient, so that their weights stay equal. Rank 0 writes the run directory.
"""

import atexit
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsde_policy.errors import CheckpointError, ConfigError, NsdePolicyError
from nsde_policy.files import read_file, replace_file
from nsde_policy.run_directory import MAX_TENSOR_BYTES

logger = logging.getLogger(__name__)

LONGEST_WAIT = timedelta(minutes=30)
"""Time after which a rank gives up waiting for the others, which may decode frames for minutes."""
COPIED = (".json", ".safetensors")
"""Suffixes of the files of a run that are needed to resume it."""


def _is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_distributed() -> bool:
    """Return whether this process trains together with others."""
    return bool(dist.is_available() and dist.is_initialized())


def is_first_rank() -> bool:
    """Return whether this process writes the run: it trains alone, or has rank 0."""
    return not is_distributed() or dist.get_rank() == 0


def use_own_gpu(device: str) -> None:
    """Make "cuda" the GPU of this process; without torchrun, leave the choice to torch.

    Raises:
        ConfigError: If the device has a number, or there are fewer GPUs than processes.
    """
    if not _is_launched() or device == "cpu" or not torch.cuda.is_available():
        return
    if ":" in device:
        raise ConfigError(f"torchrun gives each process its own GPU: use --device cuda, not {device}")
    gpu, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if gpu >= gpus:
        raise ConfigError(f"process {gpu} has no GPU: use --nproc-per-node {gpus}, or --device cpu")
    torch.cuda.set_device(gpu)


def join_ranks(path: Path, batches: Mapping[str, int], *, device: str, resume: bool) -> Path:
    """Connect the processes of torchrun, and return the run directory of this one; without torchrun, `path`.

    Rank 0 trains into `path`. Any other rank works in a folder next to it, which is deleted at its end. It
    starts with the files of a run to resume, which may be missing on its machine.

    Raises:
        ConfigError: If one of the `batches`, sizes by their flags, cannot be divided evenly.
    """
    if not _is_launched():
        return path
    if not dist.is_initialized():
        backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
        store, rank, ranks = next(dist.rendezvous("env://", timeout=LONGEST_WAIT))
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # holds no older addresses
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=LONGEST_WAIT)
    check_batches(batches)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    logger.info("training in %d processes: each computes 1/%d of every batch (--batch-size)", ranks, ranks)
    files = _receive_files(path if resume else None)
    if rank == 0:
        return path
    whole = path.resolve()
    own = whole.with_name(f".{whole.name}.rank{rank}")
    shutil.rmtree(own, ignore_errors=True)  # a killed process leaves it behind
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    for name, content in files.items():
        replace_file(own / name, content.numpy().tobytes())
    return own


def _receive_files(path: Path | None) -> dict[str, Tensor]:
    """Return the content of the files of a run by name, as rank 0 finds them."""
    found: dict[str, Tensor] = {}
    if dist.get_rank() == 0 and path is not None:
        for file in sorted(path.rglob("*")):
            if file.suffix in COPIED:
                content = bytearray(read_file(file, MAX_TENSOR_BYTES, error=CheckpointError))
                found[str(file.relative_to(path))] = torch.frombuffer(content, dtype=torch.uint8)
    packed = torch.frombuffer(bytearray(save(found)), dtype=torch.uint8).to(_get_device())
    size = torch.tensor(len(packed), device=_get_device())
    dist.broadcast(size, 0)
    packed = packed if dist.get_rank() == 0 else packed.new_empty(int(size))
    dist.broadcast(packed, 0)
    files: dict[str, Tensor] = load(packed.cpu().numpy().tobytes())
    return files


def _get_device() -> str:
    """Return the device of tensors that ranks can exchange."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def check_batches(sizes: Mapping[str, int]) -> None:
    """Raise `ConfigError` if a batch, by the name of its flag, cannot be divided evenly."""
    ranks = dist.get_world_size() if is_distributed() else 1
    for flag, size in sizes.items():
        if size % ranks:
            raise ConfigError(
                f"a batch of {size} cannot be divided evenly among {ranks} processes: use {flag} "
                f"{size - size % ranks or ranks}, or another number of processes"
            )


def find_own_rows(batch_size: int) -> range:
    """Return the rows of a batch that this process computes; raise `ConfigError` if it cannot be divided."""
    if not is_distributed():
        return range(batch_size)
    check_batches({"--batch-size": batch_size})
    rank, rows = dist.get_rank(), batch_size // dist.get_world_size()
    return range(rank * rows, (rank + 1) * rows)


class SharedRows(TorchFunctionMode):
    """Context in which a process computes the loss of its rows of a batch, as if it had all of them.

    Functions that draw random numbers of a shape with a generator draw them for the whole batch, and return
    those of this process. Training then does not depend on the number of processes, and their generators stay
    equal.

    Rows are along the first dimension of size `rows`, or else the first whose size is a multiple of it, as
    after flattening. Tensors with neither are the same in all processes.
    """

    def __init__(self, *, rank: int, ranks: int, rows: int) -> None:
        super().__init__()
        self._rank, self._ranks, self._rows = rank, ranks, rows

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Call a function of torch, or one that asks `has_torch_function`."""
        kwargs = kwargs or {}
        if kwargs.get("generator") is None or isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        *others, shape = (args,) if isinstance(args[-1], int) else args
        sizes = list(shape)
        dims = [i for i, size in enumerate(sizes) if size == self._rows]
        dims += [i for i, size in enumerate(sizes) if size and size % self._rows == 0]
        if not dims:
            return func(*args, **kwargs)
        own = sizes[dims[0]]
        sizes[dims[0]] = own * self._ranks
        return func(*others, tuple(sizes), **kwargs).narrow(dims[0], own * self._rank, own)


def share_rows(batch_size: int) -> AbstractContextManager[object]:
    """Return the context of a loss: random numbers are those of this process's rows of the whole batch."""
    rows = len(find_own_rows(batch_size))
    if not is_distributed():
        return nullcontext()
    return SharedRows(rank=dist.get_rank(), ranks=dist.get_world_size(), rows=rows)


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
    means = [
        part.view_as(tensor)
        for part, tensor in zip(
            torch.split(flat, [tensor.numel() for tensor in tensors]), tensors, strict=True
        )
    ]
    torch._foreach_copy_(grads, means[: len(grads)])
    return dict(zip(losses, means[len(grads) :], strict=True))


def is_any_rank(condition: bool) -> bool:
    """Return whether a condition holds in any of the processes, which all have to ask."""
    if not is_distributed():
        return condition
    found = torch.tensor(float(condition), device=_get_device())
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)
