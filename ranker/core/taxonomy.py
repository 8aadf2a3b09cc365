"""The taxonomy: an immutable table of skills in a fixed order, with a fingerprint of all its text."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ranker.core.artifacts import atomic_path, digest
from ranker.core.errors import InputError, ResourceError
from ranker.core.text import normalise

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill as a source gives it: `uri`, `label`, `alt_labels`, `description`, group codes, links (kind, URI)."""

    uri: str
    label: str
    alt_labels: tuple[str, ...] = ()
    description: str = ""
    groups: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Taxonomy:
    """Skills sorted by URI. Row i of every array, lane score and prior is the skill `uri[i]`.

    Attributes
    ----------
    uri, label, description : tuple of str
        One entry per skill; a missing description is "".
    alt_labels : tuple of tuple of str
        Alternative labels, in the source's order, without the label itself and without repeats.
    groups : tuple of tuple of str
        Codes of the skill groups (such as "S4.5.0"), possibly none.
    links : tuple of tuple of (str, str)
        What a skill is joined with, where the source says so: ("broader", URI of a skill), ("essential" or "optional",
        URI of an occupation). Not text, so not part of the fingerprint.
    version, language : str
        Such as "1.1.0" and "en".
    source : str
        Where it came from, for people; not part of the fingerprint.
    """

    uri: tuple[str, ...]
    label: tuple[str, ...]
    alt_labels: tuple[tuple[str, ...], ...]
    description: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    version: str = ""
    language: str = "en"
    source: str = field(default="", compare=False)
    links: tuple[tuple[tuple[str, str], ...], ...] = ()

    @classmethod
    def from_skills(
        cls, skills: Iterable[Skill], *, version: str = "", language: str = "en", source: str = ""
    ) -> Taxonomy:
        """Build a taxonomy: sorted by URI, alt labels without repeats and without the label.

        Raises
        ------
        InputError
            If there is no skill, a URI is empty or stands twice, or a label is empty.
        """
        rows = sorted(skills, key=lambda skill: skill.uri)
        if not rows:
            raise InputError(f"the taxonomy from {source or 'this source'} holds no skill")
        for before, row in zip([None, *rows], rows, strict=False):
            if not row.uri or not row.label.strip():
                raise InputError(f"skill {row.uri!r} with label {row.label!r}: neither may be empty")
            if before is not None and before.uri == row.uri:
                raise InputError(f"skill {row.uri} stands twice in {source or 'the source'}; keep one of the two rows")
        return cls(
            uri=tuple(row.uri for row in rows),
            label=tuple(row.label for row in rows),
            alt_labels=tuple(tuple(a for a in dict.fromkeys(row.alt_labels) if a and a != row.label) for row in rows),
            description=tuple(row.description for row in rows),
            groups=tuple(row.groups for row in rows),
            version=version,
            language=language,
            source=source,
            links=tuple(row.links for row in rows),
        )

    def __len__(self) -> int:
        return len(self.uri)

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 (first 16 digits) of all text, in order; two taxonomies that share it rank alike."""
        return digest([self.uri, self.label, self.alt_labels, self.description, self.groups, self.language])[:16]

    @cached_property
    def index(self) -> dict[str, int]:
        """Row of each URI."""
        return {uri: row for row, uri in enumerate(self.uri)}

    def find(self, key: str) -> list[int]:
        """Return the rows that a URI, the last part of a URI, a label or an alt label names, in that preference."""
        if key in self.index:
            return [self.index[key]]
        wanted = normalise(key).casefold()
        tests: tuple[Callable[[int], bool], ...] = (
            lambda i: self.uri[i].rsplit("/", 1)[-1] == key,
            lambda i: self.label[i].casefold() == wanted,
            lambda i: any(alt.casefold() == wanted for alt in self.alt_labels[i]),
        )
        for test in tests:
            rows = [i for i in range(len(self)) if test(i)]
            if rows:
                return rows
        return []

    def skills(self) -> list[Skill]:
        """Return the rows as records."""
        return [
            Skill(*row)
            for row in zip(
                self.uri, self.label, self.alt_labels, self.description, self.groups, self.links, strict=True
            )
        ]

    def extend(self, rows: Sequence[Skill]) -> Taxonomy:
        """Return a taxonomy with private skills added, and aliases added to the skills that `uri` already names.

        A row whose URI is known adds its alt labels, and replaces label and description only where it gives them.
        """
        merged = {skill.uri: skill for skill in self.skills()}
        for row in rows:
            known = merged.get(row.uri)
            merged[row.uri] = row if known is None else replace(
                known,
                label=row.label or known.label,
                alt_labels=(*known.alt_labels, *row.alt_labels),
                description=row.description or known.description,
                groups=(*known.groups, *(g for g in row.groups if g not in known.groups)),
            )
        return Taxonomy.from_skills(
            merged.values(), version=self.version, language=self.language, source=f"{self.source} + extension"
        )

    def save(self, path: Path) -> None:
        """Write the taxonomy as gzipped JSON; the same taxonomy gives the same bytes."""
        value = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "version": self.version,
            "language": self.language,
            "source": self.source,
            "uri": self.uri,
            "label": self.label,
            "alt_labels": self.alt_labels,
            "description": self.description,
            "groups": self.groups,
        }
        if any(self.links):
            value["links"] = self.links
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        with atomic_path(path) as temporary:
            temporary.write_bytes(gzip.compress(data, 6, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Taxonomy:
        """Read what `save` wrote.

        Raises
        ------
        ResourceError
            If the file is not there.
        InputError
            If it is damaged, of another format, or its text does not have the fingerprint it states.
        """
        if not path.is_file():
            raise ResourceError(f"no taxonomy at {path}; run: python -m ranker.taxonomy build")
        try:
            value = json.loads(gzip.decompress(path.read_bytes()))
            if value["format"] != FORMAT:
                raise InputError(f"{path} has format {value['format']}, this version reads {FORMAT}; build it anew")
            taxonomy = cls(
                uri=tuple(value["uri"]),
                label=tuple(value["label"]),
                alt_labels=tuple(map(tuple, value["alt_labels"])),
                description=tuple(value["description"]),
                groups=tuple(map(tuple, value["groups"])),
                version=value["version"],
                language=value["language"],
                source=value["source"],
                links=tuple(
                    tuple((kind, uri) for kind, uri in own) for own in value.get("links", ((),) * len(value["uri"]))
                ),
            )
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a readable taxonomy ({error}); build it anew") from error
        if taxonomy.fingerprint != value["fingerprint"]:
            raise InputError(f"{path}: text has fingerprint {taxonomy.fingerprint}, file states {value['fingerprint']}")
        return taxonomy


def read_extension(path: Path) -> list[Skill]:
    """Read private skills and extra aliases from a CSV with columns id, label, alt_labels, description.

    `alt_labels` holds one alias per line, or aliases separated by "|"; only `id` is required in a row that adds aliases
    to a known skill.

    Raises
    ------
    ResourceError
        If the file is not there.
    InputError
        If a column is missing or a row has no id, with its line.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the CSV file of the extension")
    if not path.is_file():
        raise ResourceError(f"no extension file at {path}")
    try:
        return list(_extension_rows(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a UTF-8 CSV ({error}); save it as UTF-8, with commas") from error


def _extension_rows(path: Path) -> Iterator[Skill]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        missing = {"id", "label", "alt_labels", "description"} - set(reader.fieldnames or ())
        if missing:
            raise InputError(f"{path}: columns missing: {', '.join(sorted(missing))}; found {reader.fieldnames}")
        for row in reader:
            if not (row["id"] or "").strip():
                raise InputError(f"{path}, line {reader.line_num}: no id")
            aliases = (row["alt_labels"] or "").replace("|", "\n").splitlines()
            yield Skill(
                uri=row["id"].strip(),
                label=(row["label"] or "").strip(),
                alt_labels=tuple(alias.strip() for alias in aliases if alias.strip()),
                description=(row["description"] or "").strip(),
            )
