"""A policy on another machine: the protocol, the server, and a client that is a `Planner`."""
