"""Address, token and limits of a server; no numpy, so that commands start fast."""

import hmac
import ipaddress
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from nsde_policy.bounds import Count, Positive
from nsde_policy.config import BaseConfig
from nsde_policy.errors import ConfigError

from ..tokens import check_token

if TYPE_CHECKING:
    from nsde_policy.interface.planner import PolicySpec

ENVELOPE_BYTES = 1024
"""Upper bound of the bytes of a message that are not array data."""
FRAME_OVERHEAD = 1.01
"""Upper bound of the size of a compressed frame, as a multiple of the frame."""
SESSION_SPARE = 2
"""Actions that the first plan of a control session has beyond its chunk."""
Port = Annotated[int, Meta(ge=0, le=65535)]


@dataclass(frozen=True)
class Address:
    """Address of a server, as flags of the commands that serve."""

    host: str = "127.0.0.1"
    """Address to listen on; any address except loopback requires a token."""
    port: Port = 8765
    """TCP port; 0 picks a free one."""


@dataclass(frozen=True)
class ServerSettings(Address, BaseConfig):
    """Address, token and limits of any server."""

    max_clients: Count = 32
    """Largest number of simultaneous clients."""
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

    def accepts(self, token: str, *, scheme: str = "") -> bool:
        """Return whether a client gave the token, after a scheme, or none is required; in constant time."""
        expected = f"{scheme}{self.token}".encode()
        return self.token is None or hmac.compare_digest(expected, token.encode("utf-8", "replace"))


@dataclass(frozen=True)
class ServeSettings(ServerSettings):
    """Address, token and limits of a policy server, which are also flags of `nsde-policy serve`."""

    deadline_s: Positive = 1.0
    """Time limit of a request, queueing included, seconds; a plan that takes longer is answered "late"."""


def compute_longest_plan(spec: "PolicySpec") -> int:
    """Return the most actions of a plan that a client may request: those that a control session needs.

    A plan cannot be interrupted, so longer ones would delay all other clients. A method with a longest chunk
    always computes all of it, so that more actions cost nothing.
    """
    if spec.longest_chunk:
        return min(spec.longest_chunk, 2 * spec.chunk + SESSION_SPARE)
    return spec.chunk + SESSION_SPARE


def compute_max_message(spec: "PolicySpec") -> int:
    """Return the largest size of a request, bytes: states, or an observation with camera frames."""
    frames = math.ceil(FRAME_OVERHEAD * sum(math.prod(camera.shape) for camera in spec.cameras))
    return ENVELOPE_BYTES + 8 * spec.history * spec.dim + frames


def is_loopback(host: str) -> bool:
    """Return whether an address accepts connections from this machine only; of host names, only localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
