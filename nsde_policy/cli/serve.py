"""`nsde-policy serve`: answer plan requests of other processes and machines."""

from dataclasses import dataclass, fields

import tyro

from nsde_policy.bounds import Count
from nsde_policy.deploy.server.settings import ServeSettings

from .shared import options

SWITCH_INTERVAL_S = 5e-4
"""Longest wait of the thread that answers clients for the one that plans, seconds; Python's default of 5 ms,
several times per request, would use up a robot's deadline."""


@dataclass(frozen=True)
class Serve(ServeSettings, options.DeviceCommand):
    """Answer plan requests of other processes and machines.

    Speaks websockets, until SIGTERM or Ctrl-C. Events are logged to stderr.

    The client is `nsde_policy.deploy.client.RemotePolicy`. GET /healthz on the same port returns the status.
    """

    run_dir: options.RunFlag = options.SHIPPED_RUN
    token: tyro.conf.Suppress[str | None] = None
    token_file: options.TokenFileFlag = None
    device: options.DeviceFlag = "cpu"
    threads: Count = 1
    """CPU threads per plan; small networks are fastest with one."""
    json: options.JsonAddressFlag = False

    def __post_init__(self) -> None:
        """Leave all checks to `run`, which reads the token."""

    def run(self) -> None:
        """Load the policy and serve it until a signal."""
        import json
        import os
        import sys

        import numpy as np

        from nsde_policy.control.clock import freeze_objects
        from nsde_policy.deploy.protocol import PROTOCOL
        from nsde_policy.deploy.server.policy_server import PolicyServer
        from nsde_policy.policy.policy import Policy
        from nsde_policy.version import __version__

        from .shared.page import run_until_signal

        values = {each.name: getattr(self, each.name) for each in fields(ServeSettings)}
        settings = ServeSettings(**values | {"token": options.read_token(self.token_file)})
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        policy = Policy.from_pretrained(self.run_dir).to(self.device)
        policy.threads = self.threads
        server = PolicyServer(policy, settings, calibration=policy.calibration)

        def announce(port: int) -> None:
            url = f"ws://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"
            facts = {"url": url, "port": port, "protocol": PROTOCOL, "version": __version__}
            text = f"serving {spec.method}, {spec.obs_dim} numbers in, {spec.act_dim} out, at {url}"
            print(json.dumps(facts | {"spec": spec.to_dict()}) if self.json else text, flush=True)

        spec = policy.spec
        middle = np.tile(np.add(spec.low, spec.high) / 2, (spec.history, 1))
        with freeze_objects():
            policy.plan_from(middle, steps=policy.chunk, seed=0)  # the first plan is slow, above all on a GPU
            run_until_signal(server, announce)
        if server.hangs:  # Python would wait for the thread, or abort
            os._exit(1)
