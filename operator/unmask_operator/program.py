"""What the entry points of the operator and of the activator have in common."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from unmask_operator import logs
from unmask_operator.kube.credentials import LoginError
from unmask_operator.settings import Settings, read_settings


def run_program(name: str, log: logging.Logger, run: Callable[[Settings], Coroutine[Any, Any, None]]) -> int:
    """Reads the settings, configures logging, and runs `run`; returns the exit status."""
    try:
        settings = read_settings()
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    logs.configure(settings)
    try:
        asyncio.run(run(settings))
    except LoginError as error:
        log.error("cannot log in to the API server: %s", error)
        return 1
    return 0
