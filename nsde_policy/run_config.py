"""Settings of a whole training run: demonstrations, method, optimisation and execution."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import Meta

from nsde_policy.bounds import MAX_INTEGER, Length, Natural, NonNegative, Number
from nsde_policy.config import (
    BaseConfig,
    EncoderConfig,
    ImageEncoderConfig,
    ModelConfig,
    Preset,
    SelectionConfig,
    TrainConfig,
    TrainedEncoderConfig,
    check_value,
)
from nsde_policy.encoders.registry import get_encoder
from nsde_policy.errors import ConfigError
from nsde_policy.methods.registry import find_method_name, get_method

if TYPE_CHECKING:
    from nsde_policy.data.source import Source


@dataclass(frozen=True)
class DemoConfig(BaseConfig):
    """Selection of the demonstrations and content of a state."""

    obs_keys: tuple[str, ...] = ("state",)
    """Arrays of the store that are concatenated to an observation; short --obs-keys."""
    act_key: str = "action"
    """Array of the store with the actions; short --act-key."""
    obs_columns: tuple[Natural, ...] = ()
    """Columns of the observation to use; empty for all. Other settings count the selected columns."""
    images: tuple[str, ...] = ()
    """Arrays of the store with camera frames, which --encoder encodes; short --images."""
    images_dropout: Annotated[float, Meta(ge=0, le=0.9)] = 0.0
    """Fraction of the training data without one of the cameras: the policy then goes on if it loses one;
    short --images-dropout."""
    encoder: str = "identity"
    """Encoder that turns named observations into one vector; images need `landmarks`, `keypoints` or `timm`,
    which are trained before the policy, or `resnet`, which is trained together with it; short --encoder."""
    episodes: Natural = 0
    """Number of demonstrations to use, from the first on; 0 for all."""
    angles: tuple[Natural, ...] = ()
    """Columns of the observation that are angles and turn past the end of their range, in radians; other
    columns may have any unit. Empty: as recorded; short --angles."""
    accept_omitted_chunks: bool = False
    """Read missing chunks of a zarr store as the fill value, not as damage; short --accept-omitted-chunks."""
    rate_hz: NonNegative = 0.0
    """Frames per second; 0: as recorded; short --rate."""
    resample_hz: NonNegative = 0.0
    """Frames per second to resample to; 0: as recorded; short --resample."""
    first_action_from: tuple[Annotated[int, Meta(ge=-1, le=MAX_INTEGER)], ...] | None = None
    """For each action column, the column of the first observation that replaces the action before it; -1 for
    a value of `first_action`. None infers them from the demonstrations; empty for zeros."""
    first_action: tuple[Number, ...] = ()
    """Action before the first one in the columns marked -1; empty for the median of the first recorded
    actions."""
    round_binary: bool = True
    """Round commands that take two values in the demonstrations, such as those of a gripper, to these."""
    final_action_weight: NonNegative = 1.0
    """Weight of the last action of each demonstration, whose outcome was not recorded; 0 ignores it."""
    mirror: bool = False
    """Add mirror images of the demonstrations, if the task is symmetric."""
    align_ends: bool = False
    """Move each demonstration as a whole so that all end alike, if the task allows such motions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.obs_keys:
            raise ConfigError("obs_keys must name at least one array")
        if len(set(self.images)) < len(self.images):
            raise ConfigError(f"images must name each camera once, got {list(self.images)}")
        if self.images_dropout and len(self.images) < 2:
            raise ConfigError(
                f"--images-dropout is for two or more cameras, of which one may be lost, got "
                f"{list(self.images)}: name more with --images, or leave it out"
            )

    def open_store(self, path: Path) -> "Source":
        """Open a store of demonstrations, resampled if the settings say so."""
        from nsde_policy.data.readers import open_source
        from nsde_policy.data.resample import resample

        source = open_source(path, accept_omitted_chunks=self.accept_omitted_chunks)
        if not self.resample_hz:
            return source
        return resample(
            source,
            self.resample_hz,
            recorded_hz=self.rate_hz or None,
            obs_keys=self.obs_keys,
            act_key=self.act_key,
            angles=[self.obs_columns[i] if self.obs_columns else i for i in self.angles],
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig(BaseConfig):
    """All settings of a training run except seed and data."""

    demos: DemoConfig = field(default_factory=DemoConfig)
    """Selection of the demonstrations."""
    model: ModelConfig
    """Settings of the method."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Optimisation settings."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """Settings of the encoder of images."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Selection among sampled plans."""
    chunk: Length = 8
    """Actions executed before planning again (T_a)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = self.model.longest_chunk
        if longest is not None and self.chunk > longest:
            raise ConfigError(f"a plan of this model holds at most {longest} actions, got chunk {self.chunk}")
        encoder = get_encoder(self.demos.encoder)
        if isinstance(self.encoder, ImageEncoderConfig) and not self.demos.images:
            raise ConfigError(
                "these settings are for camera frames, but no images are named: add --obs pixels or --images"
            )
        if type(self.encoder) is not encoder.config:
            raise ConfigError(
                f"the encoder {encoder.name!r} needs settings {encoder.config.__name__}, got "
                f"{type(self.encoder).__name__}"
            )
        if encoder.takes_images != bool(self.demos.images):
            raise ConfigError(
                f"the encoder {encoder.name!r} does not fit images {list(self.demos.images)}: images need "
                "landmarks, keypoints, timm or resnet, which need images: --obs pixels, or --images NAME"
            )

    @property
    def horizon(self) -> int:
        """Actions of a plan by which it is selected."""
        actions = max(self.selection.horizon, self.chunk)
        return min(actions, self.model.longest_chunk or actions)

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Sizes of the batches of all trainings of a run, by their flags."""
        sizes = {"--batch-size": self.train.batch_size}
        if isinstance(self.encoder, TrainedEncoderConfig):
            sizes["--encoder.train.batch-size"] = self.encoder.train.batch_size
        if self.selection.select != "none" or self.demos.align_ends:
            sizes["--selection.train.batch-size"] = self.selection.train.batch_size
        return sizes

    @property
    def method(self) -> str:
        """Name of the registered method."""
        return find_method_name(self.model)

    @classmethod
    def from_preset(cls, preset: Preset, demos: DemoConfig) -> Self:
        """Combine a method's preset with a task's settings of the demonstrations."""
        changed = DemoConfig(**{**vars(demos), **preset.demos})
        encoder = preset.encoder or get_encoder(changed.encoder).config()
        return cls(
            demos=changed,
            model=preset.model,
            train=preset.train,
            encoder=encoder,
            selection=preset.selection,
            chunk=preset.chunk,
        )

    def replace_parts(self, **parts: dict[str, Any]) -> Self:
        """Return a copy with changed fields of some parts: `config.replace_parts(train={"steps": 5})`."""
        return replace(self, **{name: replace(getattr(self, name), **new) for name, new in parts.items()})

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain dicts and numbers, with the name of the method."""
        return {"method": self.method, **super().to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        if not isinstance(values, dict) or not isinstance(values.get("model", {}), dict):
            raise ConfigError(f"settings must be JSON objects, got {values!r:.60}")
        name = values.get("method", "neural_sde")
        check_value("method", name, str)
        method = get_method(name)
        rest = {key: value for key, value in values.items() if key != "method"}
        if isinstance(rest.get("encoder"), dict):
            encoder = get_encoder(DemoConfig.from_dict(values.get("demos", {})).encoder)
            rest["encoder"] = encoder.config.from_dict(rest["encoder"])
        return super().from_dict({**rest, "model": method.config.from_dict(values.get("model", {}))})
