"""Files on disk: what is written is whole, what is damaged is made anew, what cannot be written is said."""

import hashlib
import json
import threading

import numpy as np
import pytest

from ranker.core.artifacts import atomic_path, cache_dir, cached_array, digest, sha256_file, write_json
from ranker.core.errors import ResourceError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "a"))
    assert cache_dir() == tmp_path / "a"
    monkeypatch.delenv("RANKER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "graded-ranker"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "graded-ranker"


def test_digest_is_that_of_compact_sorted_json():
    assert digest({"b": 1, "a": ["\u00e9"]}) == hashlib.sha256('{"a":["\u00e9"],"b":1}'.encode()).hexdigest()
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) != digest([2, 1])


def test_sha256_file(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_block_that_ends_well_replaces_the_file_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "deep" / "er" / "f.txt"
    with atomic_path(target) as path:
        path.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(target.parent) == ["f.txt"]
    assert target.stat().st_mode & 0o600 == 0o600


def test_a_block_that_fails_leaves_the_old_file(tmp_path):
    target = tmp_path / "f.txt"
    target.write_text("old")

    def write():
        with atomic_path(target) as path:
            path.write_text("half")
            raise KeyError("stop")

    with pytest.raises(KeyError):
        write()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["f.txt"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match=r"cannot write .*file/x\.json"):
        write_json(tmp_path / "file" / "x.json", {})
    with pytest.raises(ResourceError, match=r"cannot write .*folder"):
        write_json(tmp_path / "folder", {})
    assert names(tmp_path) == ["file", "folder"]


def test_write_json(tmp_path):
    write_json(tmp_path / "x.json", {"b": "\u00e9", "a": [1]})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert list(json.loads(text)) == ["b", "a"]
    assert "\u00e9" in text
    assert text.endswith("}\n")


def test_an_array_is_computed_once_per_key(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3).T  # not contiguous

    first = cached_array("x", {"k": 1}, compute, tmp_path)
    again = cached_array("x", {"k": 1}, compute, tmp_path)
    assert len(calls) == 1
    np.testing.assert_array_equal(first, again)
    assert not again.flags.writeable
    cached_array("x", {"k": 2}, compute, tmp_path)
    cached_array("y", {"k": 1}, compute, tmp_path)
    assert len(calls) == 3


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"not an array at all"])
def test_a_damaged_array_is_made_anew(tmp_path, damage):
    value = np.ones((2, 2), np.float32)
    cached_array("x", {}, lambda: value, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    np.testing.assert_array_equal(cached_array("x", {}, lambda: value, tmp_path), value)
    np.testing.assert_array_equal(np.load(file), value)


def test_a_truncated_array_is_made_anew(tmp_path):
    value = np.ones((50, 50), np.float32)
    cached_array("x", {}, lambda: value, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-100])
    np.testing.assert_array_equal(cached_array("x", {}, lambda: value, tmp_path), value)


def test_a_computation_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        cached_array("x", {}, lambda: 1 / 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_writers_that_race_leave_one_whole_array(tmp_path):
    value = np.random.default_rng(0).random((200, 200)).astype(np.float32)
    barrier = threading.Barrier(4)
    seen = []

    def work():
        barrier.wait()
        seen.append(np.array(cached_array("x", {}, lambda: value, tmp_path)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    for array in seen:
        np.testing.assert_array_equal(array, value)
    assert len(list(tmp_path.iterdir())) == 1
