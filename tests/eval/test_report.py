"""Tests for the page of `nsde-policy compare`: it holds what was rolled out, and needs no network."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from nsde_policy.cli.main import main
from nsde_policy.eval.compare.result import Comparison, read_comparison
from nsde_policy.eval.report.page import format_page
from nsde_policy.eval.rollouts.runner import EnvRunner, RolloutConfig
from tests.helpers.comparisons import make_comparison, make_entry, without_success
from tests.helpers.recordings import decode_frames

pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """Parser of a page: elements with their attributes, and the texts of scripts, styles and cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        self.texts.append((attributes.get("id") or tag, data))

    def data(self) -> dict[str, Any]:
        return json.loads(next(text for where, text in self.texts if where == "data"))


def outcomes(held: Comparison, **options: Any) -> str:
    """Format the page of a comparison without run directories."""
    return format_page(held, {}, **options)


def test_page_holds_every_score_with_its_interval():
    held = make_comparison(make_entry(), make_entry("knn"), make_entry("knn", train_seed=1))
    text = outcomes(held)
    for row in held.rows:
        for score in (row.success, row.score):
            assert score is not None
            assert f"<b>{score.value:.3f}</b>" in text
            assert f"[{score.low:.3f}, {score.high:.3f}]" in text
    assert "by training seed" in text
    assert '<span class="verdict ahead">Neural SDE ahead</span>' in text
    data = Page(text).data()
    labels = ["Neural SDE", "Nearest neighbours, seed 0", "Nearest neighbours, seed 1"]
    assert [run["label"] for run in data["runs"]] == labels
    assert data["runs"][0]["success"] == [int(won) for won in held.entries[0].episodes.success]
    assert data["seeds"] == list(range(100_000, 100_060))


def test_page_says_if_there_is_no_difference():
    twin = msgspec.structs.replace(make_entry("regression"), episodes=make_entry().episodes)
    assert outcomes(make_comparison(make_entry(), twin)).count("no difference shown") >= 1
    alone = outcomes(make_comparison(make_entry()))
    assert "no difference shown" not in alone
    assert "Only one policy" in alone


def test_page_without_a_scene_or_successes_has_scores_and_settings():
    page = Page(outcomes(without_success(make_entry(), make_entry("knn"))))
    names = {attributes.get("id") for _, attributes in page.elements}
    assert {"scores", "differences", "settings"} <= names
    assert "explorer" not in names
    text = " ".join(text for _, text in page.texts)
    assert ": mean return −" in text
    assert page.data()["runs"][0]["success"] is None
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a"}
    assert links <= {f"#{name}" for name in names}


def test_names_are_escaped():
    evil = '</script><img src=x onerror="alert(1)">'
    held = make_comparison(make_entry(f"neural_sde, {evil}"))
    found = Page(outcomes(held))
    assert "img" not in {tag for tag, _ in found.elements}
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert evil in found.data()["runs"][0]["label"]


def test_page_allows_only_its_own_style_and_script():
    found = Page(outcomes(make_comparison(make_entry())))
    metas = [attributes for tag, attributes in found.elements if tag == "meta"]
    (policy,) = [m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        allowed = re.search(rf"{tag}-src 'sha256-([^']+)'", policy)
        texts = [text for where, text in found.texts if where == tag]
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert allowed is not None
        assert allowed[1] in digests
    named = [a.get(key) or "" for _, a in found.elements for key in ("src", "href", "srcset", "action")]
    assert all(value.startswith(("#", "data:")) for value in named if value)


def test_page_holds_episodes_and_settings(quick_runs: list[Path], tmp_path: Path):
    runs, kwargs = [quick_runs[0], quick_runs[2]], {"max_episode_steps": 60}
    play = ["--episodes", "2", "--workers", "1", "--env-kwargs", json.dumps(kwargs)]
    assert main(["compare", *map(str, runs), "--out", str(tmp_path), *play]) == 0
    text = (tmp_path / "report.html").read_text()
    data = Page(text).data()
    assert [run["lengths"] for run in data["runs"]] == [[61, 61], [61, 61]]
    for words in ("demos.final_action_weight", "pymunk", str(runs[0]), "regression"):
        assert words in text
    played = EnvRunner(runs[0], RolloutConfig(env_kwargs=kwargs)).run_one(100_001)
    entry, _ = read_comparison(tmp_path / "comparison.json").entries
    assert entry.frames in text
    true = np.column_stack([played.trace.obs, played.trace.progress])
    scales = np.array(data["scales"])
    assert np.all(np.abs(decode_frames(entry)[1] / scales - true) <= 0.5001 / scales), (
        "rounded to half a step"
    )
