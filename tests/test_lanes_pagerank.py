"""Personalised PageRank against networkx, and the links it walks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_lanes_contract import toy

from lanes.lexical import BM25Lane
from lanes.pagerank import PageRankLane, edges, transitions
from ranker.core.errors import ArgumentError, ResourceError
from ranker.core.official import official_taxonomy
from ranker.core.taxonomy import Skill, Taxonomy

URI = "http://data.europa.eu/esco/skill/"
JOB = "http://data.europa.eu/esco/occupation/"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))


def write_official(folder: Path) -> Path:
    folder.mkdir()
    skills = ["conceptUri,preferredLabel,altLabels,description", *(f"{URI}{i},skill {i},," for i in range(12))]
    groups = [f"KnowledgeSkillCompetence,{URI}{i},SkillGroup,{URI}S{i % 3}.{i % 2}" for i in range(10)]
    broader = [f"KnowledgeSkillCompetence,{URI}{i},KnowledgeSkillCompetence,{URI}{i // 2}" for i in (3, 6, 7)]
    broader.append(f"KnowledgeSkillCompetence,{URI}1,KnowledgeSkillCompetence,{URI}3")  # and back: one edge
    jobs = [f"{JOB}{i % 4},{'essential' if i % 2 else 'optional'},skill/competence,{URI}{i}" for i in range(10)]
    files = {
        "skills_en.csv": skills,
        "broaderRelationsSkillPillar_en.csv": ["conceptType,conceptUri,broaderType,broaderUri", *groups, *broader],
        "occupationSkillRelations_en.csv": ["occupationUri,relationType,skillType,skillUri", *jobs, *jobs[:1]],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_links_of_official_csvs_survive_the_cache_and_leave_the_fingerprint(tmp_path: Path) -> None:
    folder = write_official(tmp_path / "esco")
    full = official_taxonomy(folder)
    row = full.index[f"{URI}3"]
    assert full.links[row] == (("broader", f"{URI}1"), ("essential", f"{JOB}3"))
    assert full.links[full.index[f"{URI}11"]] == ()
    full.save(tmp_path / "full.json.gz")
    assert Taxonomy.load(tmp_path / "full.json.gz").links == full.links
    assert full.extend([Skill(f"{URI}3", "", ("another name",))]).links == full.links
    (folder / "occupationSkillRelations_en.csv").unlink()
    assert official_taxonomy(folder).fingerprint == full.fingerprint
    plain = toy()
    plain.save(tmp_path / "plain.json.gz")
    assert Taxonomy.load(tmp_path / "plain.json.gz") == plain
    assert plain.links == ((),) * 36


def test_edges_by_hand() -> None:
    taxonomy = Taxonomy.from_skills(
        [
            Skill("a", "x", groups=("S1.2",), links=(("broader", "b"), ("essential", "job"))),
            Skill("b", "y", groups=("S1.2", "K011"), links=(("optional", "job"),)),
        ]
    )
    assert edges(taxonomy, ["group"]) == [("a", "S1.2"), ("S1.2", "S1"), ("b", "S1.2"), ("b", "K011"), ("K011", "K01")]
    assert edges(taxonomy, ["broader", "optional"]) == [("a", "b"), ("b", "job")]


@pytest.mark.parametrize(
    ("relations", "damping"),
    [
        (["group"], 0.85),
        (["group", "broader", "essential", "optional"], 0.85),
        (["broader"], 0.99),
        (["essential"], 0.3),
    ],
)
def test_equals_networkx(tmp_path: Path, relations: list[str], damping: float) -> None:
    networkx = pytest.importorskip("networkx")
    taxonomy = official_taxonomy(write_official(tmp_path / "esco"))
    lane = PageRankLane("x", base_lane=BM25Lane("base"), top=5, damping=damping, relations=relations, sharpness=0.5)
    lane.fit(taxonomy)
    scores = np.random.default_rng(3).normal(size=(3, 12)).astype(np.float32)
    graph = networkx.Graph()
    graph.add_nodes_from(taxonomy.uri)
    graph.add_edges_from(edges(taxonomy, relations))
    for row, found in zip(scores, lane.smooth(scores), strict=True):
        z = (row - row.mean()) / row.std()
        seeds = np.argsort(-row)[:5]
        start = {taxonomy.uri[i]: float(np.exp(0.5 * (z[i] - z.max()))) for i in seeds}
        ranks = networkx.pagerank(graph, alpha=damping, personalization=start, tol=1e-12, max_iter=5_000)
        np.testing.assert_allclose(found, [ranks[uri] for uri in taxonomy.uri], atol=1e-6)
        assert found.max() > 0.05


def test_the_walk_lifts_the_seeds_group() -> None:
    lane = PageRankLane("x", base_lane=BM25Lane("base"), top=1)
    lane.fit(toy())
    scores = np.zeros((1, 36), dtype=np.float32)
    scores[0, 7] = 1
    found = lane.smooth(scores)[0]
    near = [i for i, groups in enumerate(toy().groups) if i != 7 and set(groups) & set(toy().groups[7])]
    far = [i for i in range(36) if not {g[:2] for g in toy().groups[i]} & {g[:2] for g in toy().groups[7]}]
    assert found.argmax() == 7
    assert min(found[near]) > max(found[far])


def test_a_taxonomy_without_groups_ranks_by_the_seeds() -> None:
    taxonomy = Taxonomy.from_skills([Skill("urn:0", "a"), Skill("urn:1", "b")])
    assert transitions(taxonomy, ["group"]).nnz == 0
    lane = PageRankLane("x", base_lane=BM25Lane("base"), sharpness=0.0, top=1)
    lane.fit(taxonomy)
    assert lane.smooth(np.array([[1.0, 2.0]], dtype=np.float32)).tolist() == [[0.0, 1.0]]


def test_relations_that_are_not_there() -> None:
    with pytest.raises(ArgumentError, match="group, broader, essential, optional"):
        PageRankLane("x", base_lane=BM25Lane("base"), relations=["narrower"])
    lane = PageRankLane("x", base_lane=BM25Lane("base"), relations=["group", "essential"])
    with pytest.raises(ResourceError, match="no essential relations; build it from a folder or zip"):
        lane.fit(toy())
