"""Speed, memory and cold start, beside two plain alternatives in the same run: `python -m ranker.bench`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.errors import RankerError, missing_extra
from ranker.core.order import top_rows
from ranker.core.taxonomy import Taxonomy
from ranker.core.views import view_texts

if TYPE_CHECKING:
    from ranker.pipeline import SkillRanker

# Lines as vacancies have them, over many sectors and lengths, made up for this purpose.
SAMPLE = (
    "You weld aluminium frames for city buses and read the technical drawings yourself.",
    "Strong knowledge of Python, SQL and at least one cloud platform (AWS, Azure or GCP).",
    "Able to lift up to 50lbs and stand for the length of a shift.",
    "Responsible for month-end closing, bank reconciliations and the preparation of VAT returns.",
    "You take blood samples, record vital signs and keep patient files up to date.",
    "Experience with IDS/IPS, SIEM tooling and incident response in a 24/7 security operations centre.",
    "Plans and supervises the work of a crew of six scaffolders on industrial sites.",
    "Develop and maintain RESTful services in Node.js and TypeScript, with tests.",
    "Handles incoming complaints by phone and e-mail in a friendly, solution-minded way.",
    "Drive an articulated lorry (licence CE) and secure the load according to the rules.",
    "You design knitwear collections and follow them from sketch to first sample.",
    "Coordinate the recruitment process from the intake meeting to the signed offer.",
    "Prepare cold and hot starters under the guidance of the sous-chef; HACCP is second nature to you.",
    "Calibrate pressure and temperature sensors and document the results in the maintenance system.",
    "Teach mathematics to pupils aged 12 to 16 and adapt lessons to their level.",
    "Knowledge of C++ and real-time operating systems is a plus.",
    "Negotiate framework contracts with suppliers and follow up on delivery performance.",
    "Prune fruit trees, maintain irrigation lines and operate a compact tractor.",
    "You analyse customer churn with statistical models and present the findings to management.",
    "Install photovoltaic panels on pitched roofs and connect them to the inverter.",
    "Assist elderly residents with washing, dressing and meals, with respect for their privacy.",
    "Write press releases, manage our social media channels and organise two open days a year.",
    "Operate a five-axis CNC milling machine and check tolerances with a coordinate measuring machine.",
    "Supports the legal team in drafting non-disclosure agreements and data processing agreements.",
    "Cleaning of hotel rooms, checking the minibar and reporting defects to the technical service.",
    "Fluent in Dutch and French, good working knowledge of English.",
    "You carry out geotechnical soil surveys and translate the results into foundation advice.",
    "Manage a portfolio of institutional investors and monitor market risk daily.",
    "Lead daily stand-ups, remove obstacles for the team and guard the sprint goal.",
    "Sorts and packs parcels in the distribution centre and scans them with a handheld terminal.",
)

# What the cold start runs, in a process of its own: imports, loading, one answer; then the other texts, for the memory.
_CHILD = """
import json, sys
from ranker import SkillRanker
job = json.loads(sys.stdin.readline())
ranker = SkillRanker.load(job["config"])
first = ranker.rank(job["texts"][:1], top_k=10)
print(len(first[0].skills), flush=True)
ranker.rank(job["texts"][1:], top_k=10)
from ranker.bench import peak_megabytes
print(json.dumps(peak_megabytes()), flush=True)
"""

Ranks = Callable[[str], object]


def peak_megabytes() -> float:
    """Return this process's peak resident memory in MB."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)


def variant(query: str, number: int) -> str:
    """Return the query with its words shuffled by a number, and its first letters' case spelling it in binary.

    Systems remember the texts that they have seen, and a case-blind model the tokens. The same words in another order
    and spelling cost what a new text costs, and are the same work for every system.

    Examples
    --------
    >>> variant("weld aluminium", 0), variant("weld aluminium", 5)
    ('weld aluminium', 'WeLd aluminium')
    """
    words = query.split()
    if number:
        random.Random(number).shuffle(words)
    characters = list(" ".join(words))
    letters = [at for at, character in enumerate(characters) if character.isascii() and character.isalpha()]
    for bit, at in enumerate(letters):
        if number >> bit & 1:
            characters[at] = characters[at].swapcase()
    return "".join(characters)


