"""Demonstrations: any store to validated episodes, without torch.

zarr is imported when a store is opened, not before.
"""

from nsde_policy.data.angles import angle_difference as angle_difference
from nsde_policy.data.angles import unwrap_angles as unwrap_angles
from nsde_policy.data.augmentation import Mirror as Mirror
from nsde_policy.data.augmentation import with_mirror_images as with_mirror_images
from nsde_policy.data.images import LazyFrames as LazyFrames
from nsde_policy.data.images import open_images as open_images
from nsde_policy.data.readers import load_demonstrations as load_demonstrations
from nsde_policy.data.types import Demonstrations as Demonstrations
from nsde_policy.data.types import Episode as Episode
from nsde_policy.data.zarr_store.store import PUSHT_ANGLES as PUSHT_ANGLES
from nsde_policy.data.zarr_store.writer import DemoWriter as DemoWriter
