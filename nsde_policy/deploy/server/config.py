"""Settings of the policy server: address, token and limits."""

import math
from dataclasses import dataclass, field

from nsde_policy.config import require
from nsde_policy.deploy.protocol import ENVELOPE_BYTES, MAX_MESSAGE_BYTES
from nsde_policy.deploy.server.auth import check_token, compare_tokens, is_loopback
from nsde_policy.errors import ConfigError
from nsde_policy.inference.spec import PolicySpec


@dataclass(frozen=True)
class ServeSettings:
    """Address, token and limits of a policy server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8765
    """0 picks a free port."""
    token: str | None = field(default=None, repr=False)
    """Token that clients must send; required if other machines can connect."""
    max_message: int = MAX_MESSAGE_BYTES
    """Size limit of a message, bytes."""
    max_clients: int = 32
    """Largest number of simultaneous connections."""
    max_rate: float = 1000.0
    """Messages per second and client; further messages wait."""
    max_steps: int = 128
    """Largest number of actions per plan."""
    deadline_s: float = 1.0
    """Time limit of a request, queueing included, seconds."""
    patience_s: float = 5.0
    """Timeout for a client's greeting, ping reply and reads, and for the last plan when the server stops,
    seconds."""

    def __post_init__(self) -> None:
        require(self, 0 <= self.port <= 65535, f"need a port from 0 to 65535, got {self.port}")
        require(
            self,
            self.max_message > ENVELOPE_BYTES,
            f"need max_message > {ENVELOPE_BYTES}, got {self.max_message}",
        )
        for name in ("max_clients", "max_steps"):
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        for name in ("max_rate", "deadline_s", "patience_s"):
            value = getattr(self, name)
            require(self, 0 < value < math.inf, f"need {name} > 0, got {value}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} accepts connections from other machines, which needs a token "
                "(--token-file or NSDE_POLICY_TOKEN); without one, use --host 127.0.0.1"
            )
        if self.token is not None:
            check_token(self.token)

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header holds the token; compares in constant time."""
        return self.token is None or compare_tokens(f"Bearer {self.token}", authorization or "")

    def compute_max_steps(self, spec: PolicySpec) -> int:
        """Return the largest number of actions of a plan.

        Raises:
            ConfigError: If such a plan, or a request, does not fit into a message.
        """
        d = spec.obs_dim + spec.act_dim
        steps = min(spec.longest_chunk or self.max_steps, self.max_steps)
        request, reply, spec_as_text = spec.history * d, 2 * steps * spec.act_dim + (steps + 1) * d, 9 * d
        needed = ENVELOPE_BYTES + 8 * max(request, reply, spec_as_text)
        require(
            self,
            self.max_message >= needed,
            f"plans of {steps} actions of this policy need max_message >= {needed}, got {self.max_message}",
        )
        return steps
