"""Files on disk: cache folder, atomic writes, locks and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.errors import ResourceError
from ranker.core.types import Float32

SHIPPED = Path(__file__).resolve().parents[2] / "checkpoints" / "arrays"


def cache_dir() -> Path:
    """Return the cache folder: $RANKER_CACHE, else $XDG_CACHE_HOME/graded-ranker, else ~/.cache/graded-ranker."""
    explicit = os.environ.get("RANKER_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graded-ranker"


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Return the hex SHA-256 of a JSON-serialisable value, independent of the order of dict keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target` that replaces it only if the block ends without an error.

    Parameters
    ----------
    target : Path
        The file to be written; its folder is made where it is missing.

    Raises
    ------
    ResourceError
        If the folder cannot be written to.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
    except OSError as error:
        raise ResourceError(f"cannot write {target}: {error.strerror or error}; choose a writable place") from error
    os.close(handle)
    path = Path(name)
    try:
        yield path
        umask = os.umask(0)
        os.umask(umask)
        path.chmod(0o666 & ~umask)
        try:
            path.replace(target)
        except OSError as error:
            raise ResourceError(f"cannot write {target}: {error.strerror or error}; choose another place") from error
    finally:
        path.unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, indented, with a final newline."""
    with atomic_path(target) as path:
        path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def cached_array(name: str, key: dict[str, Any], compute: Any, folder: Path | None = None) -> Float32:
    """Return a float array from the cache or as shipped, else compute and store it.

    Arrays that take minutes to compute are shipped in checkpoints/arrays for the default taxonomy. Two processes may
    race: both compute, each writes a whole file, and the last rename wins, so a reader never sees half an array.

    Parameters
    ----------
    name : str
        What the array is; the start of its file name.
    key : dict
        Everything the array depends on (lane config, model revision, taxonomy fingerprint).
    compute : callable
        Called without arguments when the cache has no usable file.
    folder : Path, optional
        Default `cache_dir() / "arrays"`.

    Returns
    -------
    numpy.ndarray
        The array, memory-mapped read-only where it came from disk.
    """
    file = f"{name}-{digest(key)[:16]}.npy"
    path = (folder or cache_dir() / "arrays") / file
    if (SHIPPED / file).is_file():
        return np.load(SHIPPED / file, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    if path.is_file():
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
        except (ValueError, EOFError, OSError):
            path.unlink(missing_ok=True)  # a damaged file is made anew
    value = np.ascontiguousarray(compute())
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, value, allow_pickle=False)
    return value
