"""
``GET /metrics``: what one application has done and holds, in Prometheus text. Needs the extra ``metrics``
(prometheus-client); without it there is nothing at that path, and nothing is counted.

What is over is counted when the engine tells of it. What is there (sessions, open calls, followers, queues) is read off
the sessions when somebody asks, and so are the numbers of events: their path stays as it is. No label has a value that
a client can choose.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiohttp import web

from agent_harness.engine.harness import Harness
from agent_harness.engine.observer import CallOutcome, Observer, SessionEnd, TurnOutcome
from agent_harness.engine.state import SessionState
from agent_harness.errors import NotFound
from agent_harness.protocol.transcript import ClosedBy
from agent_harness.protocol.turns import Turn
from agent_harness.server.malformed import with_expectations
from agent_harness.server.request_ids import route_of

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["Metrics", "add_metrics"]

PREFIX = "agent_harness_"

_METHODS = frozenset(("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"))

_CALL_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 300.0, 600.0)
_FIRST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)


def add_metrics(app: web.Application, harness: Harness) -> None:
    """
    Serve ``/metrics`` of *harness* in *app*, with a registry of its own.
    """
    try:
        metrics = Metrics(harness)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "prometheus_client":
            raise
        app.add_routes(with_expectations([web.get("/metrics", _refuse)]))
        return
    harness.watch.observers.append(metrics)
    app.on_response_prepare.append(metrics.count_answer)
    app.add_routes(with_expectations([web.get("/metrics", metrics.answer)]))


async def _refuse(request: web.Request) -> web.StreamResponse:
    message = "Metrics need an extra on the server: pip install 'agent-harness[metrics]', then start it again."
    raise NotFound(message, code="unknown_path")


class _ByLabels(dict[tuple[str, ...], Any]):
    """
    What counts for one set of a metric's labels. The metric itself finds it too, but takes longer than the counting.
    """

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        found = self[labels] = self._metric.labels(*labels)
        return found


class Metrics(Observer):
    """
    The counters of one application.

    Raises:
        ModuleNotFoundError: prometheus-client is not installed.
    """

    def __init__(self, harness: Harness) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._harness = harness
        self.registry = registry = CollectorRegistry()
        # Of sessions that are gone, less what those that came with a past had published before.
        self._events = -sum(session.feed.seq for session in harness.sessions())
        self._lagged = -sum(session.feed.lagged for session in harness.sessions())

        def count(name: str, meaning: str, *labels: str) -> _ByLabels:
            return _ByLabels(Counter(PREFIX + name, meaning, labels, registry=registry))

        def measure(name: str, meaning: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> _ByLabels:
            return _ByLabels(Histogram(PREFIX + name, meaning, labels, buckets=buckets, registry=registry))

        self._turns = count("turns", "Turns that ended, by outcome.", "outcome")
        self._calls = count("calls", "Tool calls that were closed, by what closed them.", "closed_by")
        self._retries = count("upstream_retries", "Model calls that were tried again.", "provider")
        self._answers = count("http_answers", "HTTP answers begun.", "method", "route", "status")
        self._first = measure(
            "upstream_first_item_seconds",
            "Time from asking a model server to its answer's first item, in the attempt that was answered.",
            ("provider",),
            _FIRST_BUCKETS,
        )
        self._durations = measure(
            "upstream_call_seconds",
            "Duration of a model call with its retries.",
            ("provider", "outcome"),
            _CALL_BUCKETS,
        )
        registry.register(self)

    # What the engine tells.

    def session_opened(self, session: SessionState) -> None:
        """
        Events from before are not counted again.
        """
        self._events -= session.feed.seq
        self._lagged -= session.feed.lagged

    def session_ended(self, session: SessionState, why: SessionEnd) -> None:
        """
        Its events were published all the same.
        """
        self._events += session.feed.seq
        self._lagged += session.feed.lagged

    def turn_ended(self, session: SessionState, turn: Turn, outcome: TurnOutcome, duration_s: float | None) -> None:
        """
        Count it.
        """
        self._turns[(outcome,)].inc()

    def call_closed(self, session: SessionState, closed_by: ClosedBy, duration_s: float | None) -> None:
        """
        Count it.
        """
        self._calls[(closed_by,)].inc()

    def model_called(self, provider: str, outcome: CallOutcome, first_s: float | None, duration_s: float) -> None:
        """
        Measure it.
        """
        self._durations[provider, outcome].observe(duration_s)
        if first_s is not None:
            self._first[(provider,)].observe(first_s)

    def model_retried(self, provider: str) -> None:
        """
        Count it.
        """
        self._retries[(provider,)].inc()

    # What is asked for.

    async def count_answer(self, request: web.Request, response: web.StreamResponse) -> None:
        """
        A signal handler: an answer goes out.
        """
        method = request.method if request.method in _METHODS else "other"
        self._answers[method, route_of(request), str(response.status)].inc()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """
        All metrics, in the format that Prometheus asks for (text, version 0.0.4 by default).
        """
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self.registry), headers={"Content-Type": content_type})

    def describe(self) -> list["Metric"]:
        """
        For the registry: no names are reserved.
        """
        return []

    def collect(self) -> Iterator["Metric"]:
        """
        What is there now; called by the registry.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = _count(self._harness)
        gauges = {
            "sessions": ("Sessions held.", now["sessions"]),
            "turns_running": ("Turns that run, or wait for a client's results.", now["turns"]),
            "calls_open": ("Tool calls that wait for a client's result.", now["calls"]),
            "followers": ("Streams that follow a session.", now["followers"]),
            "queued_messages": ("Messages that wait for their turn.", now["queued"]),
            "queue_longest": ("Messages that wait in the session where most do.", now["longest"]),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(PREFIX + name, meaning, value)
        events, lagged = self._events + now["events"], self._lagged + now["lagged"]
        yield CounterMetricFamily(PREFIX + "events_published", "Events published.", events)
        yield CounterMetricFamily(PREFIX + "followers_lagged", "Followers cut because they fell behind.", lagged)


def _count(harness: Harness) -> dict[str, Any]:
    """
    One look at every session.
    """
    calls = followers = queued = longest = events = lagged = 0
    sessions = harness.sessions()
    for session in sessions:
        transcript, feed = session.transcript, session.feed
        calls += len(transcript.open_calls)
        followers += feed.followers
        waiting = len(transcript.waiting)
        queued += waiting
        longest = max(longest, waiting)
        events += feed.seq
        lagged += feed.lagged
    return {
        "sessions": len(sessions),
        "turns": harness.running_turns,
        "calls": calls,
        "followers": followers,
        "queued": queued,
        "longest": longest,
        "events": events,
        "lagged": lagged,
    }
