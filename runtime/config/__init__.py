"""Configuration: the flag table, how its sources combine, and the typed result. Loads no torch."""

from runtime.config.config import DEMO_NAME, EngineConfig, ServerConfig, default_model_name
from runtime.config.flags import ENV_PREFIX, Flag, check
from runtime.config.sources import build_parser, log_format, parse
from runtime.config.table import BY_DEST, FLAGS

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
