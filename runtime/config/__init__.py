"""Configuration: flags, their sources, and the typed result. Imports no torch."""

from runtime.config.config import BY_DEST, DEMO_NAME, FLAGS, EngineConfig, ServerConfig, default_model_name
from runtime.config.flags import ENV_PREFIX, Flag, check
from runtime.config.loading import build_parser, log_format, parse

__all__ = [
    "BY_DEST",
    "DEMO_NAME",
    "ENV_PREFIX",
    "FLAGS",
    "EngineConfig",
    "Flag",
    "ServerConfig",
    "build_parser",
    "check",
    "default_model_name",
    "log_format",
    "parse",
]
