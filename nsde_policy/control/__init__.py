"""Control loop: run a policy on a robot with timing, command limits, fault handling and planning ahead.

Numpy only, no torch.
"""

from nsde_policy.control.report import SessionReport as SessionReport
from nsde_policy.control.session import Session as Session
from nsde_policy.control.session_config import SessionConfig as SessionConfig
