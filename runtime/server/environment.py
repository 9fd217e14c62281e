"""What the server sets in its own environment, and what a backend process finds in its own: nothing secret that it does
not need."""

from __future__ import annotations

import os
import sys

from runtime.config.flags import ENV_PREFIX

# Variables in which huggingface_hub and its elders find a token.
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})


LOCK_SECONDS = 0.0005  # after which a thread that computes lets another have the interpreter's lock


def set_up() -> None:
    """For this process, before it loads the tokenizers library.

    That library's batch calls, the only ones that leave the interpreter's lock, would otherwise start a thread a core.

    The event loop gives the lock up in every call of the system, some ten a request, and has it back when another
    thread lets go: after Python's 5 ms each time, a template that is rendered beside it would hold everybody up for
    seconds.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(LOCK_SECONDS)


def backend_environment(model: str | None, *, fetches: bool = False) -> dict[str, str]:
    """A backend's environment: ours without its secrets, and with threads that sleep rather than spin while the
    frontend needs the cores.

    A backend is told its configuration in a message, so it needs none of the server's variables (keys among them), and
    the hub's token only to fetch a model from there, or adapters (`fetches`).
    """
    hub = fetches or (model is not None and model.startswith("hf://"))
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENV_PREFIX) and (hub or name not in HUB_TOKENS)
    }
    return {**kept, "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1"}
