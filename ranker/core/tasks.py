"""Graded tasks: queries with graded relevance, from a BEIR folder, the model hub or ESCO itself.

A folder is one task (`queries.jsonl` in it) or holds one folder per task. Two layouts of the qrels are read:
`qrels/<split>.tsv`, where the split's queries are those it names, and a single `qrels.tsv`, which covers all queries
and any split. Rows that cannot be used are left out and named in `GradedTask.problems`, with file and line.
"""

from __future__ import annotations

import csv
import json
import math
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, overload

from ranker.core.errors import ArgumentError, InputError, RankerError, ResourceError, missing_extra
from ranker.core.metrics import GRADES
from ranker.core.taxonomy import Taxonomy

SPLITS = ("validation", "test")
QRELS_COLUMNS = ("query-id", "corpus-id", "score")


class OfficialTask(NamedTuple):
    """One of the published graded tasks: short key, its name and class in workrb, and the splits it has."""

    key: str
    name: str
    workrb_class: str
    splits: tuple[str, ...]


OFFICIAL_TASKS = (
    OfficialTask("house", "Skill Extraction House Graded", "HouseGradedSkillExtractRanking", SPLITS),
    OfficialTask("tech", "Skill Extraction Tech Graded", "TechGradedSkillExtractRanking", SPLITS),
    OfficialTask("skillskape", "Skill Extraction SkillSkape Graded", "SkillSkapeGradedSkillExtractRanking", SPLITS),
    OfficialTask("techwolf", "Skill Extraction TechWolf Graded", "TechWolfGradedSkillExtractRanking", ("test",)),
    OfficialTask("skillnorm", "Skill Normalization ESCO Graded", "ESCOGradedSkillNormRanking", SPLITS),
)


@dataclass(frozen=True)
class GradedTask:
    """Queries and what is known of their answers.

    Attributes
    ----------
    name : str
        Folder name, or the official name.
    split : str
        "validation" or "test".
    query_ids, queries : tuple of str
        In the source's order; ids are unique.
    qrels : mapping of str to mapping of str to int
        Grade 0 to 4 by query id and skill URI. A skill without an entry was not judged. Every query id is a key.
    source : str
        Where it came from.
    problems : tuple of str
        One line per row that was left out or looks wrong, with its place.
    """

    name: str
    split: str
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    qrels: Mapping[str, Mapping[str, int]]
    source: str = ""
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.query_ids)


@dataclass(frozen=True)
class TaskSet(Sequence[GradedTask]):
    """The tasks that were loaded, in order, and the reason for each that was not."""

    tasks: tuple[GradedTask, ...]
    failed: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, at: int) -> GradedTask: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[GradedTask, ...]: ...
    def __getitem__(self, at: int | slice) -> GradedTask | tuple[GradedTask, ...]:
        """Return one task, or several."""
        return self.tasks[at]


class _Row(NamedTuple):
    """A row of queries or qrels as it was read, with its place for messages."""

    place: str
    values: Mapping[str, Any]


