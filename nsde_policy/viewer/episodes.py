"""Web server of `data view`: the episodes of a data set over HTTP; nothing is written."""

import json
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from nsde_policy.data.flags import find_flags
from nsde_policy.data.images import LazyFrames
from nsde_policy.data.types import Demonstrations
from nsde_policy.deploy.server.auth import Log
from nsde_policy.deploy.server.connection import WebsocketServer
from nsde_policy.errors import NsdePolicyError
from nsde_policy.viewer.http import ViewerSettings, load_files, respond_with_file


class EpisodeServer(WebsocketServer):
    """Serves a page with the curves and cameras of each episode.

    Args:
        demos: Observations and actions.
        cameras: Frames by name.
        settings: Address and token; data are served only with the token.
        log: Receives events.
        edit_flags: Flags that the command for edits needs besides the marks.
    """

    def __init__(
        self,
        demos: Demonstrations,
        cameras: dict[str, LazyFrames],
        settings: ViewerSettings,
        log: Log,
        *,
        edit_flags: str = "",
    ) -> None:
        super().__init__(settings, log)
        self._settings, self._demos, self._cameras = settings, demos, cameras
        self._files = load_files("")
        self._files["/"] = self._files["/static/episodes.html"]
        self._overview = {
            "source": demos.source,
            "flags_of_edit": edit_flags,
            "rate": demos.rate_hz,
            "observations": demos.obs_names,
            "actions": demos.act_names,
            "cameras": list(cameras),
            "lengths": demos.lengths.tolist(),
            "flags": find_flags(demos),
        }

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; call `ready` with the port."""
        async with self._listen(self._close, self._respond) as port:
            self._log("showing", host=self._settings.host, port=port)
            ready(port)
            await self._stop.wait()

    async def _close(self, connection: ServerConnection) -> None:
        """Refuse a websocket, which the page does not open."""
        await connection.close(1008, "no websocket here")

    def _respond(self, connection: ServerConnection, request: Request) -> Response:
        """Answer an HTTP request."""
        if objection := self._settings.find_objection(request):
            return connection.respond(HTTPStatus.FORBIDDEN, objection + "\n")
        url = urlsplit(request.path)
        if not url.path.startswith("/static/") and not self._settings.accepts_token(request):
            return connection.respond(HTTPStatus.FORBIDDEN, "a token is required: ?token=…\n")
        host = request.headers["Host"]
        if url.path in self._files:
            return respond_with_file(*self._files[url.path], host)
        try:
            return respond_with_file(*self._read(url.path, parse_qs(url.query)), host)
        except (KeyError, ValueError, IndexError):
            return connection.respond(HTTPStatus.NOT_FOUND, f"{request.path[:80]} does not exist\n")
        except NsdePolicyError as error:
            return connection.respond(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n")

    def _read(self, path: str, query: dict[str, list[str]]) -> tuple[str, bytes]:
        """Return suffix and content: the overview, the numbers of an episode, or a frame of a camera."""
        if path == "/overview":
            return "json", json.dumps(self._overview).encode()
        episode = int(query["episode"][0])
        if path == "/episode":
            chosen = self._demos[range(len(self._demos))[episode]]
            numbers = {"obs": chosen.obs.T.tolist(), "act": chosen.act.T.tolist()}
            return "json", json.dumps(numbers).encode()
        if path != "/frame":
            raise KeyError(path)
        from nsde_policy.eval.render.pictures import encode_png

        frame = range(int(self._demos.lengths[episode]))[int(query["frame"][0])]
        picture = self._cameras[query["camera"][0]][int(self._demos.starts[episode]) + frame]
        return "png", encode_png(np.ascontiguousarray(picture))
