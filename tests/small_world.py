"""A small taxonomy, a system without models and graded tasks over them, as files, for tests of whole commands."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

BASE = "http://data.europa.eu/esco/skill/"
VERBS = (
    "weld",
    "paint",
    "repair",
    "inspect",
    "design",
    "sell",
    "clean",
    "transport",
    "assemble",
    "measure",
    "plan",
    "cut",
)
THINGS = (
    *("steel frames", "wooden furniture", "car engines", "ship hulls", "glass panels", "leather shoes"),
    *("stone walls", "electric motors", "garden tools", "roof tiles", "copper pipes", "textile patterns"),
)

CONFIG = """
name: {name}
taxonomy: {{source: official, path: {esco}}}
lanes:
  - {{name: bm25, family: bm25}}
  - {{name: tfidf, family: tfidf, analyzer: char_wb}}
pool: {{size: {size}, weights: {{bm25: {bm25}, tfidf: {tfidf}}}}}
"""


def write_esco(folder: Path) -> Path:
    """Write 144 skills as an official CSV."""
    folder.mkdir(parents=True)
    with (folder / "skills_en.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["conceptUri", "preferredLabel", "altLabels", "description"])
        labels = [f"{verb} {thing}" for verb in VERBS for thing in THINGS]
        writer.writerows([f"{BASE}{row:03d}", label, "", ""] for row, label in enumerate(labels))
    return folder


def write_config(path: Path, esco: Path, *, size: int = 120, bm25: float = 1.0, tfidf: float = 1.0) -> Path:
    """Write a system of two lexical lanes."""
    path.write_text(CONFIG.format(name=path.stem, esco=esco, size=size, bm25=bm25, tfidf=tfidf), encoding="utf-8")
    return path


def write_tasks(folder: Path, *, n_tasks: int = 2, n_queries: int = 6, seed: int = 0) -> Path:
    """Write graded tasks: 4 for the skill asked for, 2 for one that shares its thing, 1 for its verb, some zeros."""
    draw = random.Random(seed)
    for number in range(n_tasks):
        task = folder / f"task{number}"
        task.mkdir(parents=True)
        queries, qrels = [], []
        for q in range(n_queries):
            verb, thing = draw.randrange(len(VERBS)), draw.randrange(len(THINGS))
            text = f"You will {VERBS[verb]} {THINGS[thing]} and keep the {draw.choice(THINGS)} shop tidy ({number}.{q})"
            queries.append({"_id": f"q{q}", "text": text})
            for row in range(len(VERBS) * len(THINGS)):
                same = (row // len(THINGS) == verb, row % len(THINGS) == thing)
                grade = {(True, True): 4, (False, True): 2, (True, False): 1}.get(same, 0)
                if grade or draw.random() < 0.3:
                    qrels.append((f"q{q}", f"{BASE}{row:03d}", grade))
        (task / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries), encoding="utf-8")
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in qrels)]
        (task / "qrels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
