"""Batch tagging on a Ray cluster of two workers, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from small_world import write_config, write_esco
from test_tag import bad, batch, records, tree, write_rows
from test_tag_docs import arguments, examples

from ranker import tag
from ranker.core.cli import run

ray = pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[scale]'")

ROWS = 1000


def actors(below: int) -> list[int]:
    """Return the processes under one that hold a ranker."""
    found, waiting = [], [below]
    while waiting:
        pid = waiting.pop()
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            name = Path(f"/proc/{pid}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        waiting += map(int, children)
        if name.startswith("ray::") and "RayWorker" in name:
            found.append(pid)
    return found


def test_a_worker_killed_in_the_middle_loses_nothing_and_doubles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    system = str(write_config(tmp_path / "small.yaml", write_esco(tmp_path / "esco"), size=40))
    source, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "out"
    with source.open("a") as stream:
        stream.write("broken\n")
    killed: list[int] = []

    def kill_one() -> None:
        while not killed:
            if len(list(out.glob("part-*"))) >= 3:
                for pid in actors(os.getpid())[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(len(list(out.glob("part-*"))))
            time.sleep(0.02)

    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    except Exception as error:  # noqa: BLE001  Ray gives its processes half a minute, too little on a busy machine
        ray.shutdown()
        pytest.skip(f"Ray did not start here: {str(error)[:200]}")
    try:
        threading.Thread(target=kill_one, daemon=True).start()
        code = run(tag.main, batch(source, out, system, "--engine", "ray", "--workers", 2))
        write_rows(tmp_path / "vacancies.jsonl", 30)
        monkeypatch.chdir(tmp_path)
        [line] = [line for line in examples("sh") if "--engine ray" in line]
        documented = run(tag.main, arguments(line, Path(system)))
    finally:
        ray.shutdown()
    assert documented == 0
    assert len(records(tmp_path / "tagged-by-ray")) == 30
    assert code == 7
    assert killed
    assert killed[0] < ROWS // 20
    assert sorted(row["id"] for row in records(out)) == sorted(f"v{i}" for i in range(ROWS))
    assert [row["line"] for row in bad(out)] == [ROWS + 1]
    assert run(tag.main, batch(source, tmp_path / "whole", system)) == 7
    assert tree(out) == tree(tmp_path / "whole")
