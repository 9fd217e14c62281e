"""One log format for every logger of every process: text for people, a JSON object a line for collectors."""

from __future__ import annotations

import logging
import sys
import time

import msgspec

from runtime.weights.hub import without_queries


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "logger", "process", "message"}`` and, after an exception, ``"traceback"``."""

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
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def without_signatures(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass, without the queries of addresses that a hub's client tells."""
    if record.name.partition(".")[0] == "huggingface_hub":
        record.msg, record.args = without_queries(record.getMessage()), ()
    return True


def set_up(level: str, fmt: str, process: str) -> None:
    """Send every record of at least `level` to stderr. Loggers that set a level of their own lose it."""
    handler = logging.StreamHandler(sys.stderr)
    if fmt == "json":
        handler.setFormatter(JsonFormatter(process))
    else:
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {process}: %(message)s", "%H:%M:%S"))
    handler.addFilter(without_signatures)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    # a download's requests are many, and told with their whole addresses
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # uvicorn says what our own lines already say, once a start and an end
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.levelno >= logging.WARNING)
