"""The taxonomy: fixed order, fingerprint, files that come back as they were, extensions; and the command over it."""

import dataclasses
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranker.core.cli import run
from ranker.core.errors import InputError, ResourceError
from ranker.core.taxonomy import Skill, Taxonomy, read_extension
from ranker.taxonomy import difference, main

B = Skill("u:b", "manage staff", ("lead staff", "direct staff"), "Lead people at work.", ("S4.8.1",))
A = Skill("u:a", "C++", ("C plus plus",), "A language.", ("K0613",))
C = Skill("u:c", "manage staff")


def taxonomy(*skills, **facts):
    return Taxonomy.from_skills(skills or (B, A, C), **{"version": "1.1.0", "source": "test", **facts})


def test_rows_are_sorted_by_uri_and_aligned():
    t = taxonomy()
    assert t.uri == ("u:a", "u:b", "u:c")
    assert t.label == ("C++", "manage staff", "manage staff")  # two skills may share a label
    assert t.alt_labels == (("C plus plus",), ("lead staff", "direct staff"), ())
    assert t.description == ("A language.", "Lead people at work.", "")
    assert t.groups == (("K0613",), ("S4.8.1",), ())
    assert (len(t), t.index["u:b"]) == (3, 1)
    assert t.skills() == [A, B, C]


def test_it_cannot_be_changed():
    t = taxonomy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        t.label = ()
    with pytest.raises(TypeError):
        t.label[0] = "x"
    with pytest.raises(dataclasses.FrozenInstanceError):
        t.skills()[0].label = "x"


def test_alt_labels_lose_repeats_the_label_and_nothing_else():
    t = taxonomy(Skill("u", "x", ("b", "x", "a", "b", "", "X")))
    assert t.alt_labels == (("b", "a", "X"),)


def test_one_skill_is_a_taxonomy():
    t = taxonomy(A)
    assert len(t) == 1
    assert t.find("c++") == [0]


@pytest.mark.parametrize(
    ("skills", "words"),
    [
        ((), "no skill"),
        ((A, B, dataclasses.replace(A, label="other")), "u:a stands twice in test"),
        ((Skill("", "x"),), "neither may be empty"),
        ((Skill("u", " "),), "neither may be empty"),
    ],
)
def test_what_is_no_taxonomy_is_refused(skills, words):
    with pytest.raises(InputError, match=words):
        Taxonomy.from_skills(skills, source="test")


def test_the_fingerprint_depends_on_all_text_and_on_nothing_else():
    t = taxonomy()
    same = [taxonomy(A, B, C), taxonomy(source="elsewhere"), taxonomy(version="2")]
    assert {x.fingerprint for x in same} == {t.fingerprint}
    changes = [
        {"uri": "u:z"},
        {"label": "lead staff"},
        {"alt_labels": ("lead staff",)},
        {"alt_labels": ("direct staff", "lead staff")},
        {"description": ""},
        {"groups": ()},
        {"alt_labels": ("lead staff direct staff",)},
    ]
    others = [taxonomy(A, dataclasses.replace(B, **change), C) for change in changes]
    others += [taxonomy(A, B), taxonomy(language="de")]
    prints = {x.fingerprint for x in others}
    assert len(prints) == len(others)
    assert t.fingerprint not in prints


def test_the_fingerprint_is_the_same_everywhere():
    assert taxonomy().fingerprint == "3b518a1f391cce3a"


def test_find_prefers_uri_then_label_then_alt_label():
    t = taxonomy(A, B, C, Skill("http://x/skill/123", "lead staff"))
    assert t.find("u:b") == [t.index["u:b"]]
    assert t.find("123") == [t.index["http://x/skill/123"]]
    assert t.find(" Manage  STAFF ") == [t.index["u:b"], t.index["u:c"]]
    assert t.find("lead staff") == [t.index["http://x/skill/123"]]
    assert t.find("Direct staff") == [t.index["u:b"]]
    assert t.find("nothing") == []
    assert t.find("") == []


