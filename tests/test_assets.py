"""Tests for nsde_policy/assets: how shipped policies are found."""

from pathlib import Path

import pytest

from nsde_policy.assets import SHIPPED_POLICIES, get_shipped_name, resolve_run
from nsde_policy.policy.policy import Policy


def test_shipped_policies_have_names_that_run_directories_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert get_shipped_name(None) == "shipped"
    for name, path in SHIPPED_POLICIES.items():
        assert resolve_run(Path(name)) == path
        assert get_shipped_name(path) == name
        assert Policy.from_pretrained(name).spec == Policy.from_pretrained(path).spec
        assert (path / "config.json").is_file()
    assert get_shipped_name(tmp_path / "pusht_pixels") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shipped-pixels").mkdir()
    assert resolve_run(Path("shipped-pixels")) == Path("shipped-pixels")
