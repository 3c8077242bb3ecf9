"""The ops port: probes, metrics and orders, answered by threads that wait for neither the API nor the engine."""

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import msgspec
import structlog

from tidegate_contract import labels
from tidegate_contract.admin import DrainReply, DrainRequest, RecordingReply
from tidegate_contract.metric_names import AUDIT_REPAIRS
from tidegate_server.api.ops_report import PodView, ProbeAnswer, live_answer, load_report, ready_answer, startup_answer
from tidegate_server.api.schema import ErrorBody, ErrorReply
from tidegate_server.metrics import CONTENT_TYPE, BuildFacts, ServerMetrics

log = structlog.get_logger(__name__)

IDLE_CONNECTION_TIMEOUT_S = 60.0
MAX_DRAIN_BODY_BYTES = 4096

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsSources:
    """Where the answers come from. Everything here may be called from any thread and returns at once."""

    view: Callable[[], PodView]
    facts: Callable[[], BuildFacts]
    metrics: ServerMetrics
    model_name: str
    drain: Callable[[DrainRequest], DrainReply]
    write_recording: Callable[[], RecordingReply | None]
    """None: nothing is recorded."""
    audit: Callable[[], bool]  # False: there is no engine to ask


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content_type: str
    body: bytes
    allow: str | None = None  # with status 405


def answer(sources: OpsSources, method: str, path: str, body: bytes) -> Answer:
    """What one call to the ops port gets."""
    allowed = "POST" if path in _POST_PATHS else "GET"
    if path not in _PATHS:
        return _error(404, f"there is no {path} here; the ops port has {', '.join(_PATHS)}", "not_found")
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        return _error(405, f"{path} takes {allowed}", "method_not_allowed", allow=allowed)
    match path:
        case labels.STARTUP_PATH:
            return _probe(startup_answer(sources.view()))
        case labels.READY_PATH:
            return _probe(ready_answer(sources.view()))
        case labels.LIVE_PATH:
            return _probe(live_answer(sources.view()))
        case labels.METRICS_PATH:
            return Answer(200, CONTENT_TYPE, sources.metrics.exposition())
        case labels.LOAD_PATH:
            report = load_report(sources.view(), sources.model_name, sources.facts())
            return Answer(200, JSON, msgspec.json.encode(report))
        case labels.RECORDING_PATH:
            return _recorded(sources)
        case labels.AUDIT_PATH:
            return _audited(sources)
        case _:
            return _drained(sources, body)


_POST_PATHS = (labels.DRAIN_PATH, labels.RECORDING_PATH, labels.AUDIT_PATH)
_PATHS = (
    labels.STARTUP_PATH,
    labels.READY_PATH,
    labels.LIVE_PATH,
    labels.METRICS_PATH,
    labels.LOAD_PATH,
    *_POST_PATHS,
)


def _probe(probe: ProbeAnswer) -> Answer:
    return Answer(200 if probe.ok else 503, TEXT, f"{probe.reason}\n".encode())


def _audited(sources: OpsSources) -> Answer:
    if not sources.audit():
        return Answer(503, TEXT, b"the model is still loading\n")
    told = f"the engine recounts its KV blocks; the log and {AUDIT_REPAIRS.name} tell what it finds\n"
    return Answer(202, TEXT, told.encode())


def _drained(sources: OpsSources, body: bytes) -> Answer:
    try:
        wish = msgspec.json.decode(body, type=DrainRequest) if body.strip() else DrainRequest()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _error(400, f"the body is no drain request: {error}", "invalid_drain_request")
    if wish.timeout_s is not None and not 0 <= wish.timeout_s < float("inf"):
        return _error(400, f"timeout_s: {wish.timeout_s} is not a number of seconds", "invalid_drain_request")
    return Answer(200, JSON, msgspec.json.encode(sources.drain(wish)))


def _recorded(sources: OpsSources) -> Answer:
    reply = sources.write_recording()
    if reply is None:
        return _error(409, "nothing is recorded here; start the server with --record-dir", "not_recording")
    return Answer(202, JSON, msgspec.json.encode(reply))


def _error(status: int, message: str, code: str, allow: str | None = None) -> Answer:
    body = ErrorBody(message=message, type="invalid_request_error", param=None, code=code)
    return Answer(status, JSON, msgspec.json.encode(ErrorReply(error=body)), allow)


class OpsServer:
    """Answers on a bound socket from threads of its own until the process ends."""

    def __init__(self, listener: socket.socket, sources: OpsSources) -> None:
        self._server = _Server(listener, sources)
        self._thread = threading.Thread(target=self._server.serve_forever, name="ops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an idle connection must not hold up the exit

    def __init__(self, listener: socket.socket, sources: OpsSources) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()  # the one that the base class made
        self.socket = listener
        self.sources = sources
        self.server_activate()

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a caller that hung up is no news
            log.error("ops_request_crashed", exc_info=error, next="the caller sees its connection closed")


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = IDLE_CONNECTION_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet per answer

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True  # where the body ends is not known here
            self._send(_error(411, "a body needs a Content-Length here", "length_required"))
            return
        try:
            size_bytes = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            size_bytes = -1
        if not 0 <= size_bytes <= MAX_DRAIN_BODY_BYTES:
            self.close_connection = True
            self._send(_error(413, f"a body has at most {MAX_DRAIN_BODY_BYTES} bytes here", "body_too_large"))
            return
        body = self.rfile.read(size_bytes)
        self._send(answer(self.server.sources, self.command, urlsplit(self.path).path, body))

    def _send(self, reply: Answer) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        if reply.allow is not None:
            self.send_header("Allow", reply.allow)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.wfile.flush()

    def version_string(self) -> str:
        return "tidegate"

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every second; they are not worth a line."""
