"""The routes."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ranker.service import schemas
from ranker.service.batcher import Answer
from ranker.service.core import LeftError, Service, document_cost
from ranker.service.docs_page import docs_page
from ranker.service.edge import Edge, RefusedError, error_response, limited
from ranker.service.rerank import rerank
from ranker.service.settings import Settings

if TYPE_CHECKING:
    from ranker.pipeline import SkillRanker

ASSETS = {"index.html": "text/html; charset=utf-8", "app.css": "text/css", "app.js": "text/javascript"}
LIMITS = ("queue", "max_batch", "max_body", "max_texts", "max_characters", "window_ms", "deadline")
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorOut, "description": about}
    for status, about in {
        400: "The body is not JSON.",
        401: "A key is needed.",
        413: "The body is too large.",
        415: "The body does not come as application/json.",
        422: "The request is not valid, or exceeds a limit, which is named.",
        429: "The queue is full; Retry-After says when to come again.",
        503: "The service is loading or ending.",
        504: "The request waited longer than its deadline.",
    }.items()
}


def version() -> str:
    """Return the version of the installed distribution."""
    try:
        return metadata.version("graded-ranker")
    except metadata.PackageNotFoundError:
        return "unknown"


def reply(value: object, answer: Answer | None = None, *, status: int = 200) -> Response:
    """Return a value, which may hold dataclasses, as JSON, with the answer's timings in a header."""
    response = Response(orjson.dumps(value), status, media_type="application/json")
    if answer is not None:
        response.headers["Server-Timing"] = ", ".join(f"{k};dur={v:.1f}" for k, v in answer.milliseconds.items())
    return response


def check_texts(texts: Sequence[str], settings: Settings, where: str) -> None:
    """Raise RefusedError where there are too many texts, or one is too long, with the limit."""
    if len(texts) > settings.max_texts:
        message = f"{where}: {len(texts)} in one request; the limit is {settings.max_texts}"
        raise RefusedError(422, "too_many", message, more=limited("max_texts", settings.max_texts, len(texts)))
    for number, text in enumerate(texts):
        if len(text) > settings.max_characters:
            message = f"{where}[{number}]: {len(text)} characters; the limit is {settings.max_characters}"
            more = limited("max_characters", settings.max_characters, len(text))
            raise RefusedError(422, "too_long", message, more=more)


def create_app(
    settings: Settings,
    load: Callable[[], SkillRanker],
    *,
    on_failure: Callable[[Exception], None] = lambda error: None,
) -> FastAPI:
    """Return the service as an ASGI app; its lifespan loads the ranker and, at the end, answers what was accepted.

    Parameters
    ----------
    settings : Settings
    load : callable
        Returns the ranker.
    on_failure : callable
        Called with the error where loading fails.
    """
    service = Service(settings, load, on_failure)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Graded ranker for ESCO skills",
        version=version(),
        description="Free text about work in, the ESCO skills it asks for out, best first.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_middleware(Edge, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-Id"],
            expose_headers=["Retry-After", "Server-Timing", "X-Request-Id"],
        )
    _add_errors(app)
    _add_api(app, service)
    _add_operations(app, service)
    _add_page(app)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        return error_response(error, request.state.request_id)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        # Without what was given: it may be somebody's CV, and it may not be UTF-8.
        errors = error.errors()
        if "json" not in request.headers.get("content-type", "") and request.method == "POST":
            refused = RefusedError(415, "not_json", "send the body with the header Content-Type: application/json")
        elif any(e["type"] == "json_invalid" for e in errors):
            refused = RefusedError(400, "not_json", f"the body is not JSON, from character {errors[0]['loc'][-1]} on")
        else:
            places = [(".".join(str(part) for part in e["loc"][1:]) or "body", e["msg"]) for e in errors[:5]]
            message = "; ".join(f"{place}: {what}" for place, what in places)
            refused = RefusedError(422, "invalid", message.encode("utf-8", "replace").decode())
        return error_response(refused, request.state.request_id)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        kinds = {400: "not_json", 404: "not_found", 405: "method"}
        kind = kinds.get(error.status_code, "http")
        refused = RefusedError(error.status_code, kind, str(error.detail), headers=error.headers or {})
        return error_response(refused, request.state.request_id)

    @app.exception_handler(LeftError)
    async def left(request: Request, error: LeftError) -> Response:
        return Response(status_code=499)  # for the log; nobody reads it