def test_saving_and_loading_change_nothing(tmp_path):
    t = taxonomy(A, B, C, Skill("u:d", "caf\u00e9 \U0001f44d \u7ba1\u7406", ("a\nb",), 'quote " and \\'))
    t.save(tmp_path / "a.json.gz")
    back = Taxonomy.load(tmp_path / "a.json.gz")
    assert back == t
    assert (back.source, back.fingerprint) == ("test", t.fingerprint)
    back.save(tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SKILLS = st.lists(
    st.builds(
        Skill,
        TEXT.filter(bool),
        TEXT.filter(str.strip),
        st.lists(TEXT, max_size=3).map(tuple),
        TEXT,
        st.lists(TEXT, max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda skill: skill.uri,
)


@settings(max_examples=50, deadline=None)
@given(SKILLS)
def test_any_text_comes_back(tmp_path_factory, skills):
    file = tmp_path_factory.mktemp("t") / "t.json.gz"
    t = Taxonomy.from_skills(skills)
    t.save(file)
    assert Taxonomy.load(file) == t
    assert Taxonomy.from_skills(reversed(skills)).fingerprint == t.fingerprint
    assert list(t.uri) == sorted(t.uri)


def edited(data, **changes):
    value = json.loads(gzip.decompress(data))
    return gzip.compress(json.dumps({**value, **changes}).encode())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-20], "not a readable taxonomy"),
        (lambda data: data[:60] + bytes(20) + data[80:], "not a readable taxonomy"),
        (lambda data: b"", "not a readable taxonomy"),
        (lambda data: b"plain text", "not a readable taxonomy"),
        (lambda data: gzip.compress(b"[]"), "not a readable taxonomy"),
        (lambda data: gzip.compress(b"{}"), "not a readable taxonomy"),
        (lambda data: gzip.compress(b"\xff"), "not a readable taxonomy"),
        (lambda data: edited(data, format=99), "format 99, this version reads 1"),
        (lambda data: edited(data, label=["a", "b", "c"]), "text has fingerprint .*, file states"),
        (lambda data: edited(data, alt_labels=None), "not a readable taxonomy"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, words):
    file = tmp_path / "t.json.gz"
    taxonomy().save(file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=words):
        Taxonomy.load(file)


def test_a_file_that_is_not_there_says_what_to_run(tmp_path):
    for path in (tmp_path / "none.json.gz", tmp_path):
        with pytest.raises(ResourceError, match=r"python -m ranker\.taxonomy build"):
            Taxonomy.load(path)


def extension(tmp_path, text):
    file = tmp_path / "extra.csv"
    file.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return file


def test_an_extension_adds_skills_and_aliases(tmp_path):
    rows = read_extension(
        extension(
            tmp_path,
            "\ufeffid,label,alt_labels,description\n"
            'u:b,,"lead staff| head a team \nboss people",\n'
            "own:1,brew cold coffee,nitro brewing,Make it slowly.\n"
            "u:a,C plus,,Changed.\n",
        )
    )
    t = taxonomy().extend(rows)
    assert t.uri == ("own:1", "u:a", "u:b", "u:c")
    assert t.alt_labels[t.index["u:b"]] == ("lead staff", "direct staff", "head a team", "boss people")
    assert t.label[t.index["u:b"]] == "manage staff"
    assert (t.label[1], t.description[1]) == ("C plus", "Changed.")
    assert t.groups[t.index["u:b"]] == ("S4.8.1",)
    assert (t.version, t.source) == ("1.1.0", "test + extension")
    assert t.fingerprint != taxonomy().fingerprint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,label\nx,y\n", "columns missing: alt_labels, description"),
        ("", "columns missing"),
        ("id,label,alt_labels,description\n,x,,\n", "line 2: no id"),
        (b"id,label,alt_labels,description\n\xff,x,,\n", "not a UTF-8 CSV"),
    ],
)
def test_an_extension_that_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(InputError, match=words):
        read_extension(extension(tmp_path, text))


