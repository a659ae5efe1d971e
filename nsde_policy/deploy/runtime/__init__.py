"""Runtime of exported policies: numpy and onnxruntime, no torch."""

from nsde_policy.deploy.runtime.policy import RuntimePolicy as RuntimePolicy