def load_tasks(
    data: str | Path,
    split: str = "validation",
    *,
    tasks: Sequence[str] | None = None,
    taxonomy: Taxonomy | None = None,
    need_qrels: bool = True,
) -> TaskSet:
    """Load graded tasks.

    Parameters
    ----------
    data : str or Path
        A folder in BEIR layout, "hub" for the official tasks, or "esco" for skill normalisation made from the taxonomy.
        A folder of one of these names is reached as "./hub".
    split : str
        "validation" or "test".
    tasks : sequence of str, optional
        Which tasks: folder names, or official names or their short keys. Default all that have the split.
    taxonomy : Taxonomy, optional
        Resolves short skill ids and names judged skills it does not hold. Such a skill stays in the qrels: it cannot be
        retrieved, and the ideal ranking must not become easier for that.
    need_qrels : bool
        False accepts a task without qrels, for ranking queries that are not to be scored.

    Returns
    -------
    TaskSet
        A sequence of `GradedTask`; `failed` has the reason for each task that could not be loaded.

    Raises
    ------
    ArgumentError
        An unknown split or task, or "esco" without a taxonomy.
    ResourceError, InputError, PrerequisiteError
        If no task could be loaded; the message names each with its reason.
    """
    if split not in SPLITS:
        raise ArgumentError(f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
    resolve = _resolver(taxonomy)
    if data == "hub":
        loaders = _hub_loaders(split, tasks, resolve, need_qrels)
        with _hub_mode():
            return _collect(loaders, "the hub")
    if data == "esco":
        return _esco(split, tasks, taxonomy)
    return _collect(_folder_loaders(Path(data), split, tasks, resolve, need_qrels), str(data))


def _collect(loaders: Mapping[str, Callable[[], GradedTask]], source: str) -> TaskSet:
    """Load each task; one that fails does not cost the others, but if all fail that is an error."""
    loaded: list[GradedTask] = []
    failed: dict[str, RankerError] = {}
    for name, load in loaders.items():
        try:
            loaded.append(load())
        except RankerError as error:
            failed[name] = error
    if not loaded:
        kind = type(next(iter(failed.values())))
        reasons = "\n".join(f"  {name}: {error}" for name, error in failed.items())
        raise kind(f"no task could be loaded from {source}:\n{reasons}")
    return TaskSet(tuple(loaded), {name: str(error) for name, error in failed.items()})


# --- rows to tasks -------------------------------------------------------------------------------------------------


class _Skills(NamedTuple):
    """How a skill id is resolved, and whether it is known."""

    full: Callable[[str], str]
    known: Callable[[str], bool]


def _resolver(taxonomy: Taxonomy | None) -> _Skills:
    """Return how to turn a skill id into a URI: as it stands, or by the last part of a URI where that is unique."""
    if taxonomy is None:
        return _Skills(lambda uri: uri, lambda _: True)
    index = taxonomy.index
    tails = Counter(uri.rsplit("/", 1)[-1] for uri in taxonomy.uri)
    short = {tail: uri for uri in taxonomy.uri if tails[tail := uri.rsplit("/", 1)[-1]] == 1}
    return _Skills(lambda uri: uri if uri in index else short.get(uri, uri), index.__contains__)


def _identifier(value: object) -> str:
    """Return an id as text; "" where it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).strip()


def _grade(value: object) -> int | None:
    """Return a grade of 0 to 4 given as a number or text, None where it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and number in GRADES else None


def _read_queries(rows: Iterator[_Row], problems: list[str]) -> dict[str, str]:
    """Return the text of each query id, leaving out rows that are no query."""
    texts: dict[str, str] = {}
    for place, row in rows:
        query = _identifier(row.get("_id"))
        text = row.get("text")
        if not query:
            problems.append(f"{place}: no query id under '_id'")
        elif not isinstance(text, str):
            problems.append(f"{place}: query {query!r} has no text under 'text' but {json.dumps(text, default=str)}")
        elif query in texts:
            problems.append(f"{place}: query id {query!r} stands twice; the first is kept")
        else:
            texts[query] = text
    return texts


def _read_qrels(
    rows: Iterator[_Row], texts: Mapping[str, str], skills: _Skills, problems: list[str]
) -> dict[str, dict[str, int]]:
    """Return the grades by query id and URI, leaving out rows that are no judgement."""
    qrels: dict[str, dict[str, int]] = {}
    strangers: dict[str, list[str]] = {}  # places, by query id that is not among the queries
    lost: dict[str, list[str]] = {}  # places, by URI that is not in the taxonomy
    for place, row in rows:
        query, uri = _identifier(row.get("query-id")), _identifier(row.get("corpus-id"))
        grade = _grade(row.get("score"))
        if not query or not uri:
            problems.append(f"{place}: query-id or corpus-id is missing")
        elif grade is None:
            problems.append(f"{place}: score {row.get('score')!r} is not a grade; allowed: 0, 1, 2, 3, 4")
        elif query not in texts:
            strangers.setdefault(query, []).append(place)
        else:
            uri = skills.full(uri)
            judged = qrels.setdefault(query, {})
            if judged.setdefault(uri, grade) != grade:
                problems.append(f"{place}: {query!r} and {uri} are graded {judged[uri]} and {grade}; the first is kept")
            if not skills.known(uri):
                lost.setdefault(uri, []).append(place)
    for query, places in strangers.items():
        problems.append(f"{places[0]}: query {query!r} is not among the queries ({len(places)} rows left out)")
    for uri, places in lost.items():
        problems.append(f"{places[0]}: skill {uri} is not in the taxonomy; it can only count as missed")
    return qrels


def _build_task(
    name: str,
    split: str,
    source: str,
    *,
    queries: Iterator[_Row],
    qrels: Iterator[_Row] | None,
    skills: _Skills,
    found: list[str],
    split_by_qrels: bool = False,
) -> GradedTask:
    """Make a task from rows; `split_by_qrels` keeps only the queries that the qrels name.

    `found` gathers the problems; whoever yields the rows may add to it.
    """
    texts = _read_queries(queries, found)
    if not texts:
        raise InputError("\n    ".join([f"{source} holds no usable query", *found[:5]]))
    grades = {} if qrels is None else _read_qrels(qrels, texts, skills, found)
    if qrels is not None and not grades:
        raise InputError("\n    ".join([f"{source} holds no usable judgement", *found[:5]]))
    if split_by_qrels:
        texts = {query: text for query, text in texts.items() if query in grades}
    elif qrels is not None:
        found += [f"{source}: query {q!r} has no judgement; it is not scored" for q in texts if q not in grades]
    return GradedTask(
        name=name,
        split=split,
        query_ids=tuple(texts),
        queries=tuple(texts.values()),
        qrels={query: grades.get(query, {}) for query in texts},
        source=source,
        problems=tuple(found),
    )


# --- BEIR folders --------------------------------------------------------------------------------------------------


def _folder_loaders(
    folder: Path, split: str, wanted: Sequence[str] | None, skills: _Skills, need_qrels: bool
) -> dict[str, Callable[[], GradedTask]]:
    """Return a loader for each task of a folder."""
    if not folder.exists():
        raise ResourceError(f"no data at {folder}; give a folder in BEIR layout, 'hub' or 'esco'")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; give the folder that holds queries.jsonl, or one with a folder per task")
    if (folder / "queries.jsonl").exists():
        folders = {folder.resolve().name: folder}
    else:
        folders = {path.name: path for path in sorted(folder.iterdir()) if (path / "queries.jsonl").exists()}
    if not folders:
        raise InputError(f"{folder} holds neither queries.jsonl nor a folder with one; BEIR layout is needed")
    unknown = [name for name in wanted or () if name not in folders]
    if unknown:
        raise ArgumentError(f"no task {', '.join(unknown)} in {folder}; there are: {', '.join(folders)}")

    def loader(path: Path, name: str) -> Callable[[], GradedTask]:
        return lambda: _load_folder(path, name, split, skills, need_qrels)

    return {name: loader(folders[name], name) for name in dict.fromkeys(wanted or folders)}


def _load_folder(folder: Path, name: str, split: str, skills: _Skills, need_qrels: bool) -> GradedTask:
    """Load one task folder."""
    by_split = folder / "qrels" / f"{split}.tsv"
    flat = folder / "qrels.tsv"
    notes: list[str] = []
    split_by_qrels = (folder / "qrels").is_dir()
    if split_by_qrels and not by_split.exists():
        there = ", ".join(sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))) or "none"
        raise ResourceError(f"{folder / 'qrels'} has no {split}.tsv; splits there: {there}")
    path = by_split if split_by_qrels else flat
    rows = None
    if need_qrels or path.exists():
        rows = _tsv_rows(path)
        if not split_by_qrels and split != "validation":
            notes.append(f"{flat}: one file for every split, so {split!r} chose nothing")
    return _build_task(
        name,
        split,
        str(folder),
        queries=_jsonl_rows(folder / "queries.jsonl", notes),
        qrels=rows,
        skills=skills,
        found=notes,
        split_by_qrels=split_by_qrels,
    )


