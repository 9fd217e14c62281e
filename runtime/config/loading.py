"""Combines the sources of flags by precedence: command line, environment, ``--config`` file, default."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from runtime.config.adapter_names import DEFAULT_MAX_LORAS
from runtime.config.api_keys import read_settled_key_file
from runtime.config.config import BY_DEST, BY_SPELLING, FLAGS, EngineConfig, ServerConfig
from runtime.config.flags import ENV_PREFIX, KERNEL_CACHE, Flag, check
from runtime.config.suggestions import did_you_mean, unknown_flags
from runtime.errors import ConfigError

TEST_CLUSTER_PREFIX = ENV_PREFIX + "E2E_"  # prefix of variables of a test cluster, which are not flags
# Default of --host for an image: a container is reached through other addresses than loopback.
DEFAULT_HOST = ENV_PREFIX + "DEFAULT_HOST"
# Variables that Kubernetes sets in every pod for a Service whose name begins with "unmask".
_INJECTED = re.compile(
    r"UNMASK(_\w+)?_SERVICE_(HOST|PORT(_\w+)?)|UNMASK(_\w+)?_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_LINK = re.compile(r"(tcp|udp|sctp)://")


EXAMPLE = "python -m runtime.server --model hf://inclusionAI/LLaDA2.0-mini --max-num-reqs 64 --port 8000"
_SOURCES = f"""\
Every flag has an environment variable ({ENV_PREFIX}MAX_NUM_REQS=64) and may be in the --config file. The command line
takes precedence over the environment, and the environment over the file."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = unknown_flags(message, [f"--{name}" for flag in FLAGS for name in flag.spellings]) or message
        raise ConfigError(f"{message} (--help lists common flags, --help-all lists all flags)")


class _Help(argparse.Action):
    """Prints common flags (--help) or all flags (--help-all), and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        build_parser(common_only=self.dest == "help").print_help()
        raise SystemExit(0)


def build_parser(*, common_only: bool = False) -> argparse.ArgumentParser:
    """Returns a parser that collects text only; `check` converts values of all sources.

    Args:
        common_only: List only common flags in the help text. All flags are parsed.
    """
    more = "Further flags: --help-all. All flags with their defaults: docs/reference/flags.md." if common_only else ""
    parser = _Parser(
        prog="python -m runtime.server",
        usage="%(prog)s [--flag VALUE ...]",
        description="Serve a diffusion language model over HTTP.\n\nexample:\n  " + EXAMPLE,
        epilog="\n\n".join(filter(None, (more, _SOURCES))),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
        argument_default=argparse.SUPPRESS,
    )
    helps = parser.add_argument_group("help")
    helps.add_argument("-h", "--help", action=_Help, dest="help", nargs=0, help="list common flags and exit")
    helps.add_argument("--help-all", action=_Help, dest="help_all", nargs=0, help="list all flags and exit")
    groups = {name: parser.add_argument_group(name) for name in dict.fromkeys(flag.group for flag in FLAGS)}
    for flag in FLAGS:
        options: dict[str, Any] = {"dest": flag.dest, "help": _help(flag)}
        if common_only and not flag.common:
            options["help"] = argparse.SUPPRESS
        if flag.type == "bool":
            options |= {"nargs": "?", "const": "true", "metavar": "BOOL"}
        else:
            options["metavar"] = flag.metavar or ("|".join(flag.choices) or _METAVAR[flag.type])
        options["action"] = "append" if flag.many else "store"
        groups[flag.group].add_argument(*(f"--{name}" for name in flag.spellings), **options)
    return parser


_METAVAR = {"json": "JSON", "str": "TEXT", "int": "N", "float": "X"}


def _help(flag: Flag) -> str:
    default = "" if flag.default in (None, (), False) else f" (default: {flag.default})"
    return (flag.help + default).replace("%", "%%")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> ServerConfig:
    """Returns the configuration of a server.

    Args:
        argv: The command line without the program's name.
        environ: The environment.

    Raises:
        SystemExit: After printing, for ``--help`` and ``--print-config``.
        ConfigError: A value is invalid.
    """
    command_line = vars(build_parser().parse_args(list(argv)))
    sources: dict[str, tuple[Any, str]] = {}  # dest -> value, source
    if DEFAULT_HOST in environ:
        sources["host"] = (environ[DEFAULT_HOST], DEFAULT_HOST)
    env = from_environment(environ, ignore=command_line)
    path = command_line.get("config") or (env["config"][0] if "config" in env else None)
    if path is not None:
        sources |= from_file(Path(check(BY_DEST["config"], path)))
    sources |= env
    sources |= {dest: (value, f"--{dest.replace('_', '-')}") for dest, value in command_line.items()}
    return _build(sources)


def log_format(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Returns the value of --log-format, even if `parse` raises for the same arguments.

    Args:
        argv: The command line without the program's name.
        environ: The environment.

    Returns:
        "json" or "text".
    """
    path, found = environ.get(f"{ENV_PREFIX}CONFIG"), environ.get(f"{ENV_PREFIX}LOG_FORMAT")
    for i, argument in enumerate(argv):
        name, joined, value = argument.partition("=")
        value = value if joined else "".join(argv[i + 1 : i + 2])
        if name == "--log-format":
            found = value
        elif name == "--config":
            path = value
    if found is None and path:
        with contextlib.suppress(ConfigError):
            found = str(from_file(Path(path)).get("log_format", ("text", ""))[0])
    return "json" if found == "json" else "text"


