"""Control loop: run a policy on a robot with timing, command limits, fault handling and planning ahead.

Numpy only, no torch.
"""

from .report import SessionReport as SessionReport
from .session import Session as Session
from .session_config import SessionConfig as SessionConfig
