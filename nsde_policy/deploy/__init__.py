"""Deployment: export to ONNX, a torch-free runtime, a policy server and its client."""
