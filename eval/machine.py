"""Name of the processor that results were measured on."""

import platform
from pathlib import Path

import torch


def device_name(device: str) -> str:
    """Return the name of the processor behind a torch device."""
    if device.startswith("cuda"):
        name: str = torch.cuda.get_device_name(device)
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine() or "CPU"
