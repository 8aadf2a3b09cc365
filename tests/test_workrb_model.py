"""The workrb adapter: the same figures through workrb's own loop, and a full matrix that keeps our order."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from small_world import BASE, write_config, write_esco, write_tasks

from ranker.core.errors import ArgumentError
from ranker.core.tasks import load_tasks
from ranker.core.taxonomy import Skill, Taxonomy

workrb = pytest.importorskip("workrb", reason="workrb is in the extra 'train'")

from workrb.models.base import ModelInterface  # noqa: E402
from workrb.registry import ModelRegistry  # noqa: E402
from workrb.tasks.abstract.ranking_base import RankingDataset  # noqa: E402
from workrb.types import ModelInputType  # noqa: E402

from ranker import evaluate  # noqa: E402
from ranker.pipeline import SkillRanker  # noqa: E402
from ranker.workrb_model import SkillRankerModel, complete_order, place_scores, target_rows  # noqa: E402


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKER_CACHE", str(folder / "cache"))
        esco = write_esco(folder / "esco")
        write_tasks(folder / "data", n_tasks=2, n_queries=12)
        yield SkillRanker.load(write_config(folder / "small.yaml", esco, size=120)), folder


def offline(graded, taxonomy):
    """Return a workrb task made of a graded task: the class of an official one, with its data from here."""
    from workrb.tasks import TechGradedSkillExtractRanking

    class FolderTask(TechGradedSkillExtractRanking):
        name = f"Folder {graded.name}"

        def load_dataset(self, dataset_id, split):
            positive = [{u: g for u, g in graded.qrels[q].items() if g} for q in graded.query_ids]
            shuffled = np.random.default_rng(1).permutation(len(taxonomy))
            place = {taxonomy.uri[row]: i for i, row in enumerate(shuffled)}
            return RankingDataset(
                query_texts=list(graded.queries),
                target_indices=[[place[uri] for uri in judged] for judged in positive],
                target_relevance=[list(map(float, judged.values())) for judged in positive],
                target_space=[taxonomy.label[row] for row in shuffled],
                dataset_id=dataset_id,
            )

    return FolderTask(languages=["en"], split="val")


def test_workrbs_loop_gives_our_figures(world, tmp_path):
    system, folder = world
    tasks = load_tasks(folder / "data", taxonomy=system.taxonomy)
    results = workrb.evaluate(
        SkillRankerModel(ranker=system),
        [offline(task, system.taxonomy) for task in tasks],
        output_folder=str(tmp_path),
        metrics={f"Folder {task.name}": ["ndcg@100", "mrr", "recall@100"] for task in tasks},
    )
    ours = evaluate.evaluate(system, tasks)
    for task in tasks:
        theirs = results.task_results[f"Folder {task.name}"].datasetid_results["en"].metrics_dict
        values = ours.tasks[task.name].values
        assert theirs["ndcg@100"] == pytest.approx(values["ndcg@100"].mean(), abs=1e-9)
        assert 0.3 < theirs["ndcg@100"] <= 1


def test_every_row_is_a_whole_ranking_that_starts_with_ours(world):
    system, _ = world
    texts = ["You will weld ship hulls", "", "sell leather shoes \U0001f600"]
    order = complete_order(system, texts)
    assert (np.sort(order, axis=1) == np.arange(len(system.taxonomy))).all()
    ours, _ = system.order(texts, 120)
    assert (order[[0, 2], :120] == ours[[0, 2]]).all()
    assert (order[1] == np.arange(len(system.taxonomy))).all()
    # What lies beyond the pool stands in the order of the pool's own score.
    (chunk,) = system.pipeline.run([texts[0]], 120)
    rest = chunk.inputs.base[0, order[0, 120:]]
    assert len(rest) == 24
    assert (np.diff(rest) <= 0).all()


def test_scores_fall_without_ties_for_any_targets(world):
    system, _ = world
    model = SkillRankerModel(ranker=system)
    targets = ["paint roof tiles", "WELD SHIP HULLS", "unheard of", "cut glass panels", "also unheard of"]
    scores = model.compute_rankings(
        ["weld ship hulls"], targets, ModelInputType.SKILL_SENTENCE, ModelInputType.SKILL_NAME
    ).numpy()
    assert scores.dtype == np.float32
    assert sorted(scores[0]) == [1, 2, 3, 4, 5]
    assert scores[0].argmax() == 1  # found without regard to case
    assert scores[0, 2] == 2  # unknown targets come last, in their own order
    assert scores[0, 4] == 1
    rows = {label: row for row, label in enumerate(system.taxonomy.label)}
    order = complete_order(system, ["weld ship hulls"])[0].tolist()
    paint_first = order.index(rows["paint roof tiles"]) < order.index(rows["cut glass panels"])
    assert (scores[0, 0] > scores[0, 3]) == paint_first


def test_places_by_hand():
    order = np.array([[2, 0, 1], [1, 2, 0]], dtype=np.int32)
    # The first target is shared by rows 0 and 1, the second is unknown, the third is row 2.
    assert place_scores(order, [[0, 1], [], [2]]).tolist() == [[2, 1, 3], [3, 1, 2]]


def test_labels_that_differ_in_case_alone_are_kept_apart(caplog):
    taxonomy = Taxonomy.from_skills([Skill("a", "R"), Skill("b", "r"), Skill("c", "Node.js"), Skill("d", "R")])
    with caplog.at_level(logging.WARNING):
        assert target_rows(["r", "R", " node.JS", "x"], taxonomy) == [[1], [0, 3], [2], []]
    assert "1 targets are not in the taxonomy" in caplog.text


def test_wrong_targets_and_types_are_refused(world):
    model = SkillRankerModel(ranker=world[0])
    with pytest.raises(ArgumentError, match="none of the 2 targets is a skill of the taxonomy"):
        model.compute_rankings(["x"], ["plumber", "baker"], ModelInputType.SKILL_NAME, ModelInputType.SKILL_NAME)
    with pytest.raises(ArgumentError, match="target type"):
        model.compute_rankings(["x"], ["weld ship hulls"], ModelInputType.SKILL_NAME, ModelInputType.JOB_TITLE)
    with pytest.raises(ArgumentError, match="query type"):
        model.compute_rankings(["x"], ["weld ship hulls"], ModelInputType.JOB_TITLE, ModelInputType.SKILL_NAME)


def test_registered_and_described(world):
    model = SkillRankerModel(ranker=world[0])
    assert isinstance(model, ModelInterface)
    assert ModelRegistry.get("SkillRankerModel") is SkillRankerModel
    assert model.name == "GradedRanker-small"
    assert "bm25, tfidf" in model.description
    assert "0.0 M parameters" in model.description
    assert model.classification_label_space is None
    scores = model.compute_classification(
        ["cut copper pipes"], list(world[0].taxonomy.label), ModelInputType.SKILL_NAME
    )
    assert world[0].taxonomy.label[int(scores.argmax())] == "cut copper pipes"
    assert world[0].taxonomy.uri[0].startswith(BASE)
