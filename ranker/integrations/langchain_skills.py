"""A LangChain retriever: a text about work in, skills as documents out."""

from __future__ import annotations

from typing import Any

from ranker.core.errors import PrerequisiteError
from ranker.pipeline import SkillRanker

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise PrerequisiteError("langchain-core is not installed; run: pip install langchain-core") from error


class SkillRetriever(BaseRetriever):
    """Retrieve the skills that a text asks for.

    A document's `id` is the skill's URI, its text the label and the description, its metadata `label`, `score`,
    `probability` and `evidence`. A text without skills, such as an empty one, gives no documents.

    Attributes
    ----------
    ranker : SkillRanker
        A loaded system.
    top_k : int
        Documents per text, at most.
    min_probability : float, optional
        Leave out skills whose probability of grade >= 2 is lower.
    """

    ranker: Any  # a SkillRanker, or what ranks and has a taxonomy like one
    top_k: int = 10
    min_probability: float | None = None

    @classmethod
    def load(cls, system: str = "embedded", **options: Any) -> SkillRetriever:
        """Load a system by config name or path; options are the retriever's own."""
        return cls(ranker=SkillRanker.load(system), **options)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        ranking = self.ranker.rank([query], top_k=self.top_k, min_probability=self.min_probability)[0]
        taxonomy = self.ranker.taxonomy
        documents = []
        for skill in ranking.skills:
            about = taxonomy.description[taxonomy.index[skill.uri]]
            metadata = skill.to_dict()
            documents.append(
                Document(id=metadata.pop("uri"), page_content=f"{skill.label}. {about}".strip(), metadata=metadata)
            )
        return documents
