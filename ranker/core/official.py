"""Official ESCO downloads: a folder or zip of CSVs, any language, any version."""

from __future__ import annotations

import csv
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ranker.core.errors import InputError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy

_SKILLS = re.compile(r"skills_([a-z]{2})\.csv", re.IGNORECASE)
_HIERARCHY = re.compile(r"skillsHierarchy_[a-z]{2}\.csv", re.IGNORECASE)
_BROADER = re.compile(r"broaderRelationsSkillPillar_[a-z]{2}\.csv", re.IGNORECASE)
_OCCUPATIONS = re.compile(r"occupationSkillRelations(_[a-z]{2})?\.csv", re.IGNORECASE)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)")
MAX_FIELD = 10_000_000


def single_spaced(text: str) -> str:
    """Return the text with every run of white space, line breaks included, as one space."""
    return " ".join(text.split())


def read_rows(data: bytes, where: str, columns: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV as dicts, checked for completeness.

    Parameters
    ----------
    data : bytes
        The file, UTF-8 with or without a byte order mark.
    where : str
        Its name, for errors.
    columns : iterable of str
        Columns that must be there.

    Raises
    ------
    InputError
        If a column is missing, a row is short, a quoted field does not end, or the text is not UTF-8.
    """
    csv.field_size_limit(MAX_FIELD)
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        missing = sorted(set(columns) - set(reader.fieldnames or ()))
        if missing:
            raise InputError(f"{where}: columns missing: {', '.join(missing)}; found {reader.fieldnames or 'none'}")
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{where}, line {reader.line_num}: the row has not the {len(reader.fieldnames or ())} columns of "
                    "the header; the file may be cut short, fetch it again"
                )
            yield row
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{where} is not a complete UTF-8 CSV ({error}); fetch it again") from error


def read_files(path: Path) -> dict[str, bytes]:
    """Return the ESCO CSVs that a folder or zip holds: file name (without folders) to content.

    Raises
    ------
    ResourceError
        If nothing is at `path`, or it is neither a folder nor a zip.
    InputError
        If the zip is damaged or holds no file `skills_*.csv`.
    """

    def wanted(name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in (_SKILLS, _HIERARCHY, _BROADER, _OCCUPATIONS))

    if not path.exists():
        raise ResourceError(f"nothing at {path}; give a folder or zip of ESCO CSVs, as esco.ec.europa.eu offers them")
    if path.is_dir():
        files = {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.is_file() and wanted(p.name)}
    else:
        try:
            with zipfile.ZipFile(path) as archive:
                names = sorted(name for name in archive.namelist() if wanted(name.rsplit("/", 1)[-1]))
                files = {name.rsplit("/", 1)[-1]: archive.read(name) for name in names}
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(f"{path} is not a complete zip ({error}); fetch it again") from error
    skills = [name for name in files if _SKILLS.fullmatch(name)]
    if len(skills) != 1:
        raise InputError(f"{path}: expected one file skills_<language>.csv, found {', '.join(skills) or 'none'}")
    return files


def _codes(rows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Map the URI of each skill group to its code, from the rows of skillsHierarchy."""
    codes = {}
    for row in rows:
        for level in range(4):
            uri, code = row[f"Level {level} URI"].strip(), row[f"Level {level} code"].strip()
            if uri and code:
                codes[uri] = code
    return codes


def _group_code(uri: str, codes: Mapping[str, str]) -> str:
    """Return a group's code; fields of education are numbers there and get the "K" of the knowledge branch."""
    code = codes.get(uri) or uri.rsplit("/", 1)[-1]
    return f"K{code}" if code.isdigit() else code


def _groups(broader: Mapping[str, list[tuple[str, bool]]], uri: str, codes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the codes of the groups nearest above a skill, through broader skills where it has none of its own."""
    seen, level = {uri}, [uri]
    while level:
        parents = [parent for child in level for parent in broader.get(child, ())]
        found = sorted({_group_code(parent, codes) for parent, is_group in parents if is_group})
        if found:
            return tuple(found)
        level = [parent for parent, _ in parents if parent not in seen]
        seen.update(level)
    return ()


def official_taxonomy(path: Path) -> Taxonomy:
    """Build a taxonomy from a folder or zip of official ESCO CSVs.

    `skills_<language>.csv` is needed (conceptUri, preferredLabel, altLabels one per line, description). Group codes
    come from `broaderRelationsSkillPillar_*.csv` where it is there, spelled as in `skillsHierarchy_*.csv` where that is
    there too, else as the last part of the group's URI. Links are the broader skills of that file, and the occupations
    of `occupationSkillRelations_*.csv` where it is there.

    Raises
    ------
    ResourceError, InputError
        See `read_files` and `read_rows`.
    """
    files = read_files(path)

    def rows(pattern: re.Pattern[str], columns: Iterable[str]) -> Iterator[dict[str, str]]:
        for name, data in files.items():
            if pattern.fullmatch(name):
                yield from read_rows(data, f"{path}: {name}", columns)

    levels = [f"Level {level} {kind}" for level in range(4) for kind in ("URI", "code")]
    codes = _codes(rows(_HIERARCHY, levels))
    broader: dict[str, list[tuple[str, bool]]] = {}
    for row in rows(_BROADER, ("conceptUri", "broaderType", "broaderUri")):
        is_group = row["broaderType"].strip() == "SkillGroup"
        broader.setdefault(row["conceptUri"].strip(), []).append((row["broaderUri"].strip(), is_group))
    links: dict[str, dict[tuple[str, str], None]] = {}
    for child, parents in broader.items():
        links[child] = {("broader", parent): None for parent, is_group in parents if not is_group}
    names: dict[str, str] = {}  # one string per occupation, which hundreds of thousands of rows repeat
    for row in rows(_OCCUPATIONS, ("occupationUri", "relationType", "skillUri")):
        occupation, kind = row["occupationUri"].strip(), row["relationType"].strip().lower()
        if kind in {"essential", "optional"}:
            link = (kind, names.setdefault(occupation, occupation))
            links.setdefault(row["skillUri"].strip(), {})[link] = None
    skills = [
        Skill(
            uri=row["conceptUri"].strip(),
            label=single_spaced(row["preferredLabel"]),
            alt_labels=tuple(filter(None, map(single_spaced, row["altLabels"].splitlines()))),
            description=single_spaced(row["description"]),
            groups=_groups(broader, row["conceptUri"].strip(), codes),
            links=tuple(links.get(row["conceptUri"].strip(), ())),
        )
        for row in rows(_SKILLS, ("conceptUri", "preferredLabel", "altLabels", "description"))
        if row["preferredLabel"].strip()  # some languages leave a few skills without a label
    ]
    language = next(match[1].lower() for name in files if (match := _SKILLS.fullmatch(name)))
    version = _VERSION.search(path.name)
    return Taxonomy.from_skills(
        skills, version=version[1] if version else "", language=language, source=f"official CSVs {path.name}"
    )
