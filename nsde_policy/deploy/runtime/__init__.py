"""An exported policy on a robot: numpy and onnxruntime, no torch."""

from nsde_policy.deploy.runtime.policy import RuntimePolicy as RuntimePolicy
