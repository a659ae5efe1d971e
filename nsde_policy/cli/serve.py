"""`nsde-policy serve`: a policy for other processes and other machines."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from nsde_policy.cli.token import read_token
from nsde_policy.errors import ConfigError, MissingDependencyError


@dataclass(frozen=True)
class Serve:
    """Answer plan requests over websockets, until SIGTERM or Ctrl-C; events go to stderr as JSON lines.

    The client is `nsde_policy.deploy.client.RemotePolicy`. GET /healthz on the same port tells how it is."""

    run_dir: tyro.conf.Positional[Path | None] = None
    """Run directory; without it, the policy shipped in the package."""
    host: str = "127.0.0.1"
    """Address to listen at; anything but this machine's own needs a token."""
    port: int = 8765
    """0 picks a free one."""
    token_file: Path | None = None
    """File with the token clients must show; the variable NSDE_POLICY_TOKEN stands in for it."""
    max_message: int = 65_536
    """Bytes of the largest message taken."""
    max_clients: int = 32
    """Connections at a time."""
    max_rate: float = 1000.0
    """Messages per second of one client; what comes faster waits."""
    max_steps: int = 128
    """Actions of the longest plan made."""
    deadline_s: float = 1.0
    """Longest a plan may take, waiting included; one that takes longer is answered with "late"."""
    patience_s: float = 5.0
    """Longest a client may take to greet, to answer a ping or to read its answer, and a late plan to end when
    the server stops."""
    device: str = "cpu"
    """Where plans are computed."""
    threads: int = 1
    """CPU threads of one plan; small networks are fastest with one."""
    json: bool = False
    """Say where it listens as one line of JSON."""

    def run(self) -> None:
        """Load, listen, answer, stop."""
        import asyncio
        import json
        import os
        import signal
        import sys

        import torch

        from nsde_policy import __version__
        from nsde_policy.inference.policy import Policy
        from nsde_policy.training.progress import pick_device

        try:
            from nsde_policy.deploy.protocol import PROTOCOL
            from nsde_policy.deploy.server.auth import json_log
            from nsde_policy.deploy.server.config import ServeSettings
            from nsde_policy.deploy.server.server import PolicyServer
        except ImportError as error:
            raise MissingDependencyError.extra(error.name or "websockets", "serve") from None

        if self.threads < 1:
            raise ConfigError(f"need --threads >= 1, got {self.threads}")
        settings = ServeSettings(
            host=self.host,
            port=self.port,
            token=read_token(self.token_file),
            max_message=self.max_message,
            max_clients=self.max_clients,
            max_rate=self.max_rate,
            max_steps=self.max_steps,
            deadline_s=self.deadline_s,
            patience_s=self.patience_s,
        )
        torch.set_num_threads(self.threads)
        policy = Policy.from_pretrained(self.run_dir).to(pick_device(self.device))
        server = PolicyServer(policy, settings, json_log(sys.stderr), calibration=policy.calibration)

        def ready(port: int) -> None:
            url = f"ws://[{self.host}]:{port}" if ":" in self.host else f"ws://{self.host}:{port}"
            facts = {"url": url, "port": port, "protocol": PROTOCOL, "version": __version__}
            spec = policy.spec
            text = f"serving {spec.method}, {spec.obs_dim} numbers in, {spec.act_dim} out, at {url}"
            print(json.dumps(facts | {"spec": spec.to_dict()}) if self.json else text, flush=True)

        async def serve() -> None:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, server.stop)
            await server.run(ready)

        asyncio.run(serve())
        if server.hangs:  # Python would wait for it, or abort beside it
            os._exit(1)
