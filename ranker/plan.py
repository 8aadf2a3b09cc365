"""What a system will cost before anything of it is loaded: stages in order, parameters, memory, pairs and time.

Everything here is read from configs and the headers of weights. Models that are not on disk yet count with the sizes of
`data/backbones.csv`.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ranker.core.cli import note, say, table
from ranker.core.config import CONFIG_DIR, ColumnConfig, LaneConfig, SystemConfig
from ranker.core.device import free_gpu_memory, free_memory, side_by_side
from ranker.core.errors import RankerError, ResourceError
from ranker.core.models import ADAPTER_FILES, MODEL_FILES, local_only, probe_model, resolve_model
from ranker.core.taxonomy import Taxonomy
from ranker.core.views import TEXT_VIEWS, view_texts
from ranker.stages import build_stage, hosted, lane_chain
from rerankers.registry import ask_once, build_columns

BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 4.0, "4bit": 0.6}
"""Bytes of a parameter. An int8 graph is made from float32; 4 bits come with scales and some layers in 16."""

CHARACTERS_PER_TOKEN = 4.0
BATCH_TOKENS = 8192
SHARE_OF_PRODUCT = 0.5  # of a large matrix product's speed, what a whole network was seen to reach
RESERVE = 1.2  # free memory that is asked for, over the sum of what is known to be needed
DATA = Path(__file__).parent / "data"


class Backbone(NamedTuple):
    """A model's sizes; `stated` for those that come from a table and not from the weights."""

    parameters: int
    hidden: int
    heads: int
    vocabulary: int
    stated: bool = False

    @property
    def multiplied(self) -> int:
        """Parameters that take part in every token's products: all but the table of word vectors."""
        return max(self.parameters - self.vocabulary * self.hidden, 0)


@dataclass(frozen=True)
class Stage:
    """A lane or column of a plan.

    Attributes
    ----------
    kind, name, family, precision : str
    models : dict of str to int
        Parameters by model, as the config names it.
    stated : bool
        Whether these are those of `data/backbones.csv`, the weights not being on disk.
    weights, working : int
        Bytes of the weights, and of the largest batch's activations.
    pairs : int
        Texts (lanes: queries, and skills to index) or pairs (columns) to be scored.
    seconds : float or None
        Estimate; None where nothing is known of the speed.
    problem : str
        Why the stage cannot be built from what is on disk, "" where it can.
    """

    kind: str
    name: str
    family: str
    precision: str
    models: Mapping[str, int]
    stated: bool
    weights: int
    working: int
    pairs: int
    seconds: float | None
    problem: str

    @property
    def memory(self) -> int:
        """Bytes that the stage needs for itself."""
        return self.weights + self.working


def stated_backbones() -> dict[str, Backbone]:
    """Return the sizes of public models that the configs name, by hub id."""
    with (DATA / "backbones.csv").open(encoding="utf-8", newline="") as stream:
        return {
            row["model"]: Backbone(
                int(row["parameters"]), int(row["hidden"]), int(row["heads"]), int(row["vocabulary"]), stated=True
            )
            for row in csv.DictReader(stream)
        }


