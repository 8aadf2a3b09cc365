"""Write and check a challenge file: `python -m ranker.submit`.

The schema is {model: {task: {"en": {num_queries, num_targets, scores: {query id: {short skill id: score}}}}}}, one
JSON file flat at the root of a zip. Each finished chunk of queries is kept beside the output until the file is whole,
so a run that was interrupted continues where it was and writes the same bytes.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from tqdm.auto import tqdm

from ranker.core.artifacts import atomic_path, digest, sha256_file, write_json
from ranker.core.cli import emit, note, parser, positive, run, say
from ranker.core.config import SystemConfig, load_config
from ranker.core.device import DEVICES, share, use_device
from ranker.core.errors import ArgumentError, InputError, ResourceError
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import OFFICIAL_TASKS, SPLITS, GradedTask, TaskSet, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.types import Float32, Int32
from ranker.core.views import uses_revision

if TYPE_CHECKING:
    from ranker.pipeline import SkillRanker

URI_PREFIX = "http://data.europa.eu/esco/skill/"
LANGUAGE = "en"
MEMBER = "submission.json"
CHUNK = 16  # queries between two savepoints
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can hold; a real time would change the bytes of every run


class Orders(Protocol):
    """What a challenge file needs of a ranker."""

    config: SystemConfig
    taxonomy: Taxonomy

    def order(self, texts: Sequence[object], top_k: int | None = None) -> tuple[Int32, Float32]:
        """Return taxonomy rows, best first, padded with -1, and their scores."""


class Fault(NamedTuple):
    """Something wrong in a challenge file: its place as a JSON pointer, and what it is."""

    place: str
    fault: str


# --- writing ---------------------------------------------------------------------------------------------------------


def short_id(uri: str) -> str:
    """Return the id of a skill as the challenge writes it: the URI without ESCO's prefix."""
    return uri.removeprefix(URI_PREFIX)


def score_row(uris: Sequence[str], rows: Int32, scores: Float32) -> dict[str, float]:
    """Return {short id: score} of one query, best first, scores strictly descending.

    A scorer sorts by score alone, with a tie rule of its own. Equal scores are therefore moved apart by the least step
    that float32 knows, in our order.

    Raises
    ------
    InputError
        If a score is not finite.
    """
    kept: dict[str, float] = {}
    last = np.float32(np.inf)
    for row, score in zip(rows, scores.astype(np.float32), strict=True):
        if row < 0:
            break
        if not np.isfinite(score):
            raise InputError(f"skill {uris[row]} has the score {score}, which is not finite; nothing was written")
        last = min(score, np.nextafter(last, np.float32(-np.inf))) if kept else score
        kept[short_id(uris[row])] = float(str(last))  # the shortest decimal that reads back as this float32
    return kept


def run_key(config: SystemConfig, taxonomy: Taxonomy, task: GradedTask, top_k: int) -> str:
    """Return the name of a task's savepoints: everything that a score depends on, the trained bag's files included."""
    fusion = asdict(config.fusion)
    if config.fusion.checkpoint:
        from ranker.pipeline import CHECKPOINT_DIR

        folder = Path(config.fusion.checkpoint)
        folder = folder if folder.is_dir() else CHECKPOINT_DIR / folder
        files = sorted(path for path in folder.rglob("*") if path.is_file())  # the lanes' own lie in folders of it
        fusion["files"] = {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}
    queries = list(zip(task.query_ids, task.queries, strict=True))
    data = [taxonomy.fingerprint, uses_revision(), task.name, task.split, queries, top_k]
    return digest([config.digest, fusion, *data])[:16]


def partial_folder(out: Path) -> Path:
    """Return the folder beside the output that holds the savepoints."""
    return out.with_name(out.name + ".partial")


def check_writable(out: Path) -> None:
    """Raise where the output cannot be written, before anything slow begins.

    Raises
    ------
    ArgumentError
        If the output is a folder or no zip.
    ResourceError
        If it lies in a folder that cannot be made or written to.
    """
    if out.suffix != ".zip":
        raise ArgumentError(f"--out {out}: the challenge takes a .zip")
    if out.is_dir():
        raise ArgumentError(f"--out {out} is a folder; give the path of a file")
    probe = partial_folder(out) / "writable"
    with atomic_path(probe) as path:
        path.write_bytes(b"")
    probe.unlink(missing_ok=True)  # another process may have been quicker
    if out.exists():
        try:
            out.open("ab").close()
        except OSError as error:
            raise ResourceError(f"cannot write {out}: {error.strerror or error}; choose another place") from error