def from_environment(environ: Mapping[str, str], ignore: Mapping[str, Any] = {}) -> dict[str, tuple[Any, str]]:
    """Returns the flags in UNMASK_ variables. `ignore`: dests that the command line overrides."""
    found: dict[str, tuple[Any, str]] = {}
    for name in sorted(n for n in environ if n.startswith(ENV_PREFIX) and not n.startswith(TEST_CLUSTER_PREFIX)):
        if name in (DEFAULT_HOST, KERNEL_CACHE):
            continue
        value = environ[name]
        flag = BY_SPELLING.get(name.removeprefix(ENV_PREFIX).lower()) if name.isupper() else None
        if flag is not None and _LINK.match(value) and flag.type == "int":
            if flag.dest in ignore:
                continue
            raise ConfigError(
                f"{name}: holds {value!r}, which Kubernetes sets for a Service called {name.lower()[:-5]}; set "
                f"enableServiceLinks: false in the pod, rename the Service, or give --{flag.name}"
            )
        if flag is None:
            if _INJECTED.fullmatch(name) or (name.endswith("_PORT") and _LINK.match(value)):
                continue
            raise ConfigError(f"{name}: no such variable" + did_you_mean(name, [f.env for f in FLAGS]))
        if flag.dest in found:
            raise ConfigError(f"{name}: sets the same flag as {found[flag.dest][1]}; set one of them")
        found[flag.dest] = (value, name)
    return found


def load_yaml(text: str) -> Any:
    """Parses YAML. A key that occurs twice is an error.

    Raises:
        yaml.YAMLError: The text is not YAML, or a value does not have the type that YAML reads in it.
        RecursionError: It is nested too deeply.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except (AttributeError, LookupError, TypeError, ValueError):  # for example, a date with the month 13
                problem = "the value does not fit its YAML type, or cannot be a key; quote it"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own = [loader.construct_object(key, deep=True) for key, _ in node.value if not key.tag.endswith(":merge")]
        if twice := [key for i, key in enumerate(own) if key in own[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} occurs twice", node.start_mark)
        loader.flatten_mapping(node)  # replaces merge keys by the keys that they merge
        return {loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value}

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    return yaml.load(text, Loader)


def from_file(path: Path) -> dict[str, tuple[Any, str]]:
    """Returns the flags in a YAML file, a mapping of names, with dashes or underscores, to values."""
    import yaml

    try:
        data = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {_reason(error)}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config: {path} cannot be parsed{yaml_location(error)}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"--config: {path} holds a {type(data).__name__}, not a mapping of flags to values")
    found: dict[str, tuple[Any, str]] = {}
    for key, value in data.items():
        flag = BY_SPELLING.get(str(key).replace("-", "_"))
        where = f"{key} in {path}"
        if flag is None or flag.name in ("config", "print-config"):
            raise ConfigError(f"{where}: no such flag" + did_you_mean(str(key), list(BY_SPELLING)))
        if flag.dest in found:
            raise ConfigError(f"{where}: sets the same flag as {found[flag.dest][1]}; keep one of them")
        if (isinstance(value, dict) and flag.type != "json") or (isinstance(value, list) and not flag.many):
            shown = "the given value" if flag.secret else repr(value)
            raise ConfigError(f"{where}: {shown} is not a single value")
        found[flag.dest] = (value, where)
    return found


def _build(sources: Mapping[str, tuple[Any, str]]) -> ServerConfig:
    values: dict[str, Any] = {f.dest: f.default for f in FLAGS}
    for flag in FLAGS:
        if flag.dest in sources:
            values[flag.dest] = check(flag, *sources[flag.dest])
    notes = []
    if values["api_key_file"] is not None:
        values["keys_in_file"] = read_settled_key_file(values["api_key_file"])
        if not values["keys_in_file"]:
            others = "only keys of --api-key are accepted" if values["api_key"] else "all requests are rejected (401)"
            notes.append(f"--api-key-file {values['api_key_file']} is empty: {others}")
    if "api_key" in sources and sources["api_key"][1] == "--api-key":
        notes.append("--api-key: the process list shows these keys to every user of this machine; better use "
                     "--api-key-file, or UNMASK_API_KEY")  # fmt: skip
    values["notes"] = tuple(notes)
    later = values["lora_config"] is not None or values["lora_routes"]
    if later and not values["lora"] and values["max_loras"] is None:
        values["max_loras"] = DEFAULT_MAX_LORAS  # slots for adapters that are loaded while the server runs
    engine = EngineConfig(**{f.name: values[f.name] for f in dataclasses.fields(EngineConfig) if f.name in values})
    own = {f.name: values[f.name] for f in dataclasses.fields(ServerConfig) if f.name in values}
    config = ServerConfig(engine=engine, **own)
    if values["print_config"]:
        sys.stdout.write(printed(values, sources))
        raise SystemExit(0)
    return config


def printed(values: Mapping[str, Any], sources: Mapping[str, tuple[Any, str]]) -> str:
    """Returns the resolved values as YAML for --config, each with its source; secrets are hidden."""
    lines = []
    for flag in FLAGS:
        value = values[flag.dest]
        if flag.name in ("config", "print-config"):
            continue
        if flag.secret:
            lines.append(f"# {flag.name}: {len(value)} hidden")
            continue
        described = flag.help.partition("; default: ")[2] if value is None else ""
        source = sources[flag.dest][1] if flag.dest in sources else f"default: {described}" if described else "default"
        lines.append(f"{flag.name}: {json.dumps(value)}  # {source}")
    return "\n".join(lines) + "\n"


def yaml_location(error: Any) -> str:
    """Returns location and problem of an error of `load_yaml`, without the quoted lines: they may contain a key."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", getattr(error, "reason", "it is nested too deeply"))  # the last: RecursionError
    return ("" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})") + f": {problem}"


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