def _add_api(app: FastAPI, service: Service) -> None:
    settings = service.settings

    def note_texts(request: Request, texts: Sequence[str]) -> None:
        if settings.log_texts:
            request.state.log = {**getattr(request.state, "log", {}), "content": list(texts)}

    @app.post("/v1/skills", response_model=schemas.SkillsResponse, responses=ERRORS, tags=["skills"])
    async def skills(request: Request, body: schemas.SkillsRequest) -> Response:
        """Rank the skills of each text, best first. For lines and short texts; whole documents go to /v1/tag."""
        check_texts(body.texts, settings, "texts")
        loaded = service.loaded
        work = functools.partial(loaded.ranker.rank, top_k=body.top_k, min_probability=body.min_probability)
        key = ("rank", body.top_k, body.min_probability)
        answer = await service.answer(request, key, work, body.texts, [1] * len(body.texts))
        note_texts(request, body.texts)
        results = [{"skills": ranking.skills, "reason": ranking.reason} for ranking in answer.results]
        return reply({"results": results, "taxonomy": loaded.taxonomy, "model": loaded.model}, answer)

    @app.post("/v1/tag", response_model=schemas.TagResponse, responses=ERRORS, tags=["skills"])
    async def tag(request: Request, body: schemas.TagRequest) -> Response:
        """Find the skills of whole documents, each with the sentences that speak for it."""
        check_texts(body.documents, settings, "documents")
        loaded = service.loaded
        work = functools.partial(loaded.ranker.tag, top_k=body.top_k, min_probability=body.min_probability)
        key = ("tag", body.top_k, body.min_probability)
        costs = [document_cost(text) for text in body.documents]
        answer = await service.answer(request, key, work, body.documents, costs)
        note_texts(request, body.documents)
        results = [{"skills": t.skills, "dropped": t.dropped, "reason": t.reason} for t in answer.results]
        return reply({"results": results, "taxonomy": loaded.taxonomy, "model": loaded.model}, answer)

    @app.post("/v1/rerank", response_model=schemas.RerankResponse, responses=ERRORS, tags=["rerank"])
    async def rerank_documents(request: Request, body: schemas.RerankRequest) -> Response:
        """Order documents by their relevance to a query.

        Where all of them are URIs or labels of skills, `relevance_score` is the ranker's probability; else it is the
        cosine of the system's sentence encoder. `scored_by` says which.
        """
        documents = [d if isinstance(d, str) else d.text for d in body.documents]
        check_texts([body.query], settings, "query")
        check_texts(documents, settings, "documents")
        loaded = service.loaded

        def work(items: Sequence[list[str]]) -> Sequence[Any]:
            return [rerank(loaded.ranker, loaded.names, body.query, given) for given in items]

        answer = await service.answer(request, object(), work, [documents], [len(documents)])
        note_texts(request, [body.query, *documents])
        (ranked,) = answer.results
        results: list[dict[str, Any]] = [{"index": i, "relevance_score": score} for i, score in ranked.order]
        for result in results if body.return_documents else ():
            result["document"] = {"text": documents[result["index"]]}
        return reply(
            {
                "id": request.state.request_id,
                "results": results[: body.top_n],
                "scored_by": ranked.scored_by,
                "model": loaded.model,
            },
            answer,
        )

    @app.get("/v1/taxonomy/{uri:path}", response_model=schemas.SkillCard, responses=ERRORS | {404: ERRORS[422] | {
        "description": "No such skill."}}, tags=["taxonomy"])  # fmt: skip
    async def skill(uri: str) -> Response:
        """Return a skill by its URI, percent-encoded or not, or by its preferred label."""
        loaded = service.loaded
        found = loaded.names.uri(re.sub(r"^(https?):/+", r"\1://", uri))  # proxies make one slash of two
        if found is None:
            raise RefusedError(404, "not_found", "the taxonomy has no skill of this URI or label")
        taxonomy = loaded.ranker.taxonomy
        row = taxonomy.index[found]
        names = ("uri", "label", "alt_labels", "description", "groups")
        return reply({**{name: getattr(taxonomy, name)[row] for name in names}, "taxonomy": loaded.taxonomy})


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.head("/health/live", include_in_schema=False)
    @app.get("/health/live", response_model=schemas.Health, tags=["operations"])
    async def live() -> Response:
        """Whether the process answers; restart it where not."""
        return reply({"status": "live"})

    @app.head("/health/ready", include_in_schema=False)
    @app.get(
        "/health/ready",
        response_model=schemas.Health,
        responses={503: {"model": schemas.Health, "description": "Loading, draining or failed."}},
        tags=["operations"],
    )
    async def ready() -> Response:
        """Whether requests may be sent here."""
        return reply({"status": service.status}, status=200 if service.status == "ready" else 503)

    @app.get("/info", response_model=schemas.InfoResponse, responses={k: ERRORS[k] for k in (401, 503)},
             tags=["operations"])  # fmt: skip
    async def info() -> Response:
        """Return what runs here, and its limits."""
        loaded = service.loaded
        pipeline = loaded.ranker.pipeline
        return reply(
            {
                "version": version(),
                "model": loaded.model,
                "taxonomy": loaded.taxonomy,
                "backbones": loaded.ranker.backbones(),
                "limits": {name: getattr(service.settings, name) for name in LIMITS},
                "stages": [*pipeline.lanes, *pipeline.columns, *(["fusion"] if pipeline.fusion else [])],
            }
        )

    @app.get("/metrics", response_class=Response, responses={401: ERRORS[401]}, tags=["operations"])
    async def metrics() -> Response:
        """Return counters in Prometheus' text format."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    folder = resources.files("ranker.service").joinpath("page")
    files = {name: folder.joinpath(name).read_bytes() for name in ASSETS}

    def asset(request: Request, name: str) -> Response:
        tag = f'"{hashlib.sha256(files[name]).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(files[name], headers=headers, media_type=ASSETS[name])

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return asset(request, "index.html")

    @app.api_route("/assets/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def assets(request: Request, name: str) -> Response:
        if name not in ASSETS:
            raise RefusedError(404, "not_found", "no such file")
        return asset(request, name)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), media_type="text/html; charset=utf-8")
