"""The worker's HTTP interface: probes, metrics, and the order to drain.

It answers from threads, even while agent code blocks the event loop. Probes and metrics are open to
every client that can reach the port, and reveal nothing about the content of runs. Only this
machine may ask to drain, and no web page open in a browser on it.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from andon.core.fleet import health, metrics
from andon.core.fleet.health import HealthVerdict
from andon.core.fleet.metrics import Family, one
from andon.runtime.health.http_server import HttpRequest, Response, Server
from andon.runtime.health.pulse import FleetView, Pulse
from andon.runtime.worker.triggers import WorkerView

# The longest wait of /drain, and how many may wait at once: other requests need connections too.
MOST_WAIT_SECONDS = 600.0
MOST_WAITING = 4

GET = ("GET", "HEAD")
# Headers that a browser adds to a request made by a web page.
_FROM_A_PAGE = ("origin", "referer", "sec-fetch-site", "sec-fetch-mode")
# Headers that a proxy adds; with them, the peer's address is not the client's.
_PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-real-ip", "x-envoy-external-address")
_LOOPBACK = ("127.0.0.1", "::1")  # not all of 127/8: a mesh forwards outside traffic from there
# Descriptions of the worker's counters, for readers of /metrics.
_COUNTED = {
    "runs_finished_total": "Runs that ended on this worker.",
    "runs_saved_total": "Runs requeued unfinished at a boundary.",
    "runs_cut_total": "Runs requeued in the middle of a step.",
}
_LOCAL = "only this machine may ask for that: kubectl exec, preStop exec, or andon drain"


class Health:
    """Serves the health endpoints until it is closed; `port` is the port in use."""

    def __init__(self, worker: WorkerView) -> None:
        self._worker = worker
        self._waiting = threading.Semaphore(MOST_WAITING)
        self._ended = threading.Event()
        self._routes: dict[str, tuple[tuple[str, ...], Callable[[HttpRequest], Response]]] = {
            "/livez": (GET, self._livez),
            "/health": (GET, self._livez),
            "/readyz": (GET, self._readyz),
            "/ready": (GET, self._readyz),
            "/startupz": (GET, self._startupz),
            "/metrics": (GET, self._metrics),
            "/drain": (("GET",), self._drain),
            "/shutdown": (("POST",), self._leave),
        }
        settings = worker.settings
        self._server = Server(settings.health_host, settings.health_port, self._answer, complaint)
        self.port = self._server.port
        self._pulse = Pulse(worker)

    def close(self) -> None:
        """Stop serving; call this before the store is closed."""
        self._ended.set()
        self._server.close()
        self._pulse.close()

    def _answer(self, request: HttpRequest) -> Response:
        if request.path not in self._routes:
            known = ", ".join(self._routes)
            return complaint(404, f"not found; the paths are {known}")
        methods, answer = self._routes[request.path]
        if request.method not in methods:
            found = complaint(405, f"expected {' or '.join(methods)}")
            return found._replace(headers=(("Allow", ", ".join(methods)),))
        return answer(request)

    def _livez(self, _: HttpRequest) -> Response:
        seen = self._pulse.seen()
        return self._verdict(
            health.live(seen, self._limit),
            loop_silent_seconds=round(seen.loop_silent, 3),
            contact_seconds=round(seen.contact_age, 3),
        )

    def _readyz(self, _: HttpRequest) -> Response:
        if self._worker.draining:  # answer at once, even if the store hangs
            return self._verdict(health.ready(self._pulse.seen(), self._limit))
        verdict = health.ready(self._pulse.seen(with_store=True), self._limit)
        view = self._pulse.sight.look()
        return self._verdict(
            verdict,
            free_slots=self._free,
            store="away" if view is None else "up",
            stranded=[
                {"agent": agent, "version": version, "runs": runs}
                for agent, version, runs in (view.stranded if view else ())
            ],
        )

    def _startupz(self, _: HttpRequest) -> Response:
        return self._verdict(health.begun(self._pulse.seen()))

    def _verdict(self, verdict: HealthVerdict, **detail: Any) -> Response:
        worker = self._worker
        found: dict[str, Any] = {"status": verdict.status, "worker": worker.worker_id}
        if verdict.why:
            found["why"] = verdict.why
        found |= {"runs_in_hand": len(worker.active), **detail}
        return _json(200 if verdict.ok else 503, found)

    @property
    def _limit(self) -> float:
        return self._worker.settings.liveness_seconds

    @property
    def _free(self) -> int:
        return max(0, self._worker.settings.concurrency - len(self._worker.active))

    def _leave(self, request: HttpRequest) -> Response:
        refused = refusal(request)
        if refused:
            return complaint(403, refused)
        self._worker.tell(f"POST /shutdown from {request.peer}")
        return _json(202, self._progress("draining"))

    def _drain(self, request: HttpRequest) -> Response:
        refused = refusal(request)
        if refused:
            return complaint(403, refused)
        try:
            wait = float(request.query.get("wait", "0"))
        except ValueError:
            wait = -1.0
        if not 0 <= wait <= MOST_WAIT_SECONDS:
            return complaint(400, f"wait: expected seconds from 0 to {MOST_WAIT_SECONDS:g}")
        self._worker.tell(f"GET /drain from {request.peer}")
        if self._drained(wait):
            return _json(200, self._progress("drained"))
        return _json(202, self._progress("draining"))

    def _drained(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        if not self._waiting.acquire(blocking=False):
            return False
        try:
            while not (self._worker.draining and not self._worker.active):
                if time.monotonic() >= until or self._ended.wait(0.02):
                    return False
        finally:
            self._waiting.release()
        return True

    def _progress(self, status: str) -> dict[str, Any]:
        return {
            "status": status,
            "worker": self._worker.worker_id,
            "runs_in_hand": len(self._worker.active),
        }

    def _metrics(self, _: HttpRequest) -> Response:
        view = self._pulse.sight.look()
        families = [*self._own_numbers(), *_fleet_numbers(view)]
        return Response(200, metrics.render(families), metrics.CONTENT_TYPE)

    def _own_numbers(self) -> Iterator[Family]:
        worker, seen = self._worker, self._pulse.seen()
        yield one(
            "andon_runs_in_hand", "gauge", "Runs executing on this worker.", len(worker.active)
        )
        yield one("andon_free_slots", "gauge", "Runs that this worker could start.", self._free)
        yield one(
            "andon_draining", "gauge", "1 once the worker takes no new runs.", worker.draining
        )
        yield one(
            "andon_loop_silent_seconds",
            "gauge",
            "Time since the event loop last answered.",
            seen.loop_silent,
        )
        yield one(
            "andon_contact_seconds",
            "gauge",
            "Time since the store last answered this worker.",
            seen.contact_age,
        )
        for name, number in sorted(worker.counts().items()):
            plain = "andon_" + re.sub(r"[^a-z0-9_]", "_", name.lower())
            kind = "counter" if plain.endswith("_total") else "gauge"
            if plain != "andon_runs_in_hand":
                yield one(plain, kind, _COUNTED.get(name, "As this worker counts."), number)


def _fleet_numbers(view: FleetView | None) -> Iterator[Family]:
    yield one("andon_store_up", "gauge", "1 if the store answers.", view is not None)
    if view is None:
        return
    depth: dict[str, int] = {}
    oldest: dict[str, float] = {}
    for row in view.waiting:
        if row.state == "queued":
            depth[row.queue] = depth.get(row.queue, 0) + row.runs
            oldest[row.queue] = max(oldest.get(row.queue, 0.0), row.oldest_seconds)
    text = "Runs that wait for a worker now."
    yield Family("andon_queue_depth", "gauge", text, _by_queue(depth))
    text = "How long the oldest of them has waited."
    yield Family("andon_queue_oldest_seconds", "gauge", text, _by_queue(oldest))
    yield Family(
        "andon_stranded_runs",
        "gauge",
        "Runs that no live worker can take.",
        tuple(
            ({"agent": agent, "version": version}, float(runs))
            for agent, version, runs in view.stranded
        ),
    )

    stops = view.stops
    yield one("andon_latches", "gauge", "Scopes that are held by a stop.", stops.latches)
    yield one("andon_open_stops", "gauge", "Stops that are not proved yet.", stops.open)
    text = "Polite stops that overran their window and became kills."
    yield one("andon_stop_overruns_total", "counter", text, stops.overruns)
    text = "Stops that ended without proof."
    yield one("andon_unproved_stops_total", "counter", text, stops.unproved)


def _by_queue(
    numbers: "dict[str, int] | dict[str, float]",
) -> tuple[tuple[dict[str, str], float], ...]:
    return tuple(({"queue": queue}, float(number)) for queue, number in sorted(numbers.items()))


def refusal(request: HttpRequest) -> str:
    """Return why a request may not drain the worker; "" if it may."""
    peer, own = _address(request.peer), _address(request.own)
    # A connection from this machine to one of its addresses has that address as its source.
    if peer is None or not (str(peer) in _LOOPBACK or peer == own):
        return f"{_LOCAL}; found {request.peer}"
    if any(name in request.headers for name in _PASSED_ON):
        return f"{_LOCAL}; this was passed on by a proxy"
    if any(name in request.headers for name in _FROM_A_PAGE):
        return f"{_LOCAL}; this came from a web page"
    # Against DNS rebinding: a page's own host name may resolve to this machine, but the Host header
    # then shows that name.
    host = request.headers.get("host", "localhost")
    name = re.sub(r":\d+$", "", host).strip("[]")
    if name.lower() != "localhost" and _address(name) is None:
        return f"{_LOCAL}, by its address or as localhost; found another name"
    return ""


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def complaint(status: int, sentence: str) -> Response:
    return _json(status, {"error": sentence})


def _json(status: int, found: dict[str, Any]) -> Response:
    return Response(status, json.dumps(found) + "\n")
