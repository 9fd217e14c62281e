"""What the server sets in its own environment, and what a backend process finds in its own: nothing secret that it does
not need."""

from __future__ import annotations

import os
import sys

from runtime.config.flags import ENV_PREFIX

# Variables in which huggingface_hub and its elders find a token.
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})


LOCK_SECONDS = 0.0005  # after which a thread that computes lets another have the interpreter's lock


def configure_process() -> None:
    """For this process, before it loads the tokenizers library.

    That library's batch calls, the only ones that leave the interpreter's lock, would otherwise start a thread a core.

    The event loop gives the lock up in every call of the system, some ten a request, and has it back when another
    thread lets go: after Python's 5 ms each time, a template that is rendered beside it would hold everybody up for
    seconds.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(LOCK_SECONDS)


_TRACES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def traces_endpoint() -> str | None:
    """The variable that says where traces go; None where none are wanted. What else OTEL_ variables say of them, its
    library reads by itself."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    return next((name for name in _TRACES if os.environ.get(name)), None)


def traces_protocol() -> str:
    """OTLP's protocol that is asked for; "": any."""
    return next((os.environ[name].strip() for name in _PROTOCOLS if os.environ.get(name)), "")


def backend_environment(model: str | None, *, fetches: bool = False) -> dict[str, str]:
    """A backend's environment: ours without its secrets.

    A backend is told its configuration in a message, so it needs none of the server's variables (keys among them), and
    the hub's token only to fetch a model from there, or adapters (`fetches`). Traces are the frontend's.
    """
    hub = fetches or (model is not None and model.startswith("hf://"))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith((ENV_PREFIX, "OTEL_")) and (hub or name not in HUB_TOKENS)
    }
    return {"OMP_WAIT_POLICY": "PASSIVE", **inherited, "PYTHONUNBUFFERED": "1"}  # see `runtime.wait_passively`
