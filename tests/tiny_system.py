"""A whole system in one folder: config, taxonomy, a tiny neural model and a trained bag."""

from __future__ import annotations

import json
from pathlib import Path

from small_world import write_esco, write_tasks
from tiny_bert import write_tiny_bert

from train.fusion import main as train

CONFIG = """
name: tiny
taxonomy: {source: official, path: esco}
lanes:
  - {name: bm25, family: bm25}
  - {name: tfidf, family: tfidf, analyzer: char_wb}
  - {name: dense, family: dense, model: bert}
pool: {size: 100, weights: {bm25: 1.0, tfidf: 1.0}}
fusion: {checkpoint: bag}
"""


def write_system(folder: Path) -> Path:
    """Write the folder, its paths as seen from itself, and return it."""
    write_esco(folder / "esco")
    write_tiny_bert(folder / "bert")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    data = write_tasks(folder.with_name(f"{folder.name}-data"), n_queries=10)
    folds = data / "folds.json"  # by hand: to random weights all texts are near-duplicates
    folds.write_text(json.dumps({f"q{number}": number % 5 for number in range(10)}), encoding="utf-8")
    given = ["--config", folder, "--data", data, "--folds", folds, "--out", folder / "bag", "--rounds", "15"]
    train([*map(str, given), "--members", "4", "--repetitions", "1", "--json"])
    return folder
