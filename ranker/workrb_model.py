"""The system as a model of the workrb benchmark, scored by workrb's own loop.

>>> import workrb  # doctest: +SKIP
>>> from ranker.workrb_model import SkillRankerModel
>>> workrb.evaluate(SkillRankerModel("embedded"), tasks, output_folder="results/embedded")  # doctest: +SKIP

workrb wants a score for every target, and sorts with an unstable sort, so tied scores would come out in any order. The
scores given to it are therefore places in our ranking, counted from the end: n for the first of n targets, 1 for the
last. They are exact in float32, hold no ties, and reproduce our order for any set of targets.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ranker.core.errors import ArgumentError, missing_extra
from ranker.core.order import top_rows
from ranker.core.taxonomy import Taxonomy
from ranker.core.text import normalise
from ranker.core.types import Float32, Int32
from ranker.pipeline import SkillRanker

try:
    import torch
    from workrb.models.base import ModelInterface
    from workrb.registry import register_model
    from workrb.types import ModelInputType
except ImportError as error:
    raise missing_extra(error.name or "workrb", "train") from error

QUERY_TYPES = (ModelInputType.SKILL_SENTENCE, ModelInputType.SKILL_NAME)
TARGET_TYPES = (ModelInputType.SKILL_NAME,)

_log = logging.getLogger(__name__)


def complete_order(ranker: SkillRanker, texts: Sequence[object]) -> Int32:
    """Return all skills in ranked order: the system's ranking of its pool, then the rest by the pool's own score.

    Returns
    -------
    int32[n_texts, n_skills]
        Each row a permutation. A text that cannot be ranked gets the taxonomy's order.
    """
    n = len(ranker.taxonomy)
    order = np.tile(np.arange(n, dtype=np.int32), (len(texts), 1))
    queries, reasons = ranker.prepare(texts)
    good = [i for i, reason in enumerate(reasons) if not reason]
    at = iter(good)
    for chunk in ranker.pipeline.run([queries[i] for i in good], n):
        # The pool is the head of the order by base score, so what follows its length in that order is the rest.
        rest = top_rows(chunk.inputs.base, n)[:, chunk.rows.shape[1] :]
        for row in np.concatenate([chunk.rows, rest], axis=1):
            order[next(at)] = row
    return order


def target_rows(targets: Sequence[str], taxonomy: Taxonomy) -> list[list[int]]:
    """Return the taxonomy rows that each target text names by its label; none for a text that is no label.

    A label is matched as it is written, else without regard to case.

    Raises
    ------
    ArgumentError
        If no target is a label of the taxonomy.
    """
    exact: dict[str, list[int]] = {}
    folded: dict[str, list[int]] = {}
    for row, label in enumerate(taxonomy.label):
        key = normalise(label, strip_bullets=False)
        exact.setdefault(key, []).append(row)
        folded.setdefault(key.casefold(), []).append(row)
    keys = [normalise(target, strip_bullets=False) for target in targets]
    rows = [exact.get(key) or folded.get(key.casefold(), []) for key in keys]
    unknown = [target for target, found in zip(targets, rows, strict=True) if not found]
    if len(unknown) == len(targets):
        raise ArgumentError(
            f"none of the {len(targets)} targets is a skill of the taxonomy (first: {targets[:3]}); "
            f"this model ranks skills of {taxonomy.source or 'its taxonomy'} {taxonomy.version}"
        )
    if unknown:
        _log.warning("%d targets are not in the taxonomy and are ranked last, such as %s", len(unknown), unknown[:5])
    return rows


def place_scores(order: Int32, rows: Sequence[Sequence[int]]) -> Float32:
    """Return a score per target that falls by one from each target to the next in ranked order.

    Parameters
    ----------
    order : int32[n_queries, n_skills]
        Each row a permutation of the taxonomy, best first.
    rows : sequence of sequence of int
        Taxonomy rows of each target. A label that several skills share stands where the best of them does; targets
        without a row come last, in their own order.

    Returns
    -------
    float32[n_queries, n_targets]
        n_targets for the best down to 1 for the last, without ties.
    """
    n_queries, n_skills = order.shape
    places = np.empty((n_queries, n_skills + 1), dtype=np.int32)
    np.put_along_axis(places, order, np.arange(n_skills, dtype=np.int32)[None, :], axis=1)
    places[:, n_skills] = n_skills  # the place of what is not in the taxonomy
    flat: NDArray[np.int64] = np.array([row for found in rows for row in (found or [n_skills])], dtype=np.int64)
    starts = np.cumsum([0, *(max(1, len(found)) for found in rows[:-1])])
    best = np.minimum.reduceat(places[:, flat], starts, axis=1)
    ranked = np.argsort(best, axis=1, kind="stable")
    scores = np.empty(best.shape, dtype=np.float32)
    np.put_along_axis(scores, ranked, np.arange(len(rows), 0, -1, dtype=np.float32)[None, :], axis=1)
    return scores


def _check_type(given: ModelInputType | None, allowed: Sequence[ModelInputType], what: str) -> None:
    if given is not None and given not in allowed:
        names = ", ".join(kind.value for kind in allowed)
        raise ArgumentError(f"this model ranks skills for texts about work: {what} {given} is not supported ({names})")


@register_model()
class SkillRankerModel(ModelInterface):  # type: ignore[misc] # workrb is not typed
    """A system of this project as a workrb model.

    Parameters
    ----------
    config : str
        Config name or path of a YAML file.
    ranker : SkillRanker, optional
        A system that is loaded already; `config` is then not read.
    """

    def __init__(self, config: str = "embedded", *, ranker: SkillRanker | None = None) -> None:
        self.ranker = SkillRanker.load(config) if ranker is None else ranker

    @property
    def name(self) -> str:
        """Name of the model, with the config's."""
        return f"GradedRanker-{self.ranker.config.name}"

    @property
    def description(self) -> str:
        """What the system is made of."""
        config = self.ranker.config
        stages = ", ".join([*(lane.name for lane in config.lanes), *(column.name for column in config.columns)])
        parameters = sum(self.ranker.backbones().values()) / 1e6
        end = "a trained fusion" if config.fusion.checkpoint else "a weighted sum of z-scores"
        return f"Graded ranker for ESCO skills: {stages}, put in order by {end}; {parameters:.1f} M parameters"

    @property
    def classification_label_space(self) -> list[str] | None:
        """None: any skill of the taxonomy can be a target."""
        return None

    def _compute_rankings(
        self,
        queries: list[str],
        targets: list[str],
        query_input_type: ModelInputType | None = None,
        target_input_type: ModelInputType | None = None,
    ) -> torch.Tensor:
        """Return float32[n_queries, n_targets]: places in our ranking, counted from the end."""
        _check_type(query_input_type, QUERY_TYPES, "query type")
        _check_type(target_input_type, TARGET_TYPES, "target type")
        rows = target_rows(targets, self.ranker.taxonomy)
        return torch.from_numpy(place_scores(complete_order(self.ranker, queries), rows))

    def _compute_classification(
        self,
        texts: list[str],
        targets: list[str],
        input_type: ModelInputType,
        target_input_type: ModelInputType | None = None,
    ) -> torch.Tensor:
        """Return the ranking scores; the classes must be skills."""
        return self._compute_rankings(texts, targets, input_type, target_input_type)
