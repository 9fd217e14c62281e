"""What the entry points of the operator and of the activator have in common: settings, logs and exit status."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from unmask_operator.kube.credentials import LoginError
from unmask_operator.settings import Settings, read_settings


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if service := getattr(record, "service", None):
            entry["service"] = str(service)
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure_logs(settings: Settings) -> None:
    """Sends all log records to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at lower levels it logs each event and each handler


def run_program(name: str, log: logging.Logger, run: Callable[[Settings], Coroutine[Any, Any, None]]) -> int:
    """Reads the settings, configures logging, and runs `run`; returns the exit status."""
    try:
        settings = read_settings()
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    configure_logs(settings)
    try:
        asyncio.run(run(settings))
    except LoginError as error:
        log.error("cannot log in to the API server: %s", error)
        return 1
    return 0
