"""The spaCy component and the LangChain retriever, with the real libraries, and the documented examples."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from small_world import write_config, write_esco

from ranker import SkillRanker
from ranker.core.errors import PrerequisiteError

DOCUMENT = "You weld steel frames.\nYou repair car engines with care, and sell garden tools."


@pytest.fixture(scope="module")
def system(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("world")
    return str(write_config(folder / "small.yaml", write_esco(folder / "esco"), size=40))


def test_spacy_component(system):
    spacy = pytest.importorskip("spacy")
    import ranker.integrations.spacy_skills  # noqa: F401  registers the factory

    nlp = spacy.blank("en")
    nlp.add_pipe("esco_skills", config={"system": system, "top_k": 3})
    doc = nlp(DOCUMENT)
    expected = SkillRanker.load(system).tag([DOCUMENT], top_k=3)[0]
    assert expected.skills
    assert doc._.skills == [skill.to_dict() for skill in expected.skills]
    spans = [(span.label_, span.kb_id_, span.start_char, span.end_char) for span in doc.spans["esco_skills"]]
    assert spans == [(skill.label, skill.uri, at.start, at.end) for skill in expected.skills for at in skill.spans]
    texts = [DOCUMENT, "", "You plan roof tiles"]
    assert [d._.skills for d in nlp.pipe(texts, batch_size=2)] == [nlp(text)._.skills for text in texts]
    assert nlp("")._.skills == []
    again = spacy.tokens.Doc(nlp.vocab).from_bytes(doc.to_bytes())
    assert [span.kb_id_ for span in again.spans["esco_skills"]] == [span.kb_id_ for span in doc.spans["esco_skills"]]
    assert again._.skills == doc._.skills


def test_spacy_pipeline_is_saved_and_loaded(system, tmp_path):
    spacy = pytest.importorskip("spacy")
    import ranker.integrations.spacy_skills  # noqa: F401

    nlp = spacy.blank("en")
    nlp.add_pipe("esco_skills", config={"system": system, "top_k": 2})
    nlp.to_disk(tmp_path / "nlp")
    assert spacy.load(tmp_path / "nlp")(DOCUMENT)._.skills == nlp(DOCUMENT)._.skills


def test_langchain_retriever(system):
    pytest.importorskip("langchain_core")
    from ranker.integrations.langchain_skills import SkillRetriever

    retriever = SkillRetriever.load(system, top_k=4)
    found = retriever.invoke("we weld steel frames")
    skills = SkillRanker.load(system).rank(["we weld steel frames"], top_k=4)[0].skills
    assert [(document.id, document.metadata) for document in found] == [
        (skill.uri, {key: value for key, value in skill.to_dict().items() if key != "uri"}) for skill in skills
    ]
    assert found[0].page_content == "weld steel frames."
    assert retriever.invoke("") == []
    assert [[d.id for d in docs] for docs in retriever.batch(["cut roof tiles", ""])] == [
        [d.id for d in retriever.invoke("cut roof tiles")], [],
    ]  # fmt: skip
    chain = retriever | (lambda documents: documents[0].metadata["label"])
    assert chain.invoke("sell garden tools") == "sell garden tools"


@pytest.mark.parametrize(("module", "library"), [("spacy_skills", "spacy.language"),
                                                 ("langchain_skills", "langchain_core.callbacks")])  # fmt: skip
def test_a_missing_library_is_named(monkeypatch, module, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"ranker.integrations.{module}", raising=False)
    with pytest.raises(PrerequisiteError, match="run: pip install"):
        __import__(f"ranker.integrations.{module}")


def test_the_documented_examples_run(system):
    pytest.importorskip("spacy")
    pytest.importorskip("langchain_core")
    text = (Path(__file__).resolve().parents[1] / "docs" / "integrations.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(example.replace('"embedded"', repr(system)), {})
