"""A small training for several processes: `torchrun -m tests.helpers.rank_training FOLDER STEPS DEVICE`."""

import json
import os
import shutil
import sys
from pathlib import Path

import torch

from nsde_policy.config import NetworkConfig, TrainConfig
from nsde_policy.methods.neural_sde.config import NeuralSDEConfig
from nsde_policy.run_config import RunConfig
from nsde_policy.run_directory import RunDirectory
from nsde_policy.training.distributed import average_ranks, is_any_rank
from nsde_policy.training.options import TrainOptions
from nsde_policy.training.train import pick_device, train_run
from tests.helpers.toy_problems import make_robot_demos


def train_small(folder: Path, steps: int, device: str = "cpu") -> RunDirectory:
    """Train, or resume, a small policy of demonstrations of a robot, with a checkpoint at every record."""
    train = TrainConfig(steps=steps, batch_size=64, log_every=10, ema=0.9, learning_rate=3e-3)
    options = TrainOptions(seed=3, device=device, resume=True, validation=0.2, save_every_s=0.0)
    config = RunConfig(model=NeuralSDEConfig(network=NetworkConfig(width=32, depth=2)), train=train)
    return train_run(make_robot_demos(), config, folder / "run", options=options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, rank = Path(sys.argv[1]), os.environ["RANK"]
    (where / f"pid{rank}").write_text(str(os.getpid()))
    trained = train_small(where, int(sys.argv[2]), pick_device(sys.argv[3]))
    weight = torch.nn.Parameter(torch.zeros(2, device=sys.argv[3]))
    weight.grad = torch.full_like(weight, float(rank))
    losses = average_ranks((weight,), {"loss": weight.new_tensor(float("nan" if rank == "1" else 1))})
    agreed = {
        "gradient": weight.grad.tolist(),
        "diverged": not bool(losses["loss"].isfinite()),
        "stopped": is_any_rank(rank == "1"),
    }
    (where / f"rank{rank}.json").write_text(json.dumps(agreed))
    shutil.copy(trained.training, where / f"rank{rank}.safetensors")
