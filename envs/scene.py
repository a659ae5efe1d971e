"""The scene of a task on web pages: a script that draws it, and the shapes that the script needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Scene:
    """Script and shapes with which web pages draw episodes of a task."""

    script: str
    """JavaScript that defines the class `Scene`, made by `new Scene(geometry)`; it may call `canvas.js`.

    It extends `BaseScene` of that file. The live page draws with pixels of the page and calls
    `drawStill(context, colours)` for what does not move; a scene with `outline` has a block that can be
    dragged. In a report, a frame is an array of the recorded values. Its page uses these members:

    - `side`: width and height of a drawing, in the units that `drawFrame` draws in.
    - `colours`: names of the CSS variables of `eval/report/page.css` that `drawFrame` takes from `palette`.
    - `mixFrames(a, b, share)`: return the frame between two, for `share` from 0 to 1.
    - `drawFrame(context, frame, {trail, start, colour, palette, width})`: draw a frame on a 2D canvas.
      `trail` holds the frames up to it, `start` is the first of the episode, `colour` that of the policy,
      `palette` maps names to colours, and lines are `width` times as wide as usual.
    """
    geometry: Mapping[str, object]
    """Sizes and shapes, by the names that the page's scripts use."""
    scales: tuple[int, ...]
    """Steps per unit of each recorded value, which is stored in 16 bits: observations, then progress."""


def read_script(package: str) -> str:
    """Return the file `scene.js` of a package."""
    return (resources.files(package) / "scene.js").read_text(encoding="utf-8")
