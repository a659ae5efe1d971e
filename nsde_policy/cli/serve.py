"""`nsde-policy serve`: answer plan requests of other processes and machines."""

from dataclasses import dataclass

from nsde_policy.cli import options
from nsde_policy.errors import ConfigError


@dataclass(frozen=True)
class Serve:
    """Answer plan requests over websockets until SIGTERM or Ctrl-C; log events to stderr as JSON lines.

    The client is `nsde_policy.deploy.client.RemotePolicy`. GET /healthz on the same port returns the status.
    """

    run_dir: options.RunFlag = None
    host: options.HostFlag = "127.0.0.1"
    port: options.PortFlag = 8765
    token_file: options.TokenFileFlag = None
    max_message: int = 65_536
    """Largest accepted message, bytes."""
    max_clients: int = 32
    """Largest number of simultaneous connections."""
    max_rate: float = 1000.0
    """Messages per second and client; further messages wait."""
    max_steps: int = 128
    """Largest number of actions per plan."""
    deadline_s: float = 1.0
    """Time limit of a request, queueing included, seconds; a plan that takes longer is answered "late"."""
    patience_s: float = 5.0
    """Timeout for a client's greeting, ping reply and reads, and for the last plan at exit, seconds."""
    device: options.DeviceFlag = "cpu"
    threads: int = 1
    """CPU threads per plan; small networks are fastest with one."""
    json: options.JsonAddressFlag = False

    def run(self) -> None:
        """Load the policy and serve it until a signal."""
        import asyncio
        import json
        import os
        import signal
        import sys

        import torch

        from nsde_policy import __version__
        from nsde_policy.deploy.protocol import PROTOCOL
        from nsde_policy.deploy.server.auth import build_json_log
        from nsde_policy.deploy.server.config import ServeSettings
        from nsde_policy.deploy.server.server import PolicyServer
        from nsde_policy.inference.policy import Policy
        from nsde_policy.training.progress import pick_device

        if self.threads < 1:
            raise ConfigError(f"need --threads >= 1, got {self.threads}")
        settings = ServeSettings(
            host=self.host,
            port=self.port,
            token=options.read_token(self.token_file),
            max_message=self.max_message,
            max_clients=self.max_clients,
            max_rate=self.max_rate,
            max_steps=self.max_steps,
            deadline_s=self.deadline_s,
            patience_s=self.patience_s,
        )
        torch.set_num_threads(self.threads)
        policy = Policy.from_pretrained(self.run_dir).to(pick_device(self.device))
        server = PolicyServer(policy, settings, build_json_log(sys.stderr), calibration=policy.calibration)

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
        if server.hangs:  # Python would wait for the thread, or abort
            os._exit(1)
