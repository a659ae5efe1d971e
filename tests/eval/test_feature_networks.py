"""Tests of I3D as a feature network, with random weights in the layout of the published file."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from nsde_policy.errors import ConfigError
from nsde_policy.eval.video.i3d import (
    I3DNetwork,
    InceptionBlock,
    load_features,
    pad_like_tensorflow,
)

PUBLISHED_PARAMETERS = 12_697_264
"""12.69 million of RGB with 400 classes (docs.openvino.ai, i3d-rgb-tf)."""


def make_random(network: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Give a network in eval mode random weights and statistics of about the usual size."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if tensor.ndim == 5:
            tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5, generator=generator)
        elif name.endswith(("running_var", "bn.weight")):
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif not name.endswith("num_batches_tracked"):
            tensor.normal_(0, 0.1, generator=generator)
    return network.eval()


@pytest.fixture(scope="module")
def layout() -> dict[str, torch.Tensor]:
    """Return the tensors of I3D without their values."""
    with torch.device("meta"):
        return I3DNetwork().state_dict()


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "zeros"),
    [(224, 7, 2, (2, 3)), (15, 7, 2, (3, 3)), (112, 3, 2, (0, 1)), (7, 2, 2, (0, 1)), (9, 1, 1, (0, 0))],
)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_padding_follows_the_rule_of_tensorflow(size, kernel, stride, zeros, axis):
    shape, window, steps = [1, 1, 1], [1, 1, 1], [1, 1, 1]
    shape[axis], window[axis], steps[axis] = size, kernel, stride
    padded = pad_like_tensorflow(torch.ones(1, 1, *shape), tuple(window), tuple(steps)).flatten()
    assert padded.tolist() == [0] * zeros[0] + [1] * size + [0] * zeros[1]
    assert (len(padded) - kernel) // stride + 1 == -(-size // stride)


def test_a_block_joins_its_four_branches_in_order():
    block = make_random(InceptionBlock(5, 2, 3, 4, 1, 3, 2), 0)
    x = torch.rand(2, 5, 3, 4, 6, generator=torch.Generator().manual_seed(1))

    def convolve(name: str, inputs: torch.Tensor, padding: int) -> torch.Tensor:
        unit = block.get_submodule(name)
        filtered = functional.conv3d(inputs, unit.conv3d.weight, padding=padding)
        stats = [getattr(unit.bn, part)[:, None, None, None] for part in ("running_mean", "running_var")]
        scale, shift = (getattr(unit.bn, part)[:, None, None, None] for part in ("weight", "bias"))
        return ((filtered - stats[0]) / (stats[1] + 1e-3).sqrt() * scale + shift).relu()

    with torch.no_grad():
        branches = [
            convolve("b0", x, 0),
            convolve("b1b", convolve("b1a", x, 0), 1),
            convolve("b2b", convolve("b2a", x, 0), 1),
            convolve("b3b", functional.max_pool3d(x, 3, 1, 1), 0),
        ]
        assert torch.allclose(block(x), torch.cat(branches, dim=1), atol=1e-5)


def test_i3d_has_the_published_tensors(layout):
    counted = [tensor.numel() for name, tensor in layout.items() if name.endswith(("weight", "bias"))]
    assert sum(counted) == PUBLISHED_PARAMETERS


@pytest.mark.slow
def test_a_file_of_i3d_gives_the_logits_of_clips(tmp_path):
    network = make_random(I3DNetwork(), 0).half().float()
    weights = {
        name: tensor.half() for name, tensor in network.state_dict().items() if "num_batches" not in name
    }
    file = tmp_path / "i3d.safetensors"
    save_file(weights, file)
    loaded = load_features(file)
    videos = torch.rand(1, 10, 3, 224, 224, generator=torch.Generator().manual_seed(0)) * 2 - 1
    sizes = {}
    for name, layer in loaded.module.named_children():
        layer.register_forward_hook(lambda _layer, _x, y, name=name: sizes.update({name: tuple(y.shape[1:])}))
    assert np.isfinite(loaded.compute(videos)).all()
    found = loaded.module.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in network.state_dict().items())
    published = {
        "Conv3d_1a_7x7": (64, 5, 112, 112), "MaxPool3d_2a_3x3": (64, 5, 56, 56),
        "MaxPool3d_3a_3x3": (192, 5, 28, 28), "Mixed_3c": (480, 5, 28, 28),
        "MaxPool3d_4a_3x3": (480, 3, 14, 14), "Mixed_4f": (832, 3, 14, 14),
        "MaxPool3d_5a_2x2": (832, 2, 7, 7), "Mixed_5c": (1024, 2, 7, 7), "logits": (400,),
    }  # fmt: skip
    assert {name: sizes[name] for name in published} == published


def test_unusable_weights_are_refused(tmp_path):
    file = tmp_path / "net.safetensors"

    def refuse(message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            load_features(file)

    refuse("expected a .safetensors file")  # there is none yet
    save_file({"Conv3d_1a_7x7.conv3d.weight": torch.zeros(64, 3, 7, 7, 5)}, file)
    refuse(r"does not hold I3D \(.*expected the state dict of pytorch_i3d.py")
    file.write_bytes(file.read_bytes()[:-8])
    refuse("expected a .safetensors file")
    save_file({"Conv3d_1a_7x7.conv3d.weight": torch.full((1,), torch.nan)}, file)
    refuse("not finite")
