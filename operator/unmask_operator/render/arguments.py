"""Renders the engine's command line from the spec and the runtime's flag table.

Only flags that the spec sets are rendered, because older runtime images do not support newer flags.
"""

import dataclasses
from collections.abc import Iterator

from pydantic import BaseModel

from runtime.config import FLAGS, parse
from runtime.errors import ConfigError
from unmask_operator.api import DiffusionLMService, SpecError
from unmask_operator.api.base import flag_argument, flag_of
from unmask_operator.api.engine import RESERVED
from unmask_operator.render import adapters, groups, model, model_cache
from unmask_operator.render.labels import KEYS_FILE, KEYS_MOUNT
from unmask_operator.settings import Settings

_EXTRA = "spec.engine.extraArgs"
_AUTH = "spec.auth"
_FLAG_NAMES = {spelling: flag.name for flag in FLAGS for spelling in flag.spellings}
_FREE = {*_FLAG_NAMES.values()} - {*RESERVED}
_OVERRIDABLE = {"device", "log-format"}  # tests run simulated GPUs on CPU; the log format is a user preference


def engine_arguments(resource: DiffusionLMService, settings: Settings) -> list[str]:
    """Returns the arguments of ``python -m runtime.server``, those of the spec's fields before extraArgs.

    The runtime's parser checks the arguments only if the image has the operator's version, whose flags are known.

    Raises:
        SpecError: an extra argument is reserved or repeats a flag that another field sets, or the runtime's parser
            rejects the arguments.
    """
    written = dict(_written(resource))
    extra = resource.spec.engine.extra_args
    _refuse_reserved(extra)
    _refuse_repetitions(extra, written)
    image = resource.spec.image or settings.runtime_image
    if extra and dataclasses.replace(settings, runtime_image=image).runtime_is_own_version:
        # The key file exists only in the pod.
        local = (argument for field, argument in written.items() if field != _AUTH)
        _parse_with_runtime([*local, *extra])
    return [*written.values(), *extra]


def _written(resource: DiffusionLMService) -> Iterator[tuple[str, str]]:
    """Yields the field of the spec (or the flag, if it has no field) and the argument."""
    spec = resource.spec
    if path := model_cache.model(resource) or model.model_argument(spec):
        yield "spec.model.uri", f"--model={path}"
    yield "spec.model.name", f"--served-model-name={resource.model_name}"
    if spec.model.family:
        yield "spec.model.family", f"--model-name={spec.model.family}"
    yield "spec.gpu", f"--device={'cuda' if spec.gpu else 'cpu'}"
    for kind in ("tensor", "data", "expert"):
        if (size := getattr(spec.parallelism, kind)) > 1:
            yield f"spec.parallelism.{kind}", f"--{kind}-parallel-size={size}"
    yield from ((argument, argument) for argument in groups.arguments(spec.parallelism.nodes))
    yield from _fields(spec.engine, "spec.engine")
    if spec.lora:
        yield from _fields(spec.lora, "spec.lora")
        yield from adapters.arguments(spec)
    if spec.auth:
        yield _AUTH, f"--api-key-file={KEYS_MOUNT}/{KEYS_FILE}"
    yield "spec.drainTimeoutSeconds", f"--drain-timeout={spec.drain_timeout_seconds}"
    yield "spec.drainDelaySeconds", f"--drain-delay={spec.drain_delay}"
    yield "--log-format", "--log-format=json"


def _fields(section: BaseModel, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path and argument of each field of a section and its subsections that sets a flag."""
    for name, field in type(section).model_fields.items():
        value, where = getattr(section, name), f"{path}.{field.alias}"
        flag = flag_of(field)
        if isinstance(value, BaseModel):
            yield from _fields(value, where)
        elif flag is not None and value is not None:
            yield where, flag_argument(flag, field, value)


def _name(argument: str) -> str | None:
    """Returns the name of the flag that an argument sets; None for a value."""
    spelling = argument.removeprefix("--").split("=", 1)[0]
    return _FLAG_NAMES.get(spelling, spelling) if argument.startswith("--") else None


def _refuse_repetitions(extra: list[str], written: dict[str, str]) -> None:
    setters = {_name(argument): field for field, argument in written.items()}
    for argument in extra:
        name = _name(argument)
        if name in setters and name not in _OVERRIDABLE:
            raise SpecError(_EXTRA, f"--{name} is set by {setters[name]} too; remove one of them")


def _refuse_reserved(extra: list[str]) -> None:
    """Rejects reserved flags and their abbreviations.

    The CustomResourceDefinition may have another version, whose rule lacks newer reserved flags. The runtime accepts no
    abbreviations, but an image of another version might.
    """
    for argument in extra:
        name = argument.split("=", 1)[0]
        spelling = name.removeprefix("--").replace("_", "-")
        if not spelling or not name.startswith("--") or spelling in _FREE:
            continue
        if reserved := next((flag for flag in RESERVED if flag.startswith(spelling)), None):
            verb = "is" if reserved == spelling else f"abbreviates --{reserved}, which is"
            raise SpecError(_EXTRA, f"{name} {verb} reserved for the operator; remove it")


def _parse_with_runtime(arguments: list[str]) -> None:
    try:
        parse(arguments, {})
    except ConfigError as error:
        raise SpecError(_EXTRA, str(error)) from None
    except SystemExit:  # a flag that prints and exits
        raise SpecError(_EXTRA, "a flag makes the runtime print and exit; remove it") from None
