"""The measuring command, on a system without models."""

from __future__ import annotations

import json
import sys

import pytest
from small_world import write_config, write_esco

from ranker.core.cli import run
from ranker.service import load


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_library_service_and_overload_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    config = write_config(tmp_path / "tiny.yaml", write_esco(tmp_path / "esco"))
    arguments = ["--config", str(config), "--clients", "3", "--seconds", "0.3", "--rounds", "1"]
    assert run(load.main, [*arguments, "--overload", "0.4", "--factor", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["service_texts_per_s"] > 0
    assert found["overhead"] == pytest.approx(1 - found["service_texts_per_s"] / found["library_texts_per_s"])
    assert set(found["statuses"]) == {"200"}
    assert set(found["overload"]["statuses"]) <= {"200", "429"}
    assert len(found["overload"]["memory_mb"]) == 3


def test_a_service_that_does_not_start_is_told(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text("name: bad")
    assert run(load.main, ["--config", str(tmp_path / "bad.yaml")]) == 2
    assert "bad.yaml" in capsys.readouterr().err
