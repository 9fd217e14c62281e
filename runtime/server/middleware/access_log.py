"""Access log, with one line per request, and throughput every ten seconds. It contains no prompts and outputs."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

from runtime.errors import RequestError
from runtime.server.engine_client.generation_job import GenerationJob
from runtime.server.metrics import EngineMetrics

log = logging.getLogger("unmask.access")
rejected_log = logging.getLogger(
    "unmask.refused"
)  # strangers can cause these lines, so that the log counts and limits them
stats_log = logging.getLogger("unmask.load")

MAX_REASON = 300  # characters of a refusal
STATS_SECONDS = 10.0  # seconds between lines of the load


def log_request(
    method: str, path: str, status: int, seconds: float, state: dict[str, Any], quiet: bool = False
) -> None:
    """Logs one request.

    Args:
        state: state of the ASGI scope, with the job and the rejection, if any.
        quiet: log at level DEBUG, for probes, scrapers and the page, which are requested every few seconds.
    """
    level = logging.DEBUG if quiet else logging.INFO
    if not log.isEnabledFor(level):
        return
    shown_path = _printable(path[:80])
    fields: dict[str, Any] = {"method": method, "path": shown_path, "status": status, "seconds": round(seconds, 4)}
    parts = [f"{seconds:.3f} s"]
    job: GenerationJob | None = state.get("job")
    if job is not None:
        usage = job.usage()
        forwards = sum(choice.nfe for choice in job.choices)
        ends = sorted({choice.finish_reason or "unfinished" for choice in job.choices})
        fields |= {
            "id": job.id,
            "prompt_tokens": usage["prompt_tokens"],
            "tokens": usage["completion_tokens"],
            "forwards": forwards,
            "ended_by": ends,
        }
        parts = [
            job.id,
            f"{usage['prompt_tokens']}+{usage['completion_tokens']} tokens",
            f"{forwards} forwards",
            *parts,
            " ".join(ends),
        ]
    reason = state.get("refusal")
    if reason:
        fields["reason"] = _printable(reason[:MAX_REASON])
        parts.append(fields["reason"])
    line = f"{method} {shown_path} {status} {', '.join(parts)}"
    if 400 <= status < 500:
        rejected_log.log(level, f"rejected with {status}: %s", line, extra={"fields": fields})
    else:
        log.log(level, "%s", line, extra={"fields": fields})


def _printable(text: str) -> str:
    """On one line, whatever a client wrote."""
    return text.encode("unicode_escape").decode()


class StatsLogger:
    """Logs the throughput of the engines every ten seconds, unless they are idle."""

    def __init__(self, figures: EngineMetrics) -> None:
        self._figures = figures
        self._last = self._totals()
        self._at = time.monotonic()

    def _totals(self) -> dict[str, int]:
        return {name: self._figures.total(name) for name in ("prompt_tokens", "generated_tokens", "forwards_denoise")}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STATS_SECONDS)
            self.log_stats()

    def log_stats(self) -> None:
        now, totals = time.monotonic(), self._totals()
        done = {name: totals[name] - self._last[name] for name in totals}
        seconds, self._at, self._last = now - self._at, now, totals
        running, waiting = self._figures.requests()
        if not (any(done.values()) or running or waiting):
            return
        forwards = done["forwards_denoise"]
        fields = {
            "generated_tokens_per_second": round(done["generated_tokens"] / seconds, 1),
            "prompt_tokens_per_second": round(done["prompt_tokens"] / seconds, 1),
            "tokens_per_forward": round(done["generated_tokens"] / forwards, 2) if forwards else None,
            "running": running,
            "waiting": waiting,
            "kv_usage": round(self._figures.usage(), 3),
        }
        stats_log.info(
            "%.0f tokens/s, %.0f prompt tokens/s, %s tokens/forward, %d running, %d waiting, %.0f %% of KV pages used",
            fields["generated_tokens_per_second"],
            fields["prompt_tokens_per_second"],
            fields["tokens_per_forward"] or "n/a",
            running,
            waiting,
            100 * self._figures.usage(),
            extra={"fields": fields},
        )


# A quoted text, but no apostrophe within a word. A truncated one ends with the message.
_QUOTED = re.compile(
    r"""(?<!\w)(?:'(?:\\.|[^'\\])*(?:'|$)|"(?:\\.|[^"\\])*(?:"|$)|`[^`]*(?:`|$))""",
    re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}(?:\[\d{1,6}\])*")


def redacted(error: RequestError) -> str:
    """The error's message as the log may have it.

    Quoted texts, the error's `detail` and parts of the field's path that are no plain names become their lengths.
    """
    message, field = error.message, ""
    if error.param and message.startswith(error.param):
        field, message = field_path(error.param), message[len(error.param) :]
    if error.detail:
        message = message.replace(error.detail, _length(error.detail))
    return field + _QUOTED.sub(lambda found: _length(found[0].strip("'\"`")), message)


def field_path(path: str) -> str:
    """A field's path without what a client may have written into it."""
    parts = path.split(".")
    if len(parts) > 16:
        return _length(path)
    return ".".join(part if _NAME.fullmatch(part) else _length(part) for part in parts)


def _length(text: str) -> str:
    return f"<{len(text)} characters>"
