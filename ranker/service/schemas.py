"""Requests and answers as the OpenAPI description gives them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool


def _whole_text(value: Any) -> Any:
    """Return a text whose halves of a cut emoji are "?", as many characters as before: UTF-8 cannot hold them."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_whole_text)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopK = Annotated[int, Field(ge=1, le=1000, strict=True)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SkillsRequest(_Request):
    """Texts whose skills are asked for."""

    texts: list[Text] = Field(min_length=1, description="lines or short texts; an empty one gets an empty ranking")
    top_k: TopK | None = Field(None, description="at most this many skills per text")
    min_probability: Probability | None = Field(None, description="leave out skills less probable than this")


class TagRequest(_Request):
    """Whole documents whose skills are asked for."""

    documents: list[Text] = Field(min_length=1, description="vacancies, CVs, job descriptions")
    top_k: TopK | None = Field(None, description="at most this many skills per document")
    min_probability: Probability | None = Field(None, description="leave out skills less probable than this")


class TextDocument(BaseModel):
    """A document to rerank."""

    text: Text


class RerankRequest(BaseModel):
    """The shape of Cohere's and Jina's rerankers; fields of theirs that are not here are ignored."""

    query: Text
    documents: list[Text | TextDocument] = Field(min_length=1, description="texts, or URIs or labels of skills")
    top_n: TopK | None = Field(None, description="at most this many results")
    return_documents: StrictBool = Field(False, description="whether results repeat the documents")
    model: Text | None = Field(None, description="ignored: a service holds one system")


class TaxonomyInfo(BaseModel):
    """Which taxonomy the skills are from."""

    version: str
    language: str
    fingerprint: str
    skills: int


class ModelInfo(BaseModel):
    """Which system gave the answer."""

    name: str
    digest: str


class SkillOut(BaseModel):
    """A skill of a text."""

    uri: str
    label: str
    score: float = Field(description="comparable within one ranking only")
    probability: float | None = Field(description="of being asked for or recommendable; null without calibration")
    evidence: dict[str, Any] = Field(description="the name found in the text, and each lane's z-score")


class SpanOut(BaseModel):
    """A stretch of the document in code points; `end` is exclusive."""

    start: int
    end: int


class TaggedSkillOut(SkillOut):
    """A skill of a document."""

    spans: list[SpanOut] = Field(description="sentences that speak for it, the strongest first")


class RankingOut(BaseModel):
    """The skills of one text, best first."""

    skills: list[SkillOut]
    reason: str = Field(description="why there are none; empty where there are")


class TaggingOut(BaseModel):
    """The skills of one document, best first."""

    skills: list[TaggedSkillOut]
    dropped: list[SpanOut] = Field(description="sentences that speak for no skill")
    reason: str = Field(description="why there are none; empty where there are")


class SkillsResponse(BaseModel):
    """A ranking for each text, in their order."""

    results: list[RankingOut]
    taxonomy: TaxonomyInfo
    model: ModelInfo


class TagResponse(BaseModel):
    """A tagging for each document, in their order."""

    results: list[TaggingOut]
    taxonomy: TaxonomyInfo
    model: ModelInfo


class RerankResult(BaseModel):
    """A document's place in the request, and its relevance."""

    index: int
    relevance_score: float
    document: TextDocument | None = None


class RerankResponse(BaseModel):
    """Documents, most relevant first."""

    id: str
    results: list[RerankResult]
    scored_by: Literal["ranker", "encoder"]
    model: ModelInfo


class SkillCard(BaseModel):
    """What the taxonomy says of a skill."""

    uri: str
    label: str
    alt_labels: list[str]
    description: str
    groups: list[str]
    taxonomy: TaxonomyInfo


class InfoResponse(BaseModel):
    """What runs here, and its limits."""

    version: str
    model: ModelInfo
    taxonomy: TaxonomyInfo
    backbones: dict[str, int] = Field(description="parameters of each neural model")
    limits: dict[str, float]
    stages: list[str]


class Health(BaseModel):
    """State of the service."""

    status: str


class ErrorOut(BaseModel):
    """An error. `limit` names the setting that was exceeded."""

    error: str
    error_type: str
    request_id: str
    limit: str | None = None
    allowed: int | None = None
    found: int | None = None
