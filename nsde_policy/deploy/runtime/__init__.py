"""Runtime of exported policies: numpy and onnxruntime, no torch."""

from .policy import RuntimePolicy as RuntimePolicy
