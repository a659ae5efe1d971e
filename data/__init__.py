"""Demonstrations: validated episodes from any format, without torch.

zarr is imported only when a store is opened.
"""

from nsde_policy.data.angles import unwrap_angles as unwrap_angles
from nsde_policy.data.augmentation import Mirror as Mirror
from nsde_policy.data.augmentation import add_mirror_images as add_mirror_images
from nsde_policy.data.images import LazyFrames as LazyFrames
from nsde_policy.data.images import open_images as open_images
from nsde_policy.data.readers import load_demonstrations as load_demonstrations
from nsde_policy.data.types import Demonstrations as Demonstrations
from nsde_policy.data.types import Episode as Episode
from nsde_policy.data.zarr_store.writer import DemoWriter as DemoWriter
