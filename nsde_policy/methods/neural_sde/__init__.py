"""The Neural SDE: configuration, model, learned equation and the fused solver step."""
