"""Systems as YAML: what is valid comes out as given, and each mistake is named with what is allowed."""

import copy

import pytest

from ranker.core import config as module
from ranker.core.config import load_config, parse_config
from ranker.core.errors import ArgumentError, ResourceError

GOOD = {
    "name": "demo",
    "taxonomy": {"source": "official", "path": "esco.zip", "extension": None},
    "lanes": [
        {"name": "bm25", "family": "bm25", "fields": ["label"]},
        {"name": "dense", "family": "dense", "model": "m"},
    ],
    "pool": {"size": 50, "weights": {"bm25": 1, "dense": 0.5}},
    "columns": [{"name": "ce", "family": "encoder", "depth": 20, "model": "c"}],
    "fusion": {"checkpoint": "bag", "features": ["bm25_z"]},
    "strip_bullets": False,
    "top_k": 10,
}


def changed(**changes):
    value = copy.deepcopy(GOOD)
    for key, item in changes.items():
        if item is ...:
            del value[key]
        else:
            value[key] = item
    return value


def test_a_valid_config_comes_out_as_given():
    config = parse_config(GOOD)
    assert config.name == "demo"
    assert config.taxonomy.path == "esco.zip"
    assert [lane.name for lane in config.lanes] == ["bm25", "dense"]
    assert config.lanes[1].options == {"model": "m"}
    assert config.columns[0].depth == 20
    assert config.columns[0].options == {"model": "c"}
    assert config.pool.weights == {"bm25": 1, "dense": 0.5}
    assert config.fusion.features == ("bm25_z",)
    assert (config.strip_bullets, config.top_k) == (False, 10)


def test_defaults():
    config = parse_config({"name": "d", "lanes": [{"name": "a", "family": "bm25"}], "pool": {"weights": {"a": 1.0}}})
    assert config.taxonomy.source == "auto"
    assert (config.pool.size, config.top_k, config.strip_bullets) == (500, 100, True)
    assert config.columns == ()
    assert config.fusion.checkpoint is None


def test_parsing_leaves_the_mapping_alone():
    value = copy.deepcopy(GOOD)
    parse_config(value)
    assert value == GOOD


def test_the_digest_covers_what_changes_a_feature_and_nothing_else():
    base = parse_config(GOOD).digest
    same = [changed(name="x"), changed(taxonomy={"source": "wheels"}), changed(fusion={}), changed(top_k=5)]
    other = [
        changed(strip_bullets=True),
        changed(pool={"size": 51, "weights": {"bm25": 1, "dense": 0.5}}),
        changed(pool={"size": 50, "weights": {"bm25": 1, "dense": 0.6}}),
        changed(columns=...),
        changed(lanes=[{**GOOD["lanes"][0], "fields": ["alt"]}, GOOD["lanes"][1]]),
    ]
    assert {parse_config(value).digest for value in same} == {base}
    digests = {parse_config(value).digest for value in other}
    assert len(digests) == len(other)
    assert base not in digests


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "expected a mapping"),
        ([GOOD], "expected a mapping"),
        (changed(colour="red"), "unknown key 'colour'; known keys: name, lanes, pool"),
        (changed(pool={"size": 5, "weights": {"bm25": 1}, "depth": 3}), "pool: unknown key 'depth'; known keys: size"),
        (changed(taxonomy={"sauce": "x"}), "taxonomy: unknown key 'sauce'; known keys: source, path, extension"),
        (changed(fusion={"bag": "x"}), "fusion: unknown key 'bag'; known keys: checkpoint, features"),
        (changed(name=...), "name"),
        (changed(lanes=...), "at least one lane"),
        (changed(lanes=[]), "at least one lane"),
        (changed(lanes={"name": "a"}), "lanes must be a list"),
        (changed(lanes=["bm25"]), r"lanes\[0\]: expected a mapping, found str"),
        (changed(lanes=[{"family": "bm25"}]), r"lanes\[0\].*name"),
        (changed(lanes=[{"name": "a"}]), r"lanes\[0\].*family"),
        (changed(lanes=[{"name": 3, "family": "bm25"}]), r"lanes\[0\]: name: expected str, found 3"),
        (
            changed(columns=[{"name": "ce", "family": "x", "depth": "9"}]),
            r"columns\[0\]: depth: expected int, found '9'",
        ),
        (changed(columns=[{"name": "bm25", "family": "x"}]), "names must differ.*bm25"),
        (changed(lanes=[GOOD["lanes"][0]] * 2), "names must differ"),
        (changed(pool=...), "pool weights must name lanes .bm25, dense.; found none"),
        (changed(pool={"weights": {}}), "found none"),
        (changed(pool={"weights": {"other": 1}}), r"found \['other'\]"),
        (changed(pool={"weights": None}), "pool: weights: expected dict"),
        (changed(pool={"weights": {"bm25": "1"}}), "pool: weights: expected dict"),
        (changed(pool={"weights": {"bm25": float("nan")}}), "pool: weights: expected dict"),
        (changed(pool={"weights": {"bm25": True}}), "pool: weights: expected dict"),
        (changed(pool={"size": "many", "weights": {"bm25": 1}}), "pool: size: expected int, found 'many'"),
        (changed(pool={"size": 0, "weights": {"bm25": 1}}), "at least 1"),
        (changed(pool=[]), "pool: expected a mapping, found list"),
        (changed(top_k=0), "at least 1"),
        (changed(top_k=2.5), "top_k: expected int, found 2.5"),
        (changed(top_k=True), "top_k: expected int, found True"),
        (changed(strip_bullets="yes"), "strip_bullets: expected bool, found 'yes'"),
        (changed(fusion={"features": "bm25_z"}), "fusion: features: expected"),
        (changed(fusion={"features": [1]}), "fusion: features: expected"),
        (changed(taxonomy={"path": 3}), "taxonomy: path: expected str, found 3"),
    ],
)
def test_each_mistake_is_named(value, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        parse_config(value, where="demo.yaml")
    assert str(caught.value).startswith("demo.yaml")
    assert caught.value.exit_code == 2


def test_load_by_name_and_by_path(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONFIG_DIR", tmp_path)
    text = "name: a\nlanes:\n  - {name: x, family: bm25}\npool:\n  weights: {x: 1}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert load_config("a") == load_config(tmp_path / "a.yaml")
    with pytest.raises(ResourceError, match="no config b; there are: a; or give the path"):
        load_config("b")
    with pytest.raises(ResourceError, match="no config"):
        load_config(tmp_path / "missing.yaml")
    (tmp_path / "bad.yaml").write_text("name: [")
    with pytest.raises(ArgumentError, match=r"bad\.yaml is not valid YAML"):
        load_config("bad")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ArgumentError, match="not valid YAML"):
        load_config("latin")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ArgumentError, match=r"empty\.yaml: expected a mapping"):
        load_config("empty")


@pytest.mark.parametrize("name", sorted(path.stem for path in module.CONFIG_DIR.glob("*.yaml")) or [None])
def test_the_configs_of_the_project_are_valid(name):
    if name is None:
        pytest.skip("there are no configs yet")
    assert load_config(name).lanes
