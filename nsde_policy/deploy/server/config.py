"""What a policy server is told: where to listen, whom to let in, how much to bear."""

import math
from dataclasses import dataclass, field

from nsde_policy.config import require
from nsde_policy.deploy.protocol import ENVELOPE, MAX_MESSAGE
from nsde_policy.deploy.server.auth import check_token, is_loopback, same_token
from nsde_policy.errors import ConfigError
from nsde_policy.inference.spec import PolicySpec


@dataclass(frozen=True)
class ServeSettings:
    """How a policy is served."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8765
    """0 picks a free one."""
    token: str | None = field(default=None, repr=False)
    """What clients must show; needed wherever others than this machine can connect."""
    max_message: int = MAX_MESSAGE
    """Bytes of the largest message taken."""
    max_clients: int = 32
    """Connections at a time."""
    max_rate: float = 1000.0
    """Messages per second of one client; what comes faster waits in its own connection."""
    max_steps: int = 128
    """Actions of the longest plan made, for methods that could go on at will."""
    deadline_s: float = 1.0
    """Longest a plan may take, waiting included, seconds."""
    patience_s: float = 5.0
    """Longest a client may take to greet, to answer a ping or to read its answer, and a late plan to end
    when the server stops, seconds."""

    def __post_init__(self) -> None:
        require(self, 0 <= self.port <= 65535, f"need a port from 0 to 65535, got {self.port}")
        require(self, self.max_message > ENVELOPE, f"need max_message > {ENVELOPE}, got {self.max_message}")
        for name in ("max_clients", "max_steps"):
            require(self, getattr(self, name) >= 1, f"need {name} >= 1, got {getattr(self, name)}")
        for name in ("max_rate", "deadline_s", "patience_s"):
            value = getattr(self, name)
            require(self, 0 < value < math.inf, f"need {name} > 0, got {value}")
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"{self.host} can be reached from other machines: serve there with a token "
                "(--token-file or NSDE_POLICY_TOKEN), or at 127.0.0.1"
            )
        if self.token is not None:
            check_token(self.token)

    def lets_in(self, given: str | None) -> bool:
        """Whether an `Authorization` header will do; as slow for a near miss as for any other."""
        return self.token is None or same_token(f"Bearer {self.token}", given or "")

    def longest_plan(self, spec: PolicySpec) -> int:
        """Most actions of one plan; refuses settings with which a request or its answer fits no message."""
        d = spec.obs_dim + spec.act_dim
        steps = min(spec.longest_chunk or self.max_steps, self.max_steps)
        request, answer, spec_as_text = spec.history * d, 2 * steps * spec.act_dim + (steps + 1) * d, 9 * d
        needed = ENVELOPE + 8 * max(request, answer, spec_as_text)
        require(
            self,
            self.max_message >= needed,
            f"plans of {steps} actions of this policy need max_message >= {needed}, got {self.max_message}",
        )
        return steps
