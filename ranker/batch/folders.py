"""Where rows come from and answers go: a local folder, or a URL through fsspec."""

from __future__ import annotations

import gzip
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from ranker.core.artifacts import atomic_path
from ranker.core.errors import ArgumentError, ResourceError, missing_extra

TEMPORARY = (".part-*", "._manifest.json.*")  # names that `atomic_path` gives to what a batch writes


class Folder(Protocol):
    """A tree of files, each named by its path relative to the root with forward slashes.

    Names in which a part begins with "." are temporary and never listed.
    """

    def names(self) -> list[str]:
        """Return every file, sorted; none where there is no such folder."""

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; seekable."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file that appears whole or not at all."""

    def sweep(self) -> None:
        """Remove what writes that were cut short have left behind."""


class LocalFolder:
    """A folder of this machine, or one that is mounted on it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Return every file, sorted."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(name for path in found if not _hidden(name := path.relative_to(self.root).as_posix()))

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""
        return (self.root / name).is_file()

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return (self.root / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Write through a temporary file that is renamed when its bytes are on the disk."""
        with atomic_path(self.root / name) as path, path.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())

    def sweep(self) -> None:
        """Remove temporary files of this project; other hidden files stay."""
        for pattern in TEMPORARY:
            for path in self.root.rglob(pattern):
                path.unlink(missing_ok=True)


class RemoteFolder:
    """A folder behind an fsspec file system (s3, gs, abfs, hdfs, http, ...)."""

    def __init__(self, system: Any, root: str) -> None:
        self.system = system
        self.root = root.rstrip("/")

    def names(self) -> list[str]:
        """Return every file, sorted."""
        self.system.invalidate_cache()  # other processes write here too
        try:
            found = self.system.find(self.root)
        except FileNotFoundError:
            return []
        return sorted(name for path in found if not _hidden(name := path[len(self.root) :].lstrip("/")))

    def has(self, name: str) -> bool:
        """Tell whether a file is there."""
        self.system.invalidate_cache()
        return bool(self.system.exists(f"{self.root}/{name}"))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return cast(BinaryIO, self.system.open(f"{self.root}/{name}", "rb"))

    def write(self, name: str, data: bytes) -> None:
        """Write beside the target and move; a plain write need not be atomic on every file system."""
        temporary = f"{self.root}/.tmp/{uuid.uuid4().hex}"
        try:
            for path in (temporary, f"{self.root}/{name}"):
                self.system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self.system.pipe_file(temporary, data)
            self.system.mv(temporary, f"{self.root}/{name}")
        except OSError as error:
            raise ResourceError(f"cannot write {self.root}/{name}: {error}; choose another place") from error

    def sweep(self) -> None:
        """Remove temporary files."""
        if self.system.exists(f"{self.root}/.tmp"):
            self.system.rm(f"{self.root}/.tmp", recursive=True)


def _hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def is_url(place: str) -> bool:
    """Tell whether a place is an fsspec URL rather than a path.

    Examples
    --------
    >>> is_url("s3://bucket/vacancies"), is_url("data/vacancies.csv")
    (True, False)
    """
    return "://" in place


def _remote(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise missing_extra("fsspec", "scale") from error
    try:
        return cast(tuple[Any, str], fsspec.core.url_to_fs(url))
    except (ImportError, ValueError) as error:
        raise ArgumentError(f"cannot open {url}: {error}") from error


def open_folder(place: str) -> Folder:
    """Return the folder at a path or URL, whether or not it is there yet.

    Raises
    ------
    PrerequisiteError
        For a URL, if fsspec is not installed.
    ArgumentError
        For a URL of a protocol that fsspec does not know or has no driver for; the message names the driver.
    """
    return RemoteFolder(*_remote(place)) if is_url(place) else LocalFolder(Path(place))


def locate(place: str) -> tuple[str, str]:
    """Split a path or URL into a folder and a name in it; the name is "" where the place is itself a folder.

    Raises
    ------
    ResourceError
        If there is neither a file nor a folder.
    """
    if is_url(place):
        system, path = _remote(place)
        is_folder, is_file = system.isdir(path), system.isfile(path)
        folder, _, name = place.rpartition("/")
    else:
        local = Path(place)
        is_folder, is_file, folder, name = local.is_dir(), local.is_file(), str(local.parent), local.name
    if not is_folder and not is_file:
        raise ResourceError(f"no file or folder {place}")
    return (place, "") if is_folder else (folder, name)


@contextmanager
def reading(folder: Folder, name: str) -> Iterator[BinaryIO]:
    """Open a file of a folder, unpacked where its name ends in ".gz".

    Raises
    ------
    ResourceError
        If it cannot be opened.
    """
    try:
        stream = folder.open(name)
    except OSError as error:
        raise ResourceError(f"cannot read {name}: {error.strerror or error}") from error
    with stream:
        if name.endswith(".gz"):
            with gzip.open(stream) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield stream
