"""Methods of video prediction by name: each is one file in `methods/`, or a package with an entry point.

    @register_video_method("my_method", title="My method", config=MyConfig)
    class MyModel(VideoModel): ...

Entry points of other packages belong to the group `nsde_policy.video_methods`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nsde_policy.errors import ConfigError
from nsde_policy.registry import Registry
from nsde_policy.video.base import VideoModel
from nsde_policy.video.config import VideoModelConfig

Model = TypeVar("Model", bound=type[VideoModel])


@dataclass(frozen=True)
class VideoMethod:
    """One method of video prediction."""

    name: str
    title: str
    """Name in tables and plots."""
    config: type[VideoModelConfig]
    """Class of its settings."""
    model: type[VideoModel]
    """Class of its models."""


VIDEO_METHODS: Registry[VideoMethod] = Registry(
    "video method", "nsde_policy.video.methods", group="nsde_policy.video_methods"
)


def register_video_method(
    name: str, *, title: str, config: type[VideoModelConfig]
) -> Callable[[Model], Model]:
    """Register a method under a name; decorates the class of its model."""

    def register(model: Model) -> Model:
        config.method = name
        VIDEO_METHODS.add(name, VideoMethod(name, title, config, model))
        return model

    return register


def get_video_method(name: str) -> VideoMethod:
    """Return a method by name."""
    return VIDEO_METHODS.get(name)


def find_video_method(config: VideoModelConfig) -> VideoMethod:
    """Return the method that settings belong to."""
    if not type(config).method:
        raise ConfigError(f"{type(config).__name__} belongs to no registered method of video prediction")
    return get_video_method(type(config).method)
