"""Log format of all loggers and processes: text, or one JSON object per line; and redaction of requests."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable

import msgspec

from runtime.errors import RequestError
from runtime.server.log_writer import LogWriter
from runtime.weights.hub import without_queries

log = logging.getLogger("unmask.server")

MAX_REPORTED_KINDS = 10  # kinds of dropped lines that are named; a client may cause many kinds
MAX_KIND_CHARS = 80


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "process", "message"}``, structured fields, and ``"traceback"`` of an exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self.process,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})  # structured fields of the line
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def fatal_line(sentence: str) -> str:
    """Returns the JSON line of a server that cannot start."""
    entry = {"name": "unmask.server", "levelno": logging.ERROR, "levelname": "ERROR", "msg": sentence}
    return JsonFormatter("frontend").format(logging.makeLogRecord(entry))


def redact_queries(record: logging.LogRecord) -> bool:
    """Filter that removes queries from URLs in lines of the hub client, as they may have signatures."""
    if record.name.partition(".")[0] == "huggingface_hub":
        record.msg, record.args = without_queries(record.getMessage()), ()
    return True


# A quoted text, but no apostrophe within a word. A truncated one ends with the message.
_QUOTED = re.compile(r"""(?<!\w)(?:'(?:\\.|[^'\\])*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|`[^`]*(?:`|$))""", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}(?:\[\d{1,6}\])*")  # of a field or a header


def redacted(error: RequestError) -> str:
    """Returns the message of an error without content of the request.

    Quoted texts, the `detail` of the error and unusual parts of the path of its field are replaced by their lengths.
    Its part `own` stays.
    """
    message, field = error.message, ""
    if error.param and message.startswith(error.param):
        field, message = field_path(error.param), message[len(error.param) :]
    if error.detail:
        message = message.replace(error.detail, _length(error.detail))
    before, own, after = message.rpartition(error.own) if error.own else (message, "", "")
    return field + _without_quotes(before) + own + _without_quotes(after)


def _without_quotes(text: str) -> str:
    return _QUOTED.sub(lambda found: _length(found[0].strip("'\"`")), text)


def field_path(path: str) -> str:
    """Returns the path of a field without content of the request."""
    parts = path.split(".")
    if len(parts) > 16:
        return _length(path)
    return ".".join(part if _NAME.fullmatch(part) else _length(part) for part in parts)


def _length(text: str) -> str:
    return f"<{len(text)} characters>"


class RateLimitFilter(logging.Filter):
    """Passes a limited number of records of each kind per interval and of all kinds per second; counts the others.

    For loggers whose lines any client can cause. The kind of a record is its message without arguments. All intervals
    begin at the same time, so the limit per second is what bounds the lines when many kinds arrive at once.
    """

    limit = 10  # records of a kind in `seconds`
    seconds = 10.0
    kinds = 1000  # counted separately; further kinds are counted together
    limit_per_second = 20  # records of all kinds

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.clock = clock
        self.since = self.second_since = clock()
        self.passed: dict[tuple[str, str], int] = {}
        self.dropped: dict[tuple[str, str], int] = {}
        self.passed_in_second = 0

    def divide(self, processes: int) -> None:
        """Reduces the limit per second to that of one of several processes that write to the same log."""
        self.limit_per_second = max(self.limit_per_second // processes, 1)

    def filter(self, record: logging.LogRecord) -> bool:
        self.report_dropped()
        kind = (record.name, str(record.msg))
        if kind not in self.passed and len(self.passed) >= self.kinds:
            kind = (record.name, "other lines")
        passed = self.passed.setdefault(kind, 0)
        now = self.clock()
        if now - self.second_since >= 1.0:
            self.second_since, self.passed_in_second = now, 0
        if passed >= self.limit or self.passed_in_second >= self.limit_per_second:
            self.dropped[kind] = self.dropped.get(kind, 0) + 1
            return False
        self.passed[kind] = passed + 1
        self.passed_in_second += 1
        return True

    def report_dropped(self) -> None:
        """Logs in one line what was dropped in an interval that has ended."""
        now = self.clock()
        if now - self.since < self.seconds:
            return
        dropped, self.passed, self.dropped, self.since = self.dropped, {}, {}, now
        if not dropped:
            return
        largest = sorted(dropped.items(), key=lambda entry: -entry[1])[:MAX_REPORTED_KINDS]
        counts = [f"{count} of {message[:MAX_KIND_CHARS]!r}" for (_, message), count in largest]
        if others := sum(dropped.values()) - sum(count for _, count in largest):
            counts.append(f"{others} others")
        log.warning("suppressed %d more lines in %.0f s: %s", sum(dropped.values()), self.seconds, ", ".join(counts))


rate_limiter = RateLimitFilter()
RATE_LIMITED_LOGGERS = ("unmask.wire", "unmask.http", "unmask.refused", "uvicorn.error", "asyncio")


def configure_logging(level: str, fmt: str, process: str) -> None:
    """Sends records of at least `level` to stderr, in a thread. Call `logging.shutdown` before `os._exit`."""
    formatter = logging.Formatter(f"%(asctime)s %(levelname)-7s {process}: %(message)s", "%H:%M:%S")
    handler = LogWriter(sys.stderr.fileno())
    handler.setFormatter(JsonFormatter(process) if fmt == "json" else formatter)
    handler.addFilter(redact_queries)
    hub = logging.getLogger("huggingface_hub")
    hub.handlers[:], hub.propagate = [handler], False  # its import stops the propagation
    hub.addHandler = lambda _: None  # type: ignore[assignment, method-assign]  # its import adds one without the filter
    # no format has these, and a record of each request would look them up
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # downloads make many requests, which are logged with full URLs
    logging.getLogger("httpx").setLevel(logging.WARNING)
    for name in RATE_LIMITED_LOGGERS:
        logging.getLogger(name).addFilter(rate_limiter)
    # at start and exit uvicorn repeats lines of the server
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno >= logging.WARNING)
