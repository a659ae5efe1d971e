"""Demonstrations: validated episodes from any format, without torch.

zarr is imported only when a store is opened.
"""

from .angles import unwrap_angles as unwrap_angles
from .augmentation import Mirror as Mirror
from .augmentation import add_mirror_images as add_mirror_images
from .images import LazyFrames as LazyFrames
from .images import open_images as open_images
from .readers import load_demonstrations as load_demonstrations
from .types import Demonstrations as Demonstrations
from .types import Episode as Episode
from .zarr_store.writer import DemoWriter as DemoWriter
