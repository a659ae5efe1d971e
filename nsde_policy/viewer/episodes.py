"""Page of recorded episodes, which `data view` serves and `score --report` writes."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from nsde_policy.data.images import LazyFrames
from nsde_policy.data.oddities import find_flags
from nsde_policy.data.types import Demonstrations
from nsde_policy.errors import NsdePolicyError

from .http import File, PageServer, ViewerSettings, load_files, respond_with_file

if TYPE_CHECKING:
    from nsde_policy.eval.score.episodes import ScoredEpisodes
    from nsde_policy.policy.policy import Policy

DIGITS = 5
"""Significant digits of the numbers on the page."""
MOST_PLANS = 100
"""Plans over one episode, from frames that are spread evenly."""
MOST_EPISODES, MOST_PICTURES, MOST_PIXELS = 20, 600, 200
"""Episodes of a file, pictures of all its cameras together, and pixels of a side of a picture."""


@dataclass(frozen=True)
class EpisodePage:
    """Content of the page: curves and cameras of each episode, and a policy's plans over them."""

    demos: Demonstrations
    cameras: Mapping[str, LazyFrames]
    """Frames of each camera by its name."""
    first_frames: Sequence[int]
    """Position of the first frame of each episode in them."""
    numbers: Sequence[int]
    edit_flags: str | None = None
    """Flags that the command for edits needs besides the marks; None if the page is not for edits."""
    verdict: Sequence[str] = ()
    """Lines above the episodes."""
    notes: Sequence[str] = ()
    """A line about each episode."""
    plan: Callable[[int], dict[str, object]] | None = None
    """Plans over an episode, see `plan_recorded`."""

    @classmethod
    def from_policy(
        cls, policy: "Policy", scored: "ScoredEpisodes", verdict: Sequence[str], notes: Sequence[str] = ()
    ) -> "EpisodePage":
        """Show a policy's plans over recorded episodes."""
        names = (camera.name.rpartition(".")[2] for camera in policy.spec.cameras)
        return cls(
            scored.demos,
            dict(zip(names, scored.cameras, strict=True)),
            scored.first_frames,
            scored.episodes,
            verdict=verdict,
            notes=notes,
            plan=lambda episode: plan_recorded(policy, scored, episode),
        )

    @cached_property
    def overview(self) -> dict[str, object]:
        """Everything about the store but the episodes themselves."""
        demos = self.demos
        return {
            "source": demos.source,
            "flags_of_edit": self.edit_flags,
            "rate": demos.rate_hz,
            "observations": demos.obs_names,
            "actions": demos.act_names,
            "groups": [
                {"name": name, "unit": unit, "columns": columns}
                for name, values, angles in [
                    ("obs", demos.obs, demos.angles),
                    ("act", demos.act, demos.act_angles),
                ]
                for unit, columns in group_columns(values, angles)
            ],
            "cameras": list(self.cameras),
            "lengths": demos.lengths.tolist(),
            "numbers": list(self.numbers),
            "flags": [[] for _ in demos] if self.edit_flags is None else find_flags(demos),
            "verdict": list(self.verdict),
            "notes": list(self.notes),
        }

    def read_episode(self, episode: int) -> dict[str, object]:
        """Return the numbers of an episode by column, and the plans over it."""
        recorded = self.demos[range(len(self.demos))[episode]]
        plans = {} if self.plan is None else {"plans": self.plan(episode)}
        return {"obs": _list_columns(recorded.obs), "act": _list_columns(recorded.act), **plans}

    def read_frame(self, camera: str, episode: int, frame: int) -> np.ndarray:
        """Return a camera frame, (height, width, 3) uint8."""
        at = range(int(self.demos.lengths[episode]))[frame]
        picture: np.ndarray = self.cameras[camera][self.first_frames[episode] + at]
        return np.ascontiguousarray(picture)

    def to_html(self, title: str) -> str:
        """Return a self-contained page with the first episodes and some of their frames."""
        from nsde_policy.eval.report.page import encode_json, format_security_policy

        most, demos = MOST_EPISODES, self.demos
        page = replace(self, demos=demos.take(min(len(demos), most)), numbers=self.numbers[:most])
        count = len(page.demos)
        episodes = [{**page.read_episode(k), "frames": page._read_pictures(k)} for k in range(count)]
        files = {path.rpartition("/")[2]: body.decode() for path, (_, body) in load_files("").items()}
        style = files["style.css"] + files["episodes.css"]
        script = files["canvas.js"] + files["episodes.js"]
        data = encode_json({"title": title, "overview": page.overview, "episodes": episodes})
        policy = format_security_policy(style, script)
        head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        body = f'<script type="application/json" id="recorded">{data}</script>\n<script>{script}</script>\n'
        before, _, after = files["episodes.html"].split("<!-- files -->\n")
        return before + head + after.replace("</body>", body + "</body>")

    def _read_pictures(self, episode: int) -> dict[str, object]:
        """Return some frames of an episode by camera as JPEG in base64, each `stride` frames apart."""
        from nsde_policy.eval.render.pictures import encode_picture

        length = int(self.demos.lengths[episode])
        stride = -(-length * len(self.demos) * max(1, len(self.cameras)) // MOST_PICTURES)
        pictures: dict[str, object] = {}
        for camera in self.cameras:
            frames = (self.read_frame(camera, episode, at) for at in range(0, length, stride))
            small = (frame[:: (step := -(-max(frame.shape) // MOST_PIXELS)), ::step] for frame in frames)
            jpeg = [base64.b64encode(encode_picture(picture, "jpg")).decode() for picture in small]
            pictures[camera] = {"stride": stride, "jpeg": jpeg}
        return pictures


class EpisodeServer(PageServer):
    """Serves the page over HTTP; nothing is written."""

    def __init__(self, page: EpisodePage, settings: ViewerSettings) -> None:
        files = load_files("")
        super().__init__(settings, {**files, "/": files["/static/episodes.html"]})
        self._page = page

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; call `ready` with the port."""
        async with self._listen(self._close, self._respond) as port:
            ready(port)
            await self._stop.wait()

    async def _close(self, connection: ServerConnection) -> None:
        """Refuse a websocket, which the page does not open."""
        await connection.close(1008, "no websocket here")

    def _answer(self, connection: ServerConnection, request: Request, path: str) -> Response:
        """Return numbers or a frame of an episode."""
        try:
            file = self._read(path, parse_qs(request.path.partition("?")[2]))
        except (KeyError, ValueError, IndexError):
            return connection.respond(HTTPStatus.NOT_FOUND, f"{path[:80]} does not exist\n")
        except NsdePolicyError as error:
            return connection.respond(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n")
        return respond_with_file(*file, request.headers["Host"])

    def _read(self, path: str, query: dict[str, list[str]]) -> File:
        """Return suffix and content: the overview, the numbers of an episode, or a frame of a camera."""
        if path == "/overview":
            return "json", json.dumps(self._page.overview).encode()
        episode = int(query["episode"][0])
        if path == "/episode":
            return "json", json.dumps(self._page.read_episode(episode)).encode()
        if path != "/frame":
            raise KeyError(path)
        from nsde_policy.eval.render.pictures import encode_picture

        frame = self._page.read_frame(query["camera"][0], episode, int(query["frame"][0]))
        return "png", encode_picture(frame)


def plan_recorded(policy: "Policy", scored: "ScoredEpisodes", episode: int) -> dict[str, object]:
    """Plan from recorded frames of an episode, `stride` frames apart: `actions` and `std` by column.

    `std` is accumulated along the plan, and None if the method does not report it.
    """
    from nsde_policy.eval.score.episodes import add_features
    from nsde_policy.training.dataset import build_transitions

    selected, history = scored.select([episode]), policy.spec.history
    demos = selected.demos
    if selected.cameras:
        demos = add_features(demos, selected.cameras, selected.first_frames, policy)
    pairs = build_transitions(demos, policy.record.config.demos, history=history, final_action_weight=1.0)
    states = pairs.x.numpy().reshape(len(pairs.x), history, -1)
    stride = -(-len(states) // MOST_PLANS)
    plans = [policy.plan_from(state, steps=policy.spec.chunk, seed=0) for state in states[::stride]]
    std = [_list_columns(np.sqrt(np.square(plan.std).cumsum(0))) for plan in plans if plan.std is not None]
    return {"stride": stride, "actions": [_list_columns(plan.actions) for plan in plans], "std": std or None}


def group_columns(values: np.ndarray, angles: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Group columns whose curves can share a scale: angles, and others up to a tenth of the group's largest.

    Args:
        values: All frames, (frames, columns).
        angles: Columns that are angles in radians.

    Returns:
        The unit of each group, empty if unknown, and its columns.
    """
    sizes = np.maximum(values.max(0), -values.min(0))
    groups: list[tuple[str, list[int]]] = [("rad", sorted(angles))] if angles else []
    largest = np.inf
    for column in np.argsort(-sizes, kind="stable").tolist():
        if column in angles:
            continue
        if sizes[column] < largest / 10 and (sizes[column] > 0 or largest == np.inf):
            largest = sizes[column]
            groups.append(("", []))
        groups[-1][1].append(column)
    return [(unit, sorted(columns)) for unit, columns in groups]


def _list_columns(values: np.ndarray) -> list[list[float]]:
    """Return the columns of values (rows, columns) as lists of numbers with few digits."""
    return [[float(f"{value:.{DIGITS}g}") for value in column] for column in values.T.tolist()]