def _text_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, split at line feeds only."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; a file is needed there")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ResourceError(f"no file {path}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from error
    return text.split("\n")


def _jsonl_rows(path: Path, problems: list[str]) -> Iterator[_Row]:
    """Yield the JSON objects of a file, a line each; other lines become problems."""
    for number, line in enumerate(_text_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            problems.append(f"{place}: not JSON ({error})")
            continue
        if isinstance(value, dict):
            yield _Row(place, value)
        else:
            problems.append(f"{place}: not a JSON object")


def _tsv_rows(path: Path) -> Iterator[_Row]:
    """Return the rows of a qrels file with a header; checks the columns at once."""
    lines = [line.rstrip("\r") for line in _text_lines(path)]
    header = lines[0].split("\t")
    missing = [column for column in QRELS_COLUMNS if column not in header]
    if missing:
        raise InputError(f"{path}, line 1: column missing: {', '.join(missing)}; found {lines[0][:200]!r}")
    cells = csv.reader(lines[1:], delimiter="\t", quoting=csv.QUOTE_NONE)
    return (
        _Row(f"{path}, line {number}", dict(zip(header, row, strict=False)))
        for number, row in zip(count(2), cells, strict=False)
        if row
    )


# --- the official tasks, through workrb ------------------------------------------------------------------------------


def _hub_loaders(
    split: str, wanted: Sequence[str] | None, skills: _Skills, need_qrels: bool
) -> dict[str, Callable[[], GradedTask]]:
    """Return a loader for each official task that is wanted, by its official name."""
    chosen: list[OfficialTask] = []
    for name in dict.fromkeys(wanted or [task.key for task in OFFICIAL_TASKS if split in task.splits]):
        match = [task for task in OFFICIAL_TASKS if name in {task.key, task.name, task.workrb_class}]
        if not match:
            allowed = ", ".join(f"{task.key} ({task.name})" for task in OFFICIAL_TASKS)
            raise ArgumentError(f"unknown official task {name!r}; allowed: {allowed}")
        chosen += match

    def loader(task: OfficialTask) -> Callable[[], GradedTask]:
        return lambda: _load_official(task, split, skills, need_qrels)

    return {task.name: loader(task) for task in chosen}


def _hub_reachable(endpoint: str) -> bool:
    """Whether the hub answers at all within a few seconds; proxies of the environment are used."""
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=5):  # noqa: S310
            return True
    except urllib.error.HTTPError:
        return True  # it answered
    except (OSError, ValueError):
        return False


@contextmanager
def _hub_mode() -> Iterator[None]:
    """Run a block with the hub's client offline where the hub does not answer.

    The cache is then used as it is, and what is not there fails at once instead of after half a minute of retries
    for each task.
    """
    try:
        import datasets
        import huggingface_hub
        from huggingface_hub.utils._http import reset_sessions
    except ImportError as error:
        raise missing_extra(error.name or "datasets", "train") from error
    holders: tuple[Any, ...] = (datasets.config, huggingface_hub.constants)
    before = [holder.HF_HUB_OFFLINE for holder in holders]

    def switch(values: Sequence[bool]) -> None:
        for holder, value in zip(holders, values, strict=True):
            holder.HF_HUB_OFFLINE = value
        reset_sessions()  # the client keeps sessions, each as the switch stood when it was made

    if any(before) or _hub_reachable(huggingface_hub.constants.ENDPOINT):
        yield
        return
    switch([True, True])
    try:
        yield
    finally:
        switch(before)


def _load_official(task: OfficialTask, split: str, skills: _Skills, need_qrels: bool) -> GradedTask:
    """Load one official task: workrb's class for what it is and where it lies, its data set for the ids.

    workrb's own task object keeps texts and positions but neither query ids nor URIs, which a challenge file needs.
    """
    if split not in task.splits:
        raise ArgumentError(f"has no {split} split; it has: {', '.join(task.splits)}")
    try:
        import datasets
        import workrb.tasks
    except ImportError as error:
        raise missing_extra(error.name or "workrb", "train") from error
    try:
        official = getattr(workrb.tasks, task.workrb_class)(
            languages=["en"], split="val" if split == "validation" else split
        )
        hub_split = official.split_to_hf_split[official.split]
        queries, qrels = (
            datasets.load_dataset(official.hf_name, part, split=hub_split).to_list() for part in ("queries", "qrels")
        )
    except Exception as error:  # hub client, HTTP and Arrow errors share no base class
        reason = " ".join(str(error).split())[:300] or "no reason given"
        raise ResourceError(
            f"neither the hub nor its cache gave it ({type(error).__name__}: {reason}); "
            "check the connection, or give --data a folder in BEIR layout"
        ) from error
    if official.name != task.name:
        raise ResourceError(f"workrb calls this task {official.name!r}; this version knows it as {task.name!r}")

    def rows(part: str, values: Sequence[Mapping[str, Any]]) -> Iterator[_Row]:
        return (_Row(f"{official.hf_name} {part}, row {i}", value) for i, value in enumerate(values))

    return _build_task(
        task.name,
        split,
        f"hub:{official.hf_name}",
        queries=rows("queries", queries),
        qrels=rows("qrels", qrels) if need_qrels or qrels else None,
        skills=skills,
        found=[],
    )


# --- skill normalisation from ESCO itself ----------------------------------------------------------------------------


def _esco(split: str, wanted: Sequence[str] | None, taxonomy: Taxonomy | None) -> TaskSet:
    """Build skill normalisation from the taxonomy's own alt labels."""
    if taxonomy is None:
        raise ArgumentError("data 'esco' is made from a taxonomy, and none was given")
    from ranker.core.skillnorm import build_task  # builds a GradedTask, so it imports this module

    task: GradedTask = build_task(taxonomy, split=split)
    if wanted and not {task.name, "skillnorm"} & set(wanted):
        raise ArgumentError(f"no task {', '.join(wanted)} in 'esco'; there is: {task.name} (skillnorm)")
    return TaskSet((task,))
