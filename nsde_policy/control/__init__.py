"""A policy inside a robot's control loop: timing, limits, faults, planning ahead. Numpy alone, no torch."""

from nsde_policy.control.config import SessionConfig as SessionConfig
from nsde_policy.control.report import Report as Report
from nsde_policy.control.session import Session as Session
