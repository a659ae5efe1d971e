"""Settings of the policy server: address, token and limits; no numpy, so that commands start fast."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from nsde_policy.bounds import Count, Positive
from nsde_policy.config import BaseConfig
from nsde_policy.deploy.server.auth import check_token, compare_tokens, is_loopback
from nsde_policy.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from nsde_policy.planner.interface import PolicySpec

ENVELOPE_BYTES = 1024
"""Upper bound of the bytes of a message that are not array data."""
FRAME_OVERHEAD = 1.01
"""Upper bound of the size of a compressed frame, as a multiple of the frame."""
SESSION_SPARE = 2
"""Actions that the first plan of a control session has beyond its chunk."""


@dataclass(frozen=True)
class ServerOptions:
    """Address and limits of any server."""

    host: str = "127.0.0.1"
    """Address to listen on; any address except loopback requires a token."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8765
    """TCP port; 0 picks a free one."""
    max_clients: Count = 32
    """Largest number of simultaneous clients."""
    patience_s: Positive = 5.0
    """Timeout for a client's greeting, ping reply and reads, and for the last plan at exit, seconds."""
    tls_cert: Path | None = None
    """PEM file with the certificate chain for TLS; needs --tls-key."""
    tls_key: Path | None = None
    """PEM file with the private key of the certificate, not encrypted."""


@dataclass(frozen=True)
class ServeOptions(ServerOptions):
    """Address and limits of a policy server, which are also flags of `nsde-policy serve`."""

    max_steps: Count | None = None
    """Largest number of actions per plan; default: what a control session needs, a chunk and two more. A plan
    cannot be interrupted, so longer ones delay all other clients."""
    deadline_s: Positive = 1.0
    """Time limit of a request, queueing included, seconds; a plan that takes longer is answered "late"."""


@dataclass(frozen=True)
class ServerSettings(ServerOptions, BaseConfig):
    """Address, token and limits of any server."""

    token: str | None = field(default=None, repr=False)
    """Token that clients must send; required if other machines can connect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None:
            check_token(self.token)
        elif not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} accepts connections from other machines, which needs a token "
                "(--token-file or NSDE_POLICY_TOKEN); without one, use --host 127.0.0.1"
            )
        _ = self.tls  # an unusable certificate is reported now

    @cached_property
    def tls(self) -> "ssl.SSLContext | None":
        """TLS context of the certificate and key; None without them."""
        from nsde_policy.deploy.server.tls import load_server_tls

        return load_server_tls(self.tls_cert, self.tls_key)


@dataclass(frozen=True)
class ServeSettings(ServeOptions, ServerSettings):
    """Address, token and limits of a policy server."""

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header holds the token; compares in constant time."""
        return self.token is None or compare_tokens(f"Bearer {self.token}", authorization or "")

    def compute_max_steps(self, spec: "PolicySpec") -> int:
        """Return the largest number of actions of a plan."""
        # A method with a longest chunk always computes all of it, so more actions cost nothing.
        default = 2 * spec.chunk + SESSION_SPARE if spec.longest_chunk else spec.chunk + SESSION_SPARE
        steps = self.max_steps or default
        return min(spec.longest_chunk or steps, steps)


def compute_max_message(spec: "PolicySpec") -> int:
    """Return the largest size of a request, bytes: states, or an observation with camera frames."""
    frames = math.ceil(FRAME_OVERHEAD * sum(math.prod(camera.shape) for camera in spec.cameras))
    return ENVELOPE_BYTES + 8 * spec.history * spec.dim + frames
