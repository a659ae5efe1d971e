"""Readers: one file per demonstration format."""

from nsde_policy.data.readers.base import Reader as Reader
from nsde_policy.data.readers.registry import READERS as READERS
from nsde_policy.data.readers.registry import load_demonstrations as load_demonstrations
from nsde_policy.data.readers.registry import open_source as open_source
from nsde_policy.data.readers.registry import register_reader as register_reader