def score_task(ranker: Orders, task: GradedTask, top_k: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return {query id: {short id: score}}, reading the chunks that `folder` already holds."""
    scores: dict[str, dict[str, float]] = {}
    with tqdm(total=len(task), desc=task.name, unit="query") as bar:
        for start in range(0, len(task), CHUNK):
            ids = task.query_ids[start : start + CHUNK]
            file = folder / f"{start:06d}.json"
            chunk = _savepoint(file, ids)
            if chunk is None:
                rows, values = ranker.order(task.queries[start : start + CHUNK], top_k)
                chunk = {
                    query: score_row(ranker.taxonomy.uri, *found)
                    for query, *found in zip(ids, rows, values, strict=True)
                }
                write_json(file, chunk)
            scores.update(chunk)
            bar.update(len(ids))
    return scores


def _savepoint(file: Path, ids: Sequence[str]) -> dict[str, dict[str, float]] | None:
    """Return a finished chunk, None where it is not there or not whole."""
    try:
        chunk = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return chunk if isinstance(chunk, dict) and list(chunk) == list(ids) else None


def build(ranker: Orders, tasks: Sequence[GradedTask], *, top_k: int, out: Path) -> dict[str, Any]:
    """Score the tasks and return the challenge object, keeping savepoints beside `out`."""
    by_task = {}
    for task in tasks:
        folder = partial_folder(out) / run_key(ranker.config, ranker.taxonomy, task, top_k)
        by_task[task.name] = {
            LANGUAGE: {
                "num_queries": len(task),
                "num_targets": len(ranker.taxonomy),
                "scores": score_task(ranker, task, top_k, folder),
            }
        }
    return {ranker.config.name: by_task}


def write_zip(out: Path, submission: Mapping[str, Any]) -> None:
    """Write the challenge object as a zip whose bytes depend on its content alone."""
    data = json.dumps(submission, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    member = zipfile.ZipInfo(MEMBER, date_time=_ZIP_TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.create_system = 3  # Unix, on every platform
    member.external_attr = 0o644 << 16
    with atomic_path(out) as path, zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data, compresslevel=9)


def submit(ranker: Orders, tasks: Sequence[GradedTask], *, top_k: int, out: Path) -> dict[str, Any]:
    """Score the tasks, write the file, and clear the savepoints.

    Parameters
    ----------
    ranker : Orders
        A loaded system.
    tasks : sequence of GradedTask
        Task names must differ.
    top_k : int
        Skills per query.
    out : Path
        The zip.

    Returns
    -------
    dict
        The challenge object that was written.
    """
    submission = build(ranker, tasks, top_k=top_k, out=out)
    write_zip(out, submission)
    shutil.rmtree(partial_folder(out))
    return submission


# --- checking --------------------------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys stood twice."""

    repeated: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        found.repeated = tuple(dict.fromkeys(k for k, _ in pairs if k in seen or seen.add(k)))  # type: ignore[func-returns-value]
    return found


def _pointer(*parts: str) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def read_submission(file: Path) -> Any:
    """Return the JSON of a challenge file, a zip or the JSON alone.

    Raises
    ------
    ResourceError
        If there is no such file.
    InputError
        If it is a folder, no zip, holds no JSON flat at its root or more than that, or the JSON cannot be read.
    """
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the zip")
    try:
        data = file.read_bytes()
        if data[:2] == b"PK":
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                flat = [name for name in names if name.endswith(".json") and "/" not in name]
                if len(flat) != 1 or len(names) != 1:
                    raise InputError(
                        f"{file} must hold one JSON file, flat at its root, and nothing else; found {names[:5]}"
                    )
                data = archive.read(flat[0])
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except FileNotFoundError as error:
        raise ResourceError(f"no file {file}") from error
    except OSError as error:
        raise ResourceError(f"cannot read {file}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ValueError, RecursionError) as error:
        raise InputError(f"{file} is neither a readable zip nor JSON in UTF-8: {error}") from error


def faults(submission: Any) -> Iterator[Fault]:
    """Yield everything in a challenge object that the schema does not allow."""
    if not isinstance(submission, dict):
        yield Fault("", f"expected an object with one model, found {_kind(submission)}")
        return
    yield from _repeated(submission)
    if len(submission) != 1:
        yield Fault("", f"expected one model, found {len(submission)}")
    for model, tasks in submission.items():
        if not model.strip():
            yield Fault(_pointer(model), "the model has no name")
        yield from _mapping_faults(tasks, (model,), "tasks")
        for task, languages in _items(tasks):
            yield from _mapping_faults(languages, (model, task), "languages")
            for language, payload in _items(languages):
                if language != LANGUAGE:
                    yield Fault(_pointer(model, task, language), f"unknown language; allowed: {LANGUAGE}")
                yield from _payload_faults(payload, (model, task, language))


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a number")


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _repeated(value: Any, *at: str) -> Iterator[Fault]:
    for key in getattr(value, "repeated", ()):
        yield Fault(_pointer(*at, key), "stands twice")


def _mapping_faults(value: Any, at: tuple[str, ...], what: str) -> Iterator[Fault]:
    """Yield what is wrong with an object as such: not one, empty, or with a key twice."""
    if not isinstance(value, dict):
        yield Fault(_pointer(*at), f"expected an object of {what}, found {_kind(value)}")
    elif not value:
        yield Fault(_pointer(*at), f"holds no {what}")
    yield from _repeated(value, *at)


def _payload_faults(payload: Any, at: tuple[str, ...]) -> Iterator[Fault]:
    """Yield what is wrong with the counts and scores of one task and language."""
    yield from _mapping_faults(payload, at, "num_queries, num_targets and scores")
    if not isinstance(payload, dict):
        return
    wanted = ("num_queries", "num_targets", "scores")
    for key in wanted:
        if key not in payload:
            yield Fault(_pointer(*at, key), "is missing")
    for key in payload:
        if key not in wanted:
            yield Fault(_pointer(*at, key), f"unknown key; allowed: {', '.join(wanted)}")
    counts = {}
    for key in wanted[:2]:
        value = payload.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield Fault(_pointer(*at, key), f"expected a whole number of at least 1, found {value!r}")
        elif key in payload:
            counts[key] = value
    scores = payload.get("scores", {})
    if "scores" in payload:
        yield from _mapping_faults(scores, (*at, "scores"), "queries")
    if isinstance(scores, dict) and counts.get("num_queries", len(scores)) != len(scores):
        yield Fault(_pointer(*at, "num_queries"), f"states {counts['num_queries']}, scores hold {len(scores)} queries")
    for query, row in _items(scores):
        yield from _row_faults(row, (*at, "scores", query), counts.get("num_targets"))


def _row_faults(row: Any, at: tuple[str, ...], targets: int | None) -> Iterator[Fault]:
    """Yield what is wrong with one query's scores; an empty object is a query without an answer, and allowed."""
    if not isinstance(row, dict):
        yield Fault(_pointer(*at), f"expected an object of scores, found {_kind(row)}")
        return
    yield from _repeated(row, *at)
    if targets is not None and len(row) > targets:
        yield Fault(_pointer(*at), f"holds {len(row)} skills, num_targets states {targets}")
    for skill, score in row.items():
        place = _pointer(*at, skill)
        if skill.startswith(URI_PREFIX):
            yield Fault(place, f"whole URI; write {short_id(skill)!r}")
        elif not _UUID.fullmatch(skill):
            yield Fault(place, "not the short id of an ESCO skill (a lower-case UUID)")
        if isinstance(score, bool) or not isinstance(score, int | float):
            yield Fault(place, f"expected a number, found {_kind(score)}")
        elif not math.isfinite(score):
            yield Fault(place, f"score {score} is not finite")


def validate(file: Path) -> tuple[list[Fault], list[str]]:
    """Check a challenge file.

    Returns
    -------
    faults : list of Fault
        In the file's order; empty where it is valid.
    notes : list of str
        What is allowed but worth knowing: tasks that are not official, queries without an answer.

    Raises
    ------
    ResourceError, InputError
        See `read_submission`.
    """
    submission = read_submission(file)
    found = list(faults(submission))
    notes = []
    official = {task.name for task in OFFICIAL_TASKS}
    for _, tasks in _items(submission):
        for task, languages in _items(tasks):
            if task not in official:
                notes.append(f"{task!r} is none of the official tasks ({', '.join(sorted(official))})")
            rows = [row for _, payload in _items(languages) for _, row in _items(payload.get("scores"))] if all(
                isinstance(payload, dict) for _, payload in _items(languages)
            ) else []
            if empty := sum(row == {} for row in rows):
                notes.append(f"{task!r}: {empty} of {len(rows)} queries have no answer")
    return found, notes


# --- the command -----------------------------------------------------------------------------------------------------


def _announce(tasks: TaskSet, *, strict: bool) -> None:
    """Say which tasks are there, which are not and why, and which rows were left out."""
    for name, reason in tasks.failed.items():
        note(f"task {name} is left out: {reason}")
    if tasks.failed and strict:
        raise ResourceError(f"--strict: {len(tasks.failed)} task(s) cannot be loaded: {', '.join(tasks.failed)}")
    for task in tasks:
        note(f"task {task.name} ({task.split}): {len(task)} queries; {task.source}")
        for problem in task.problems[:10]:
            note(f"  {problem}")
        if len(task.problems) > 10:
            note(f"  and {len(task.problems) - 10} more")


def fill(ranker: SkillRanker, queries: Sequence[str]) -> bool:
    """Score stage by stage, and tell whether this process is the one that writes the file.

    Of several processes (`accelerate launch`), each scores its share of the queries; the first then takes what others
    have not finished, so that it depends on none of them, and goes on to the file.
    """
    number, processes = share()
    ranker.fill(queries[number::processes])
    if number == 0 and processes > 1:
        ranker.fill(queries)
    return number == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.submit",
        "Rank the queries of graded tasks and write the challenge file; or check one.",
        "python -m ranker.submit --config embedded --data esco --out build/submission.zip\n"
        "  python -m ranker.submit --config winner-2026 --stage-wise --dry-run\n"
        "  python -m ranker.submit --validate build/submission.zip",
    )
    add = arguments.add_argument
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--data", default="hub", help="'hub' (the official tasks), 'esco' (made from the taxonomy) or a BEIR folder")
    add("--tasks", nargs="+", metavar="TASK", help="which tasks (default: all that have the split)")
    add("--split", default="validation", choices=SPLITS)
    add("--top-k", type=positive, default=100, help="skills per query (default: 100)")
    add("--out", type=Path, default=Path("build/submission.zip"))
    add("--strict", action="store_true", help="stop where a task cannot be loaded")
    add("--stage-wise", action="store_true", help="keep each stage's scores on disk, one model in memory at a time")
    add("--dry-run", action="store_true", help="show stages, parameters, memory, pairs and times, and score nothing")
    add("--device", default="auto", choices=DEVICES, help="where models run (default: the GPU where there is one)")
    add("--validate", type=Path, metavar="FILE", help="check this file and do nothing else")
    add("--json", action="store_true", help="end with one JSON object")
    given = arguments.parse_args(argv)
    if given.validate:
        return _validate_command(given.validate, as_json=given.json)

    if share()[1] > 1 and not given.stage_wise:
        raise ArgumentError("several processes share the scores that are kept on disk: add --stage-wise")
    config = load_config(given.config)
    use_device(given.device)
    check_writable(given.out)
    taxonomy = load_taxonomy(config.taxonomy)
    tasks = load_tasks(given.data, given.split, tasks=given.tasks, taxonomy=taxonomy, need_qrels=False)
    _announce(tasks, strict=given.strict)
    queries = [query for task in tasks for query in task.queries]
    from ranker.plan import announce  # like the pipeline, seconds of imports, which a wrong argument must not cost

    plan = announce(config, taxonomy, queries, stage_wise=given.stage_wise, dry_run=given.dry_run)
    if given.dry_run:
        if given.json:
            emit(plan)
        return 0
    from ranker.pipeline import SkillRanker

    ranker = SkillRanker(config, taxonomy, stage_wise=given.stage_wise)
    if given.stage_wise and not fill(ranker, queries):
        return 0
    submission = submit(ranker, tasks, top_k=given.top_k, out=given.out)
    counts = {name: languages[LANGUAGE]["num_queries"] for name, languages in submission[config.name].items()}
    say(f"wrote {given.out}: {len(counts)} task(s), {sum(counts.values())} queries, {given.out.stat().st_size} bytes")
    if given.json:
        emit({"file": str(given.out), "sha256": sha256_file(given.out), "tasks": counts, "failed": dict(tasks.failed)})
    return 0


def _validate_command(file: Path, *, as_json: bool) -> int:
    found, notes = validate(file)
    for line in notes:
        note(f"note: {line}")
    for place, fault in found:
        say(f"{place or '/'}: {fault}")
    say(f"{file}: {len(found)} fault(s)" if found else f"{file} is valid")
    if as_json:
        emit({"file": str(file), "valid": not found, "faults": [fault._asdict() for fault in found], "notes": notes})
    return InputError.exit_code if found else 0


if __name__ == "__main__":
    raise SystemExit(run(main))
