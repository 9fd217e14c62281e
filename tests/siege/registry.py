"""The attacks by name. A family of them is one file in ``attacks/``; importing that package fills the table."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from tests.siege.target import Target

AttackFunction = Callable[[Target], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Attack:
    name: str
    rate: str  # what it sends and how often, for the table
    run: AttackFunction
    keyed: bool  # whether the attacker holds a key (of its own, not the innocents')
    seconds: float
    descriptors: int | None  # the server's limit, where the attack is on that
    one_key: bool  # whether, alone, the server knows one key only, which attacker and innocents share
    server_args: tuple[str, ...]  # the server's further flags, alone
    full: bool  # whether, alone, the server may turn innocents away with 503: it has no room by its flags
    schemas: bool = False  # whether, alone, innocents' short chats bring a JSON schema that the server has not seen
    # when it runs alone: limit of the median time of innocents, as a multiple of the usual one, or of its control's
    slowdown: float | None = None


ATTACKS: dict[str, Attack] = {}
CONTROLS: dict[str, Attack] = {}  # by the name of the attack


def attack(
    name: str,
    rate: str,
    *,
    keyed: bool = False,
    seconds: float = 15.0,
    descriptors: int | None = None,
    one_key: bool = False,
    server_args: tuple[str, ...] = (),
    full: bool = False,
    schemas: bool = False,
    slowdown: float | None = None,
) -> Callable[[AttackFunction], AttackFunction]:
    def register(function: AttackFunction) -> AttackFunction:
        if name in ATTACKS:
            raise ValueError(f"two attacks are called {name}")
        ATTACKS[name] = Attack(
            name, rate, function, keyed, seconds, descriptors, one_key, server_args, full, schemas, slowdown
        )
        return function

    return register


def control(name: str) -> Callable[[AttackFunction], AttackFunction]:
    """Registers the same load without what the attack `name` is about. Others' slowdown is then relative to it."""

    def register(function: AttackFunction) -> AttackFunction:
        CONTROLS[name] = replace(ATTACKS[name], name=f"control of {name}", run=function)
        return function

    return register


def by_name(name: str) -> Attack:
    """Returns the attack or control of this name."""
    return ATTACKS.get(name) or next(each for each in CONTROLS.values() if each.name == name)
