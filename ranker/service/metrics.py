"""What Prometheus reads, in a registry of the app's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of requests, texts, batches and stages; `waiting` is asked at each reading."""

    def __init__(self, waiting: Callable[[], int], ready: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = Counter(
            "ranker_requests", "Requests answered.", ("route", "method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "ranker_request_seconds", "Seconds to answer.", ("route",), buckets=SECONDS, registry=self.registry
        )
        self.texts = Counter("ranker_texts", "Texts and documents accepted.", ("route",), registry=self.registry)
        self.left = Counter("ranker_clients_left", "Requests whose client left first.", registry=self.registry)
        self.batch = Histogram("ranker_batch_texts", "Texts of a batch.", buckets=TEXTS, registry=self.registry)
        self.stages = Counter("ranker_stage_seconds", "Seconds spent by stage.", ("stage",), registry=self.registry)
        queue = Gauge("ranker_queue_texts", "Texts accepted and not yet answered.", registry=self.registry)
        queue.set_function(waiting)
        up = Gauge("ranker_ready", "Whether the service takes requests.", registry=self.registry)
        up.set_function(ready)

    def batch_done(self, cost: int, seconds: Mapping[str, float]) -> None:
        """Count a batch; runs in the ranker's thread."""
        self.batch.observe(cost)
        for stage, value in seconds.items():
            self.stages.labels(stage).inc(max(0.0, value))

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return bytes(generate_latest(self.registry))
