"""Methods of video prediction by name: each is one file in `methods/`, or a package with an entry point.

    @register_video_method("my_method", title="My method", config=MyConfig)
    class MyModel(VideoModel): ...

Entry points of other packages belong to the group `nsde_policy.video_methods`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nsde_policy.errors import ConfigError
from nsde_policy.registry import Registry
from nsde_policy.video.config import VideoModelConfig

if TYPE_CHECKING:
    from nsde_policy.video.base import VideoModel

Model = TypeVar("Model", bound="type[VideoModel]")


@dataclass(frozen=True)
class VideoMethod:
    """One method of video prediction."""

    name: str
    title: str
    """Name in tables and plots."""
    config: type[VideoModelConfig]
    """Class of its settings."""
    model: "type[VideoModel] | str"
    """Class of its models, or `module:class` to import it on first use."""

    def model_class(self) -> "type[VideoModel]":
        """Return the class of its models, importing its module if necessary."""
        if isinstance(self.model, str):
            module, _, name = self.model.partition(":")
            found: type[VideoModel] = getattr(importlib.import_module(module), name)
            return found
        return self.model


VIDEO_METHODS: Registry[VideoMethod] = Registry(
    "video method", "nsde_policy.video.methods", group="nsde_policy.video_methods"
)


def register_video_method(
    name: str, *, title: str, config: type[VideoModelConfig]
) -> Callable[[Model], Model]:
    """Register a method under a name; decorates the class of its model."""

    def register(model: Model) -> Model:
        add_video_method(VideoMethod(name, title, config, model))
        return model

    return register


def add_video_method(method: VideoMethod) -> None:
    """Register a method whose model is imported on first use."""
    method.config.method = method.name
    VIDEO_METHODS.add(method.name, method)


def get_video_method(name: str) -> VideoMethod:
    """Return a method by name."""
    return VIDEO_METHODS.get(name)


def find_video_method(config: VideoModelConfig) -> VideoMethod:
    """Return the method that settings belong to."""
    if not type(config).method:
        raise ConfigError(f"{type(config).__name__} belongs to no registered method of video prediction")
    return get_video_method(type(config).method)
