"""What of a skill is read: texts by view, and the packaged sentences about who uses a skill."""

from __future__ import annotations

from ranker.core import views
from ranker.core.taxonomy import Skill, Taxonomy
from ranker.core.views import TEXT_VIEWS, uses, view_identity, view_texts
from ranker.core.wheels import URI, packaged_labels


def test_every_packaged_skill_has_a_user_and_an_advert() -> None:
    assert set(uses()) == {URI + key for key in packaged_labels()}
    for who, how in uses().values():
        assert 3 < len(who) < 200
        assert 3 < len(how) < 250
        assert who == " ".join(who.split())
        assert "\t" not in how
    assert len({how for _, how in uses().values()}) > 0.99 * len(uses())


def test_the_rows_belong_to_the_labels_they_stand_beside() -> None:
    by_label = {label: uses()[URI + key] for key, label in packaged_labels().items()}
    for label, word in (("perform surgical procedures on animals", "veterinar"), ("tend to elderly people", "care"),
                        ("Haskell", "programm"), ("milk animals", "dairy"), ("civil law", "law")):
        assert word in " ".join(by_label[label]).lower(), label


def test_views_of_known_and_of_private_skills() -> None:
    uri = next(iter(uses()))
    who, how = uses()[uri]
    taxonomy = Taxonomy.from_skills(
        [Skill(uri, "known", ("other",), "What it is."), Skill("urn:1", "mine", (), "Ours."), Skill("urn:2", "bare")]
    )
    assert {view: view_texts(taxonomy, view) for view in TEXT_VIEWS} == {
        "label": ["known", "mine", "bare"],
        "label_alt": ["known\nother", "mine", "bare"],
        "description": ["What it is.", "Ours.", ""],
        "label_description": ["known. What it is.", "mine. Ours.", "bare"],
        "who": [who, "mine. Ours.", "bare"],
        "use": [f"known. {how}. {who}", "mine. Ours.", "bare"],
    }


def test_english_lines_are_not_read_into_another_language() -> None:
    skill = Skill(next(iter(uses())), "Melken", (), "Kühe melken.")
    german = Taxonomy.from_skills([skill], language="de")
    assert view_texts(german, "use") == view_texts(german, "who") == ["Melken. Kühe melken."]


def test_caches_know_views_by_the_words_they_are_filled_with(monkeypatch) -> None:
    before = [view_identity(view) for view in TEXT_VIEWS]
    assert before[:4] == list(TEXT_VIEWS[:4])
    assert all("@" in identity for identity in before[4:])
    monkeypatch.setattr(views, "_uses", lambda: b"other words")
    after = [view_identity(view) for view in TEXT_VIEWS]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True] * 4 + [False] * 2
