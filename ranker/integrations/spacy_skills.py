"""A spaCy component: `nlp.add_pipe("esco_skills")` once this module is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from ranker.core.errors import PrerequisiteError
from ranker.core.types import Tagging

try:
    from spacy.language import Language
    from spacy.tokens import Doc
except ImportError as error:
    raise PrerequisiteError("spacy is not installed; run: pip install spacy") from error


class TagsDocuments(Protocol):
    """What the component needs of a ranker."""

    def tag(self, documents: list[str], *, top_k: int | None, min_probability: float | None) -> list[Tagging]:
        """Return one tagging per document."""


class SkillTagger:
    """Give each document `doc._.skills` and a group of spans.

    `doc._.skills` is a list of dicts, best first, as `TaggedSkill.to_dict` makes them. The span group holds a span per
    skill and sentence that speaks for it, widened to whole tokens; its label is the skill's, its `kb_id_` the URI.
    """

    def __init__(
        self, ranker: TagsDocuments, *, top_k: int | None, min_probability: float | None, spans_key: str
    ) -> None:
        self.ranker = ranker
        self.top_k = top_k
        self.min_probability = min_probability
        self.spans_key = spans_key
        if not Doc.has_extension("skills"):
            Doc.set_extension("skills", default=[])

    def __call__(self, doc: Doc) -> Doc:
        """Tag one document."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 32) -> Iterator[Doc]:
        """Tag documents as they come, a batch at a time."""
        waiting = iter(stream)
        while docs := list(islice(waiting, batch_size)):
            taggings = self.ranker.tag(
                [doc.text for doc in docs], top_k=self.top_k, min_probability=self.min_probability
            )
            for doc, tagging in zip(docs, taggings, strict=True):
                doc._.skills = [skill.to_dict() for skill in tagging.skills]
                spans = (
                    doc.char_span(at.start, at.end, label=skill.label, kb_id=skill.uri, alignment_mode="expand")
                    for skill in tagging.skills
                    for at in skill.spans
                )
                doc.spans[self.spans_key] = [span for span in spans if span is not None]
                yield doc


@Language.factory(
    "esco_skills",
    assigns=["doc._.skills", "doc.spans"],
    default_config={"system": "embedded", "top_k": None, "min_probability": None, "spans_key": "esco_skills"},
)
def create(
    nlp: Any, name: str, system: str, top_k: int | None, min_probability: float | None, spans_key: str
) -> SkillTagger:
    """Load a system by config name or path and wrap it as a component."""
    from ranker.pipeline import SkillRanker

    return SkillTagger(SkillRanker.load(system), top_k=top_k, min_probability=min_probability, spans_key=spans_key)
