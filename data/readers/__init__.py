"""Readers: one file per demonstration format."""

from .base import Reader as Reader
from .registry import READERS as READERS
from .registry import load_demonstrations as load_demonstrations
from .registry import open_source as open_source
from .registry import register_reader as register_reader