def interleave(systems: Mapping[str, Ranks], queries: Sequence[str], *, warm_up: int = 3) -> dict[str, list[float]]:
    """Time systems on the same queries, one query at a time, in turn.

    A busy machine is slow for all of them alike; which one goes first changes from query to query, and no spelling of a
    query comes twice (`variant`).

    Parameters
    ----------
    systems : mapping of str to callable
        Each ranks one query.
    queries : sequence of str
    warm_up : int
        Untimed queries that go before.

    Returns
    -------
    dict of str to list of float
        Milliseconds per query, in the queries' order.
    """
    number = count()
    for query in islice(cycle(reversed(queries)), warm_up):
        for rank in systems.values():
            rank(variant(query, next(number)))
    times: dict[str, list[float]] = {name: [] for name in systems}
    names = list(systems)
    for turn, query in enumerate(queries):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            spelling = variant(query, next(number))
            start = time.perf_counter()
            systems[name](spelling)
            times[name].append(1000 * (time.perf_counter() - start))
    return times


def summary(milliseconds: Sequence[float]) -> dict[str, float]:
    """Return median and 95th percentile, in ms."""
    values = np.asarray(milliseconds)
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95))}


def workrb_bm25(taxonomy: Taxonomy) -> Ranks:
    """Return workrb's BM25Model over the labels, ready to score one query against all of them.

    Its own scoring builds the index anew in each call. Here the index stands, and a query costs what workrb spends on
    one: normalising, splitting, scoring all labels, and the tensor.

    Raises
    ------
    PrerequisiteError
        If workrb is not installed.
    """
    try:
        import torch
        from workrb.models import lexical_baselines as workrb
    except ImportError as error:
        raise missing_extra("workrb", "train") from error
    model = workrb.BM25Model()
    prepare = model._preprocess  # noqa: SLF001  the real class, step by step, so that its index can stand
    index = workrb.BM25Okapi([prepare(label).split() for label in taxonomy.label])

    def rank(query: str) -> object:
        scores = index.get_scores(prepare(query).split())
        return torch.tensor(np.array([scores]), dtype=torch.float32)

    return rank


PLAIN_FAMILIES = ("encoder", "flag")  # those that sentence-transformers' CrossEncoder can run too


def _plain(options: Mapping[str, Any]) -> Any:
    """Return a column's model as sentence-transformers runs it: fp32, an adapter merged.

    An int8 graph does not hold its fp32 weights; random ones of the same shape take as long.
    """
    from sentence_transformers import CrossEncoder
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from rerankers.classifier import Source, load_classifier
    from rerankers.onnx import is_exported

    source = Source(options["model"], options.get("adapter"))
    if is_exported(source.folder):
        kind: Any = AutoModelForSequenceClassification
        network = kind.from_config(AutoConfig.from_pretrained(str(source.folder)))
    else:
        network = load_classifier(source, "float32")
    with tempfile.TemporaryDirectory() as folder:
        network.save_pretrained(folder)
        source.tokenizer().save_pretrained(folder)
        return CrossEncoder(folder)


def naive_cross_encoder(ranker: SkillRanker) -> Ranks:
    """Return the same cascade with every column run plainly: fp32 `CrossEncoder.predict` over the whole pool.

    Columns of families that have no such form are left out and named.

    Raises
    ------
    RankerError
        If no column has one, or a model cannot be loaded.
    """
    taxonomy, pipeline, config = ranker.taxonomy, ranker.pipeline, ranker.config
    columns = [column for column in config.columns if column.family in PLAIN_FAMILIES]
    others = [column.name for column in config.columns if column not in columns]
    if not columns:
        raise RankerError(f"columns {', '.join(others)} are of families that it does not have")
    if others:
        note(f"naive_cross_encoder is without the columns {', '.join(others)}, which have no such form")
    models = [_plain(column.options) for column in columns]
    texts = [view_texts(taxonomy, column.options.get("view", "label_description")) for column in columns]

    def rank(query: str) -> object:
        queries, _ = ranker.prepare([query])
        pool = top_rows(pipeline.base(pipeline.lane_scores(queries)), config.pool.size)[0]
        return [
            model.predict([(queries[0], text[row]) for row in pool], show_progress_bar=False)
            for model, text in zip(models, texts, strict=True)
        ]

    return rank


def cold_start(config: str, texts: Sequence[str]) -> tuple[float, float]:
    """Return the seconds from starting a process to its first answer, and its peak memory in MB over all texts.

    Raises
    ------
    RankerError
        If the process fails, with the end of what it said.
    """
    job = json.dumps({"config": config, "texts": list(texts)}) + "\n"
    start = time.perf_counter()
    # What it says goes to a file: a pipe that nobody reads would stop it once full.
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(job)
        child.stdin.flush()
        child.stdout.readline()
        seconds = time.perf_counter() - start
        rest = child.stdout.read()  # communicate would lose what the line above has read ahead
        child.wait()
        said.seek(0)
        if child.returncode:
            raise RankerError(f"the cold start of {config} failed: {said.read().strip()[-500:]}")
    return seconds, float(json.loads(rest))


