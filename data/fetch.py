"""One file over HTTP, on a connection that may break: every byte that arrived is kept and gone on from."""

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol

from nsde_policy.errors import DownloadError
from nsde_policy.files import replace_file

TIMEOUT = 30.0
"""Seconds without a byte after which a connection is given up."""
ATTEMPTS = 4
"""Failures in a row, without `HEADWAY` between them, after which the download is given up."""
HEADWAY = 2**20
"""Bytes that make a broken connection worth forgetting."""
BLOCK = 2**16
RETRIED = {408, 425, 429, 500, 502, 503, 504}
"""Answers that may be different in a moment."""


class Bar(Protocol):
    """What is told of bytes that arrive, such as a tqdm bar."""

    def update(self, n: int) -> object:
        """`n` more bytes."""


Progress = Callable[[int | None, int], AbstractContextManager[Bar]]
"""Opens a bar, given the bytes there are in all (None where nobody knows) and those already here."""


class _NoBar:
    def update(self, n: int) -> None:
        pass


def no_progress(total: int | None, done: int) -> AbstractContextManager[Bar]:
    """Show nothing."""
    return nullcontext(_NoBar())


class _Broken(Exception):
    """A connection that failed in a way that may not happen again."""


def fetch(
    url: str,
    target: Path,
    *,
    limit: int,
    check_space: Callable[[int], None] = lambda _: None,
    progress: Progress = no_progress,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Make `target` the whole file at `url`, going on from what an earlier call left there.

    Beside it, `target`.json holds what tells whether the server still has the same file: its length
    and its ETag or date. A server that has another one by now, or that cannot send parts, makes the
    download start afresh.

    Args:
        url: an http or https address.
        target: the file to write; it stays where it is when the download fails.
        limit: more bytes than this are refused.
        check_space: called with the bytes still to come; raises where the disk cannot hold them.
        progress: opens a bar for each connection.
        sleep: waits between attempts.
    """
    if not re.match(r"https?://[^/]", url, re.IGNORECASE):
        raise DownloadError(f"{url!r} is no address to download from; expected http:// or https://")
    download = _Download(url, target, limit, check_space, progress)
    failures, best = 0, download.size
    while not download.is_whole:
        try:
            download.go_on()
        except _Broken as broken:
            failures = 1 if download.size >= best + HEADWAY else failures + 1
            best = max(best, download.size)
            if failures >= ATTEMPTS:
                hint = "; run it again to go on" if download.size else ""
                raise DownloadError(f"{url} cannot be downloaded: {broken}{hint}") from broken
            sleep(2.0 ** (failures - 1))


class _Download:
    """A file that grows towards what the server has."""

    def __init__(
        self, url: str, target: Path, limit: int, check_space: Callable[[int], None], progress: Progress
    ) -> None:
        self._url = url
        self._target = target
        self._notes = target.with_name(f"{target.name}.json")
        self._limit = limit
        self._check_space = check_space
        self._progress = progress
        self._opener = _http_only()
        self._total, self._version = self._recall()
        self._ended = False

    @property
    def size(self) -> int:
        """Bytes here."""
        return self._target.stat().st_size if self._target.exists() else 0

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are here; where the server gave no length, its closing the connection says so."""
        return self._ended if self._total is None else self.size == self._total

    def go_on(self) -> None:
        """Read one answer as far as it goes."""
        start = self.size if self._version else 0
        if self._total is not None and start > self._total:
            start = 0
        with self._ask(start) as answer:
            if start and not self._continues(answer, start):
                start = 0  # what was sent is the whole file, or a part of another one
                if answer.status != 200:
                    self._forget()
                    raise _Broken("the file has changed on the server")
            length = _length(answer)
            if not start:
                self._remember(length, _version(answer))
            if (self._total or 0) > self._limit:
                self._forget()
                raise DownloadError(f"{self._url} has {self._total} bytes, expected at most {self._limit}")
            self._check_space(length or 0)
            self._receive(answer, start)
        if self._total is not None and self.size < self._total:
            raise _Broken(f"the connection ended after {self.size} of {self._total} bytes")
        self._ended = True

    def _ask(self, start: int) -> HTTPResponse:
        headers = {"User-Agent": "nsde-policy", "Accept-Encoding": "identity"}
        if start and self._version:
            headers |= {"Range": f"bytes={start}-", "If-Range": self._version}
        try:
            request = urllib.request.Request(self._url, headers=headers)
            answer: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
            return answer
        except urllib.error.HTTPError as error:
            said = f"the server says {error.code} {error.reason}"
            if error.code == 416:  # there is nothing behind what is here, so it is another file
                self._forget()
                raise _Broken(said) from error
            if error.code in RETRIED:
                raise _Broken(said) from error
            raise DownloadError(f"{self._url} cannot be downloaded: {said}") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DownloadError(f"{self._url} is not to be trusted: {error.reason}") from error
            raise _Broken(_words(error.reason)) from error
        except (OSError, HTTPException) as error:
            raise _Broken(_words(error)) from error
        except ValueError as error:
            raise DownloadError(f"{self._url!r} is no address to download from: {error}") from error

    def _continues(self, answer: HTTPResponse, start: int) -> bool:
        """Whether the answer is the rest of what is here, from `start` on."""
        said = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers.get("Content-Range", ""))
        if answer.status != 206 or not said:
            return False
        first, last, total = map(int, said.groups())
        return (first, last, total) == (start, total - 1, self._total)

    def _receive(self, answer: HTTPResponse, start: int) -> None:
        """Write what arrives behind the first `start` bytes."""
        with self._target.open("r+b" if start else "wb") as file, self._progress(self._total, start) as bar:
            file.seek(start)
            while block := _read(answer):
                start += len(block)
                if start > (self._limit if self._total is None else self._total):
                    raise DownloadError(
                        f"{self._url} sends more bytes than the {self._total or self._limit} expected"
                    )
                file.write(block)
                file.flush()
                bar.update(len(block))

    def _remember(self, total: int | None, version: str | None) -> None:
        """Note which file this is; one without length or version cannot be gone on with."""
        self._total = total
        self._version = version if total is not None else None
        self._target.unlink(missing_ok=True)
        notes = {"url": self._url, "total": total, "version": self._version}
        replace_file(self._notes, json.dumps(notes).encode())

    def _recall(self) -> tuple[int | None, str | None]:
        try:
            notes = json.loads(self._notes.read_bytes())
            if notes["url"] == self._url and isinstance(notes["version"], str):
                return int(notes["total"]), notes["version"]
        except (OSError, ValueError, TypeError, KeyError):
            pass  # no notes, or none that can be read: as if nothing were here
        self._forget()
        return None, None

    def _forget(self) -> None:
        """Drop what is here."""
        self._target.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)
        self._total = self._version = None


def _http_only() -> urllib.request.OpenerDirector:
    """An opener that no redirection leads to files or ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _length(answer: HTTPResponse) -> int | None:
    said = answer.headers.get("Content-Length", "")
    return int(said) if said.isascii() and said.isdigit() else None


def _version(answer: HTTPResponse) -> str | None:
    """What changes when the file does: its strong ETag, else its date."""
    etag = answer.headers.get("ETag", "")
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified")


def _read(answer: HTTPResponse) -> bytes:
    try:
        return answer.read1(BLOCK)  # what is here, without waiting for more
    except (OSError, HTTPException) as error:
        raise _Broken(f"the connection broke: {_words(error)}") from error


def _words(reason: object) -> str:
    """What went wrong, in words, where the system has no better ones."""
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} s"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
