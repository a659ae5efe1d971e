"""Encoders: named observations to one flat feature vector; one file per encoder."""

from .encoder import Encoder as Encoder
from .registry import ENCODERS as ENCODERS
from .registry import get_encoder as get_encoder
from .registry import register_encoder as register_encoder
