"""Plan selection: predict where sampled plans lead, and pick one."""
