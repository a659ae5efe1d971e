"""Demonstrations with what training adds: features of camera frames, mirror images, and disturbed copies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from nsde_policy.core.spec import StateSpec
from nsde_policy.data.augmentation import Mirror, add_mirror_images
from nsde_policy.data.types import Demonstrations, Floats
from nsde_policy.run_config import DemoConfig


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Demonstrations that a policy is trained on."""

    demos: Demonstrations
    """Demonstrations; features of camera frames are the last columns of their observations."""
    mirror: Mirror | None = None
    """Mirror symmetry that doubles the demonstrations; None for no mirror images."""
    image_features: int = 0
    """Columns of observations that are features of camera frames."""
    mirror_image: Demonstrations | None = None
    """Mirror image of each demonstration, if it cannot be computed because it holds features."""
    copies: "tuple[TrainingSet, ...]" = ()
    """The same demonstrations with features of disturbed frames, on which a policy is trained as well."""

    def __len__(self) -> int:
        return len(self.demos)

    @property
    def recorded(self) -> Demonstrations:
        """The demonstrations without features of camera frames."""
        if not self.image_features:
            return self.demos
        return replace(self.demos, obs=self.demos.obs[:, : -self.image_features])

    @cached_property
    def with_mirror_images(self) -> Demonstrations:
        """The demonstrations, followed by the mirror image of each if there is a symmetry."""
        if self.mirror_image is not None:
            return self.demos.append(self.mirror_image)
        return add_mirror_images(self.demos, self.mirror)

    def join(self) -> Demonstrations:
        """Return the demonstrations, their copies, and mirror images of both."""
        return self.with_mirror_images.append(*(copy.with_mirror_images for copy in self.copies))

    def add_features(self, features: Floats, mirrored: Floats | None) -> "TrainingSet":
        """Return the set with features after all observations, (frames, features).

        `mirrored` are those of the mirror images, unless there are none.
        """
        image = None
        if self.mirror is not None and mirrored is not None:
            image = _append_columns(self.mirror.flip(self.demos), mirrored)
        demos = _append_columns(self.demos, features)
        return replace(self, demos=demos, image_features=features.shape[1], mirror_image=image)

    def select(self, episodes: Sequence[int]) -> "TrainingSet":
        """Return the set of some episodes, increasing."""
        if len(episodes) == len(self):
            return self
        return replace(
            self,
            demos=self.demos.select(episodes),
            mirror_image=None if self.mirror_image is None else self.mirror_image.select(episodes),
            copies=tuple(copy.select(episodes) for copy in self.copies),
        )

    def lose_cameras(self, settings: DemoConfig, spec: StateSpec) -> "TrainingSet":
        """Return the set with copies that lack one of the cameras, a fraction `images_dropout` of all data.

        A camera is lost for a whole episode: a policy that predicts states must not learn that features jump.
        """
        fraction, cameras = settings.images_dropout, len(settings.images)
        if not fraction:
            return self
        clean = replace(self, copies=())
        count = math.ceil(fraction / (1 - fraction) * len(self) * (1 + len(self.copies)) / cameras)
        order, lost = np.random.default_rng(0).permutation(len(self)), []
        for camera in range(cameras):
            columns, features = spec.find_lost_features(camera, cameras)
            episodes = order.take(range(camera * count, (camera + 1) * count), mode="wrap").tolist()
            image = None
            if clean.mirror_image is not None:
                image = _fill_columns(clean.mirror_image.select(episodes), columns, features)
            demos = _fill_columns(clean.demos.select(episodes), columns, features)
            lost.append(replace(clean, demos=demos, mirror_image=image))
        return replace(self, copies=(*self.copies, *lost))


def _append_columns(demos: Demonstrations, features: Floats) -> Demonstrations:
    return replace(demos, obs=np.concatenate([demos.obs, features], axis=1))


def _fill_columns(demos: Demonstrations, columns: slice, values: Sequence[float]) -> Demonstrations:
    obs = demos.obs.copy()
    obs[:, columns] = values
    return replace(demos, obs=obs)
