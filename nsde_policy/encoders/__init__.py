"""Encoders: named observations to one flat feature vector; one file per encoder."""

from nsde_policy.encoders.base import Encoder as Encoder
from nsde_policy.encoders.registry import ENCODERS as ENCODERS
from nsde_policy.encoders.registry import get_encoder as get_encoder
from nsde_policy.encoders.registry import register_encoder as register_encoder