def bench(config: str, queries: Sequence[str], *, ranker: SkillRanker, cold: bool = True) -> dict[str, Any]:
    """Measure a system and its alternatives.

    Parameters
    ----------
    config : str
        The system's name or path, for the cold start's own process.
    queries : sequence of str
        At least one.
    ranker : SkillRanker
        The loaded system.
    cold : bool
        Whether to measure cold start and memory.

    Returns
    -------
    dict
        config, queries, ms_per_query (median, p95), queries_per_second, with_evidence (ms of `rank`, which collects
        evidence too), others (ms of each alternative), ratios (our median over theirs), cold_start_s, peak_mb.
    """
    top_k = ranker.config.top_k
    systems: dict[str, Ranks] = {
        "ours": lambda query: ranker.order([query], top_k),
        "with_evidence": lambda query: ranker.rank([query], top_k=top_k),
        "workrb_bm25": workrb_bm25(ranker.taxonomy),
    }
    if ranker.config.columns:
        try:
            systems["naive_cross_encoder"] = naive_cross_encoder(ranker)
        except (RankerError, OSError, ValueError, KeyError) as error:
            note(f"no comparison with a plain cross-encoder: {error}")
    found = {name: summary(times) for name, times in interleave(systems, queries).items()}
    ours = found.pop("ours")
    evidence = found.pop("with_evidence")
    seconds, megabytes = cold_start(config, queries) if cold else (None, None)
    return {
        "config": ranker.config.name,
        "queries": len(queries),
        "ms_per_query": ours,
        "queries_per_second": 1000 / ours["median"],
        "with_evidence": evidence,
        "others": found,
        "ratios": {name: ours["median"] / other["median"] for name, other in found.items()},
        "cold_start_s": seconds,
        "peak_mb": megabytes,
    }


def render(found: Mapping[str, Any]) -> str:
    """Return the figures as a table."""
    rows = [(found["config"], found["ms_per_query"], ""), ("  with evidence", found["with_evidence"], "")]
    rows += [(name, other, f"{found['ratios'][name]:.3f}") for name, other in found["others"].items()]
    lines = table(
        [(name, f"{ms['median']:.2f}", f"{ms['p95']:.2f}", ratio) for name, ms, ratio in rows],
        ("system", "ms/query", "p95", "ours/theirs"),
    )
    return "\n".join(
        [
            f"{found['queries']} queries, one at a time, all systems in turn",
            lines,
            f"queries per second: {found['queries_per_second']:.1f}",
            f"cold start (process, imports, loading, first answer; warm caches): {found['cold_start_s']:.2f} s",
            f"peak memory: {found['peak_mb']:.0f} MB",
        ]
    )


def bench_queries(data: str | None, number: int, taxonomy: Taxonomy) -> list[str]:
    """Return `number` queries, of a task folder or the built-in sample, from the start again if there are too few."""
    if data is None:
        texts: Sequence[str] = SAMPLE
    else:
        from ranker.core.tasks import load_tasks

        tasks = load_tasks(data, taxonomy=taxonomy, need_qrels=False)
        texts = [query for task in tasks for query in task.queries]
    return list(islice(cycle(texts), number))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = parser(
        "ranker.bench",
        "Measure speed, memory and cold start, beside workrb's BM25 and plain cross-encoders in the same run.",
        "python -m ranker.bench --config embedded --queries 60",
    )
    add = arguments.add_argument
    add("--config", default="embedded", help="name of a system in configs/ or path of a YAML file (default: embedded)")
    add("--data", metavar="DIR", help="take the queries of this BEIR folder (default: a built-in sample)")
    add("--queries", type=positive, default=len(SAMPLE), metavar="N", help=f"how many (default: {len(SAMPLE)})")
    add("--json", action="store_true", help="end with one JSON object")
    given = arguments.parse_args(argv)
    from ranker.pipeline import SkillRanker  # seconds of imports, which a wrong argument must not cost

    ranker = SkillRanker.load(given.config)  # fills the caches that the cold start then finds
    queries = bench_queries(given.data, given.queries, ranker.taxonomy)
    found = bench(given.config, queries, ranker=ranker)
    say(render(found))
    if given.json:
        emit(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
