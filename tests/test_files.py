"""Tests for nsde_policy/files.py."""

import os
from pathlib import Path

import pytest

from nsde_policy.errors import ComparisonError, NsdePolicyError, OutputError
from nsde_policy.files import parse_json, read_json, replace_file


def read_error(path: Path, **options: int) -> str:
    with pytest.raises(NsdePolicyError) as caught:
        read_json(path, error=ComparisonError, **options)
    assert type(caught.value) is ComparisonError
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_read_json_returns_the_object(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, 2.5, null], "ü": {"b": true}}')
    assert read_json(tmp_path / "a.json", error=ComparisonError) == {"a": [1, 2.5, None], "ü": {"b": True}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\0", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' * 100_000, "not valid JSON"),
        (b'{"a": 1' + b"0" * 10_000 + b"}", "not valid JSON"),
        (b"[1]", "holds a JSON list, expected a JSON object"),
        (b"3", "holds a JSON int, expected a JSON object"),
    ],
)
def test_read_json_rejects_anything_but_an_object(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content)
    assert message in read_error(tmp_path / "a.json")


def test_read_json_never_blocks_on_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in read_error(tmp_path / "pipe")


def test_read_json_rejects_missing_files_folders_and_large_files(tmp_path):
    assert "No such file" in read_error(tmp_path / "a.json")
    assert "not a regular file" in read_error(tmp_path)
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert "the limit is 7" in read_error(tmp_path / "a.json", max_bytes=7)
    assert read_json(tmp_path / "a.json", error=ComparisonError, max_bytes=8) == {"a": 1}


def test_parse_json_names_the_content():
    with pytest.raises(OutputError, match="message 3 is not valid JSON"):
        parse_json("nope", name="message 3", error=OutputError)


def test_replace_file_creates_folders_and_leaves_no_partial_file(tmp_path):
    replace_file(tmp_path / "new" / "a", b"1")
    replace_file(tmp_path / "new" / "a", b"2")
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "new").iterdir()] == [("a", b"2")]


def test_replace_file_rejects_a_folder(tmp_path):
    with pytest.raises(OutputError, match="folder"):
        replace_file(tmp_path, b"")
