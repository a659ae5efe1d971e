"""Tests for nsde_policy/files.py."""

import os
from pathlib import Path

import pytest

from nsde_policy.errors import ComparisonError, NsdePolicyError
from nsde_policy.files import (
    check_writable,
    read_json,
    replace_file,
)


def read_error(path: Path) -> str:
    with pytest.raises(NsdePolicyError) as caught:
        read_json(path, error=ComparisonError)
    assert type(caught.value) is ComparisonError
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\0", "not valid JSON"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"a": 1e999}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b"[1]", "holds a JSON list, expected a JSON object"),
        (b"[1]" + b" " * 2**24, "the limit is 16777216"),
    ],
)
def test_read_json_rejects_anything_but_an_object(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    assert message in read_error(tmp_path / "a.json")


def test_read_json_rejects_anything_but_a_regular_file_of_limited_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "a.json").write_text('{"ü": [1, 2.5, null]}')
    for name, message in {
        "pipe": "not a regular file",
        "zeros": "not a regular file",
        "circle": "symbolic links",
        "": "s a directory",
        "missing": "No such file",
    }.items():
        assert message in read_error(tmp_path / name)
    assert read_json(tmp_path / "a.json", error=ComparisonError) == {"ü": [1, 2.5, None]}


def test_replace_file_creates_folders_and_leaves_no_partial_file(tmp_path):
    replace_file(tmp_path / "new" / "a", b"1")
    replace_file(tmp_path / "new" / "a", b"2")
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "new").iterdir()] == [("a", b"2")]


def test_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path):
    """A limit of the file size has the effect of a full disk."""
    target = tmp_path / "a"
    replace_file(target, b"old")
    if (child := os.fork()) == 0:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            replace_file(target, bytes(2000))
        except NsdePolicyError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("a", b"old")]


@pytest.mark.parametrize("write", [check_writable, lambda path: replace_file(path, b"x")])
def test_a_pipe_or_folder_is_not_replaced(write, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NsdePolicyError, match="not a regular file"):
        write(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(NsdePolicyError, match="folder"):
        write(tmp_path)


def test_the_check_of_a_path_leaves_nothing_behind(tmp_path):
    check_writable(tmp_path / "new" / "folder" / "file")
    assert list(tmp_path.iterdir()) == []
