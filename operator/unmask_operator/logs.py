"""Configures logging: text, or one JSON object per line."""

import json
import logging
import sys
from datetime import UTC, datetime

from unmask_operator.settings import Settings


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


def configure(settings: Settings) -> None:
    """Sends all log records to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else text)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at lower levels it logs each event and each handler