def test_an_extension_that_is_not_there(tmp_path):
    with pytest.raises(ResourceError, match="no extension file"):
        read_extension(tmp_path / "none.csv")


def test_a_new_skill_without_a_label_is_refused(tmp_path):
    rows = read_extension(extension(tmp_path, "id,label,alt_labels,description\nown:1,,alias,\n"))
    with pytest.raises(InputError, match="own:1"):
        taxonomy().extend(rows)


def test_a_short_row_of_an_extension_counts_as_empty_cells(tmp_path):
    (row,) = read_extension(extension(tmp_path, "id,label,alt_labels,description\nown:1,x\n"))
    assert row == Skill("own:1", "x")


def changed_taxonomy():
    return taxonomy(
        dataclasses.replace(A, label="C++ (computer programming)", alt_labels=("C plus plus", "cpp")),
        dataclasses.replace(B, alt_labels=("direct staff", "lead staff"), description="", groups=()),
        Skill("u:d", "new"),
    )


def test_difference():
    assert difference(taxonomy(), changed_taxonomy()) == {
        "added": ["u:d"],
        "removed": ["u:c"],
        "relabelled": ["u:a"],
        "alt_labels": ["u:a"],
        "descriptions": ["u:b"],
        "groups": ["u:b"],
    }
    assert not any(difference(taxonomy(), taxonomy()).values())


@pytest.fixture
def files(tmp_path):
    taxonomy().save(tmp_path / "a.json.gz")
    changed_taxonomy().save(tmp_path / "b.json.gz")
    return str(tmp_path / "a.json.gz"), str(tmp_path / "b.json.gz")


def test_diff_command(files, capsys):
    assert run(main, ["diff", *files, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["counts"]["added"] == 1
    assert value["relabelled"] == ["u:a"]
    assert (value["a"]["skills"], value["b"]["skills"]) == (3, 3)
    assert run(main, ["diff", *files]) == 0
    out = capsys.readouterr().out
    assert "u:a  'C++' -> 'C++ (computer programming)'" in out
    assert "+'cpp'" in out
    assert "u:d  new" in out
    assert "u:c  manage staff" in out
    assert "'Lead people at work.' -> ''" in out


def test_show_command(files, capsys):
    assert run(main, ["show", "lead staff", "--taxonomy", files[0], "--json"]) == 0
    (skill,) = json.loads(capsys.readouterr().out)["skills"]
    assert (skill["uri"], skill["alt_labels"]) == ("u:b", ["lead staff", "direct staff"])
    assert run(main, ["show", "manage staff", "--taxonomy", files[0]]) == 0
    out = capsys.readouterr().out
    assert "u:b" in out
    assert "u:c" in out
    assert "(no description)" in out
    assert run(main, ["show", "nothing", "--taxonomy", files[0], "--json"]) == 4
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exit_code"] == 4
    assert "no skill 'nothing' among the 3" in captured.err


def test_build_command(files, tmp_path, capsys):
    extra = extension(tmp_path, "id,label,alt_labels,description\nown:1,x,,\n")
    out = tmp_path / "deep" / "c.json.gz"
    arguments = ["build", "--path", files[0], "--extension", str(extra), "--out", str(out), "--json"]
    assert run(main, arguments) == 0
    value = json.loads(capsys.readouterr().out)
    built = Taxonomy.load(out)
    assert (value["skills"], value["fingerprint"], value["file"]) == (4, built.fingerprint, str(out))
    assert value["alt_labels"] == 3
    assert run(main, ["build", "--path", files[0]]) == 2
    assert "--out" in capsys.readouterr().err
    assert run(main, ["build", "--path", str(tmp_path / "none.zip"), "--out", str(out)]) == 4
    assert Taxonomy.load(out) == built


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "python -m ranker.taxonomy diff" in capsys.readouterr().out
