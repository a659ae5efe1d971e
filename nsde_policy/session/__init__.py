"""A policy inside a robot's control loop: timing, limits, faults, planning ahead. Numpy alone, no torch."""

from nsde_policy.session.config import SessionConfig as SessionConfig
from nsde_policy.session.report import Report as Report
from nsde_policy.session.session import Session as Session
