"""Videos that a run was not trained on."""

from pathlib import Path

from nsde_policy.errors import ConfigError
from nsde_policy.video.record import VideoRecord
from nsde_policy.video.windows import Videos, open_videos


def open_unseen(record: VideoRecord, path: Path) -> Videos:
    """Open the videos of a store that a run was not trained on, with its size and stride.

    Of the store that it was trained on, or a copy of it, these are the held-out ones and those that were
    added since; of another store, all.

    Raises:
        ConfigError: If the run was trained on all videos of the store, or the store that it was trained on
            has changed in another way.
    """
    config = record.config
    videos = open_videos(path, size=config.size, stride=config.stride)
    count = record.videos.episodes or len(videos)  # runs of earlier versions do not say
    trained = sorted({*range(count)} - {*record.videos.held_out})
    before = videos.head(count).select(trained) if 0 < count <= len(videos) else None
    if before is None or not trained or before.fingerprint != record.videos.fingerprint:
        if path.resolve() == Path(record.videos.source).resolve():
            raise ConfigError(
                f"the videos of {path} are not those that the model was trained on, so its training videos "
                "cannot be left out: train it again, or score it on another store with --data"
            )
        return videos
    unseen = sorted({*range(len(videos))} - {*trained})
    if not unseen:
        raise ConfigError(
            f"the model was trained on all {len(videos)} videos of {path}: hold some out with `video train "
            "--validation 0.1`, or score it on another store with --data"
        )
    return videos.select(unseen)
