"""Published checkpoints, from ``published.toml``: defaults by family and by name, repositories, and their checks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from runtime.request.engine_messages import SAMPLING
from runtime.request.field_spec import Value


@dataclass(frozen=True)
class Entry:
    """An entry of ``published.toml``.

    Attributes:
        repository: regular expression; None: all checkpoints of the family.
        served: the server's defaults.
        published: settings of the authors; each has a `source`.
    """

    family: str
    repository: str | None = None
    served: Mapping[str, Any] = field(default_factory=dict)
    published: Sequence[Mapping[str, Any]] = ()

    def names(self, name: str) -> bool:
        """Whether the entry is for the repository `name`, with or without its organization."""
        return self.repository is not None and bool(re.search(self.repository, name.rpartition("/")[2], re.IGNORECASE))


@dataclass(frozen=True)
class Fact:
    """A fact of a repository. ``published.toml`` lists the sources."""

    value: Any
    source: str


@dataclass(frozen=True)
class Repository:
    """A repository with a checkpoint. A fact is None if no source tells it.

    Attributes:
        name: ``org/name``.
        family: key of the family.
        weights: GB of 10^9 bytes.
        license: name of the license of the weights.
        format: format of the weights in its files.
        block: tokens per block.
        needs_name: whether --model-name has to select the family.
    """

    name: str
    family: str
    block: Fact
    weights: Fact | None = None
    license: Fact | None = None
    format: Fact | None = None
    needs_name: bool = False


@dataclass(frozen=True)
class Check:
    """With what a family was compared, on tiny checkpoints with random weights.

    Attributes:
        logits: whether logits equal those of the published implementation.
        answers: how many answers equal those of the published implementation; "" for none.
        others: independent implementations.
    """

    family: str
    logits: bool
    others: str
    answers: str = ""


@dataclass(frozen=True)
class PublishedDefaults:
    """The server's defaults for a checkpoint. A field that is absent has no such default.

    Attributes:
        sampling_mode: default of --sampling-mode.
        sampling: defaults of `SAMPLING`. They precede generation_config.json.
        fields: defaults of fields of ``decoding``.
        algorithm_fields: those of one algorithm, by its key. They precede `fields`.
        repository: name that selected entries of its own; None: only those of the family apply.
        changed_by_name: whether these entries have defaults.
    """

    sampling_mode: str | None
    sampling: Mapping[str, float]
    fields: Mapping[str, Value]
    algorithm_fields: Mapping[str, Mapping[str, Value]]
    repository: str | None
    changed_by_name: bool

    def fields_of(self, algorithm: str) -> Mapping[str, Value]:
        """Returns the defaults of the fields of an algorithm."""
        return {**self.fields, **self.algorithm_fields.get(algorithm, {})}


@cache
def _content() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))


@cache
def entries() -> tuple[Entry, ...]:
    """Returns the entries of ``published.toml``, in its order."""
    return tuple(Entry(**entry) for entry in _content()["entry"])


def repositories() -> list[Repository]:
    """Returns the repositories of ``published.toml``, in its order."""

    def read(value: Any) -> Any:
        return Fact(**value) if isinstance(value, dict) else value

    return [Repository(**{key: read(value) for key, value in each.items()}) for each in _content()["repository"]]


def checks() -> dict[str, Check]:
    """Returns how each family was checked, by its key."""
    return {each["family"]: Check(**each) for each in _content()["check"]}


def published_defaults(family: str, names: Sequence[str]) -> PublishedDefaults:
    """Returns the defaults of a checkpoint.

    Args:
        family: key of the family.
        names: names of the repository (``weights.repository``). The first that an entry of the family is for counts.
    """
    own = [entry for entry in entries() if entry.family == family]
    name = next((name for name in names if any(entry.names(name) for entry in own)), None)
    served: dict[str, Any] = {}
    algorithm_fields: dict[str, dict[str, Value]] = {}
    for entry in sorted(own, key=lambda entry: entry.repository is not None):
        if entry.repository is None or (name is not None and entry.names(name)):
            for key, value in entry.served.items():
                if isinstance(value, dict):
                    algorithm_fields[key] = algorithm_fields.get(key, {}) | value
                else:
                    served[key] = value
    return PublishedDefaults(
        sampling_mode=served.pop("sampling_mode", None),
        sampling={key: served.pop(key) for key in SAMPLING if key in served},
        fields=served,
        algorithm_fields=algorithm_fields,
        repository=name,
        changed_by_name=any(entry.served for entry in own if name is not None and entry.names(name)),
    )
