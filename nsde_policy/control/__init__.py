"""Control loop: run a policy on a robot with timing, command limits, fault handling and planning ahead.

Numpy only, no torch.
"""

from nsde_policy.control.config import SessionConfig as SessionConfig
from nsde_policy.control.report import SessionReport as SessionReport
from nsde_policy.control.session import Session as Session