def product_rate(precision: str) -> float:
    """Return the speed of a matrix product in this precision on the device at hand, measured now, in FLOP/s."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = 4096 if device == "cuda" else 768
    kind = getattr(torch, "bfloat16" if precision == "4bit" else "float32" if precision == "int8" else precision)
    left = torch.ones(size, size, dtype=kind, device=device)

    def once() -> float:
        start = time.perf_counter()
        (left @ left)[0, 0].item()  # reading a value waits for the device
        return time.perf_counter() - start

    once()
    return 2.0 * size**3 / min(once() for _ in range(5))


def activations(tokens: int, length: int, model: Backbone, bytes_each: float) -> int:
    """Return the bytes of one layer's activations, which is what inference holds at a time.

    sbh(34 + 5as/h) bytes in 16 bits (Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
    models", equation 1), with s the length of a sequence and sb the tokens of a batch.
    """
    return int(tokens * (34 * model.hidden + 5 * model.heads * length) * bytes_each / 2)


def make_plan(config: SystemConfig, taxonomy: Taxonomy, queries: Sequence[str], *, timed: bool = False) -> list[Stage]:
    """Return the stages of a system in their order, without loading or fetching a model.

    Parameters
    ----------
    config : SystemConfig
    taxonomy : Taxonomy
    queries : sequence of str
        What is to be ranked; their number and lengths count.
    timed : bool
        Whether to measure this machine, a fraction of a second per precision, and estimate times.
    """
    stated, rates = stated_backbones(), dict[str, float]()
    stages = []
    for spec in config.stages:
        models, problem = stage_models(config, spec, stated)
        precision = str(spec.options.get("precision", "float32")) if models else ""
        here = {} if hosted(spec) else models
        pairs, tokens, length = _work(spec, config, taxonomy, queries)
        seconds: float | None = None if hosted(spec) or (here and not timed) else 0.0
        if timed and here:
            rate = rates[precision] = rates.get(precision) or product_rate(precision)
            seconds = 2.0 * sum(model.multiplied for model in here.values()) * tokens / (rate * SHARE_OF_PRODUCT)
        bytes_each = BYTES.get(precision, 4.0)
        batch = int(spec.options.get("token_budget") or spec.options.get("batch_size", 0) * length or BATCH_TOKENS)
        stages.append(
            Stage(
                kind="lane" if isinstance(spec, LaneConfig) else "column",
                name=spec.name,
                family=spec.family,
                precision="hosted" if hosted(spec) else precision,
                models={name: model.parameters for name, model in models.items()},
                stated=any(model.stated for model in models.values()),
                weights=int(sum(model.parameters for model in here.values()) * bytes_each),
                working=max((activations(batch, length, m, max(bytes_each, 2.0)) for m in here.values()), default=0),
                pairs=pairs,
                seconds=seconds,
                problem=problem,
            )
        )
    return stages


def stage_models(
    config: SystemConfig, spec: LaneConfig | ColumnConfig, stated: Mapping[str, Backbone]
) -> tuple[dict[str, Backbone], str]:
    """Return the sizes of a stage's models by the names the config gives them, and why it cannot be built yet.

    A derived lane works on its base's scores and runs no model itself. Nothing is fetched; a model that is not on disk
    has the size that `stated` gives it, or is left out.
    """
    try:
        with local_only():
            stage, _ = build_stage(config, spec.name)
            models = {} if "base" in spec.options else dict(stage.backbones())
    except RankerError as error:
        names = [name for name in _named(spec) if name.split("@")[0] in stated]
        return {name: stated[name.split("@")[0]] for name in names}, str(error)
    found = {}
    for identity, parameters in models.items():
        name = identity.rpartition("@")[0] or identity
        found[name] = Backbone(parameters, *_shape(name, hosted(spec)))
    return found, ""


def _named(spec: LaneConfig | ColumnConfig) -> list[str]:
    """Return the checkpoints that a stage's options name."""
    given = [] if hosted(spec) else [spec.options.get("model"), spec.options.get("adapter")]
    return [name for name in given if isinstance(name, str) and name]


def _shape(name: str, elsewhere: bool) -> tuple[int, int, int]:
    """Return width, heads and vocabulary of a model on disk as its config states them; zeros where it states none."""
    try:
        with local_only():
            file = resolve_model(name, holds=(*MODEL_FILES, *ADAPTER_FILES)) / "config.json"
        value = {} if elsewhere else json.loads(file.read_text(encoding="utf-8"))
    except (RankerError, OSError, ValueError):
        value = {}  # an adapter or a tower, small beside the model it sits on
    width = value.get("hidden_size") or 0
    return int(width), int(value.get("num_attention_heads") or 0), int(value.get("vocab_size") or 0)


def _work(
    spec: LaneConfig | ColumnConfig, config: SystemConfig, taxonomy: Taxonomy, queries: Sequence[str]
) -> tuple[int, float, int]:
    """Return how many texts or pairs a stage scores, their tokens in all, and those of a long one."""
    view = str(spec.options.get("view", "label"))
    texts = view_texts(taxonomy, view if view in TEXT_VIEWS else "label")
    skill = sum(map(len, texts)) / max(len(texts), 1) / CHARACTERS_PER_TOKEN
    asked = sum(map(len, queries)) / CHARACTERS_PER_TOKEN
    limit = int(spec.options.get("max_length") or 192)
    if isinstance(spec, LaneConfig):
        return len(queries) + len(taxonomy), asked + skill * len(taxonomy), limit
    depth = min(spec.depth, config.pool.size, len(taxonomy))
    pairs = depth * len(queries)
    prompt = 90.0 if spec.family == "causal" else 3.0  # tokens that stand around every pair
    return pairs, min(depth * asked + pairs * (skill + prompt), float(limit * pairs)), limit


class Need(NamedTuple):
    """Bytes that a run needs at once, and those that are free, on the processor's side and the GPU's."""

    host: int
    gpu: int
    free_host: int | None
    free_gpu: int | None


def memory_need(stages: Sequence[Stage], *, stage_wise: bool) -> Need:
    """Return what a run needs: of a stage-wise one the largest stage, else all stages together.

    Lanes on one model share it, columns do not. A model passes through main memory on its way to a GPU, so there the
    largest counts on both sides. Of several processes on this machine each has its own GPU, and main memory holds all.
    """
    loaded = {(*sorted(s.models), s.precision) if s.kind == "lane" else s.name: s for s in stages if s.memory}
    each = [stage.memory for stage in loaded.values()]
    total = max(each, default=0) if stage_wise else sum(each)
    gpu = free_gpu_memory()
    if gpu is None:
        return Need(total * side_by_side(), 0, free_memory(), None)
    largest = max((stage.weights for stage in loaded.values()), default=0)
    return Need(largest * side_by_side(), total, free_memory(), gpu)


def memory_faults(stages: Sequence[Stage], *, stage_wise: bool) -> Iterator[str]:
    """Yield where a run cannot fit: what is needed and free, the largest stages, and what to do."""
    need, alone = (memory_need(stages, stage_wise=value) for value in (stage_wise, True))
    for where, wanted, free in (("main memory", need.host, need.free_host), ("the GPU", need.gpu, need.free_gpu)):
        if free is None or wanted * RESERVE <= free:
            continue
        largest = sorted(stages, key=lambda stage: -stage.memory)[:3]
        names = ", ".join(f"{stage.kind} {stage.name} {size(stage.memory)}" for stage in largest)
        advice = "use a larger machine, precision: bfloat16 or 4bit, or a smaller token_budget"
        sides = ((alone.host, alone.free_host), (alone.gpu, alone.free_gpu))
        if not stage_wise and all(limit is None or bytes_ * RESERVE <= limit for bytes_, limit in sides):
            advice = f"run it with --stage-wise, which needs {size(max(alone.host, alone.gpu))}"
        yield (
            f"not enough memory: {size(wanted)} and a reserve of {RESERVE - 1:.0%} are needed in {where}, "
            f"{size(free)} are free (largest: {names}); {advice}"
        )


def model_faults(config: SystemConfig, stages: Sequence[Stage]) -> list[str]:
    """Return what is wrong with checkpoints, after every hub model that is not on disk was asked for one small file."""
    specs = {spec.name: spec for spec in config.stages}
    wanted: dict[str, list[str]] = {}
    faults = []
    for stage in stages:
        spec = specs[stage.name]
        chain = lane_chain(config, spec.name) if isinstance(spec, LaneConfig) else [spec]
        absent = [name for part in chain for name in _named(part) if stage.problem and _is_absent(name)]
        for name in absent:
            wanted.setdefault(name, []).append(stage.name)
        if stage.problem and not absent:
            faults.append(stage.problem)
    adapters = {str(spec.options.get("adapter")) for spec in specs.values()}

    def probe(name: str) -> str:
        try:
            probe_model(name, holds="adapter_config.json" if name in adapters else "config.json")
        except RankerError as error:
            return f"{name} ({', '.join(wanted[name])}): {error}"
        return ""

    # What the hub's client logs at each of its five tries is said once, in the fault.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with ThreadPoolExecutor(8) as workers:
        return [*filter(None, workers.map(probe, wanted)), *faults, *_bag_fault(config)]


def check(config: SystemConfig, stages: Sequence[Stage], *, stage_wise: bool, fetch: bool) -> None:
    """Raise where a run would fail, before its work begins; every fault is named at once.

    Parameters
    ----------
    config : SystemConfig
    stages : sequence of Stage
        Its plan.
    stage_wise : bool
        How it will run.
    fetch : bool
        Put one small question to every hosted model. Where all is well so far, fetch the models that are not on disk,
        and build the stages that need them.

    Raises
    ------
    ResourceError
        Too little memory; missing, gated or private models, wrong revisions, an unreachable hub; no trained bag; a
        hosted model that gives no answer; a stage that cannot be built (a tokeniser without the answers, say).
    """
    faults = [*memory_faults(stages, stage_wise=stage_wise), *model_faults(config, stages)]
    if fetch:
        faults += _endpoint_faults(config, {stage.name for stage in stages if stage.problem})
    if not faults and fetch:
        faults = list(_build_faults(config, [stage.name for stage in stages if stage.problem]))
    if faults:
        listed = "".join(f"\n  - {fault}" for fault in faults)
        raise ResourceError(f"{config.name} cannot run; {len(faults)} fault(s):{listed}")


def _is_absent(name: str) -> bool:
    """Tell whether a checkpoint is a hub model that is not on disk."""
    try:
        with local_only():
            resolve_model(name, holds=(*MODEL_FILES, *ADAPTER_FILES))
    except ResourceError:
        folder = name.count("/") != 1 or name[0] in "./~" or (CONFIG_DIR.parent / name.split("/")[0]).is_dir()
        return not folder and ":" not in name
    return False


def _endpoint_faults(config: SystemConfig, broken: Set[str]) -> Iterator[str]:
    for spec in config.columns:
        if hosted(spec) and spec.name not in broken:
            try:
                ask_once(build_columns([spec]).values())
            except RankerError as error:
                yield str(error)


def _bag_fault(config: SystemConfig) -> Iterator[str]:
    bag = config.fusion.checkpoint
    if bag is None or any((folder / "manifest.json").is_file() for folder in _bag_places(bag)):
        return
    yield f"no trained bag {bag}; run: python -m train.fusion --config {config.name} --data hub --out checkpoints/{bag}"


def _bag_places(bag: str) -> tuple[Path, Path]:
    return Path(bag), CONFIG_DIR.parent / "checkpoints" / bag


def _build_faults(config: SystemConfig, names: Sequence[str]) -> Iterator[str]:
    """Build stages that could not be built from disk, fetching what they need, and yield what they refuse."""
    for name in names:
        try:
            build_stage(config, name)
        except RankerError as error:
            yield str(error)


# --- words -----------------------------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Return bytes in GB."""
    return f"{count / 1e9:.2f} GB"


def duration(seconds: float | None) -> str:
    """Return a time in the unit that suits it."""
    if seconds is None:
        return "unknown"
    for limit, unit, name in ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (math.inf, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {name}"
    return ""


def as_values(stages: Sequence[Stage], need: Need) -> dict[str, Any]:
    """Return a plan as plain values."""
    return {"stages": [asdict(stage) for stage in stages], "memory": need._asdict()}


def memory_line(need: Need, *, stage_wise: bool) -> str:
    """Return in a line what a run needs and what is free."""
    sides = [("main memory", need.host, need.free_host)]
    if need.free_gpu is not None:
        sides.append(("the GPU", need.gpu, need.free_gpu))
    found = [f"{size(n)} of {where} ({'unknown' if f is None else size(f)} free)" for where, n, f in sides]
    where = f" in each of {side_by_side()} processes" if side_by_side() > 1 else ""
    return f"memory, {'one stage at a time' if stage_wise else 'all stages together'}{where}: {', '.join(found)}"


def announce(
    config: SystemConfig, taxonomy: Taxonomy, queries: Sequence[str], *, stage_wise: bool, dry_run: bool = False
) -> dict[str, Any]:
    """Say what a run needs, stop where something is missing or does not fit (see `check`), and return the plan."""
    stages = make_plan(config, taxonomy, queries, timed=dry_run)
    need = memory_need(stages, stage_wise=stage_wise)
    if dry_run:
        say(render(stages, need, stage_wise=stage_wise))
    else:
        note(memory_line(need, stage_wise=stage_wise))
    check(config, stages, stage_wise=stage_wise, fetch=not dry_run)
    return as_values(stages, need)


def render(stages: Sequence[Stage], need: Need, *, stage_wise: bool) -> str:
    """Return a plan as a table, and under it what it is based on."""
    rows = [
        (
            number,
            f"{stage.kind} {stage.name}",
            stage.family,
            " + ".join(stage.models) or "-",
            f"{sum(stage.models.values()):,}{'*' if stage.stated else ''}",
            stage.precision or "-",
            size(stage.memory),
            f"{stage.pairs:,}",
            duration(stage.seconds),
        )
        for number, stage in enumerate(stages, start=1)
    ]
    head = ("", "stage", "family", "backbone", "parameters", "precision", "memory", "texts or pairs", "time")
    distinct = {name: count for stage in stages for name, count in stage.models.items()}
    known = [stage.seconds for stage in stages if stage.seconds is not None]
    lines = [
        table(rows, head),
        "",
        f"{len(distinct)} distinct models, {sum(distinct.values()):,} parameters; "
        + (f"all times together: {duration(sum(known))}" if len(known) == len(stages) else "times: not all known"),
        memory_line(need, stage_wise=stage_wise),
        (
            "time: 2 FLOP per parameter and token at half the speed of a matrix product measured now on this machine; "
            "4 characters a token; indexing the taxonomy counted in full; lanes without a model take seconds"
        ),
    ]
    if any(stage.stated for stage in stages):
        lines.append("* not on disk; parameters as its published config gives them (ranker/data/backbones.csv)")
    return "\n".join(lines)

