"""The attacks by name. Each file in ``attacks/`` has related attacks. Importing all files fills the table."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from tests.siege.target import Target

AttackFunction = Callable[[Target], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Attack:
    name: str
    rate: str  # what the attack sends and how often, for the table
    run: AttackFunction
    keyed: bool = False  # whether the attacker has a key, which innocents do not share unless `one_key` is set
    seconds: float = 15.0
    descriptors: int | None = None  # the server's limit, if the attack is on that
    # In a run alone:
    one_key: bool = False  # whether the server has a single key, which attacker and innocents share
    server_args: tuple[str, ...] = ()  # further flags of the server
    full: bool = False  # whether the server may answer innocents with 503, as its flags leave no capacity
    schemas: bool = False  # whether each short chat of innocents has a JSON schema that no earlier one had
    model: str = ""  # name of the model that innocents ask for; "": the base model
    # Limit of the median time of innocents, as a multiple of the usual time or of the control's.
    slowdown: float | None = None


ATTACKS: dict[str, Attack] = {}
CONTROLS: dict[str, Attack] = {}  # by the name of the attack


def attack(name: str, rate: str, **options: Any) -> Callable[[AttackFunction], AttackFunction]:
    """Registers a function as an attack. `options`: further attributes of `Attack`."""

    def register(function: AttackFunction) -> AttackFunction:
        if name in ATTACKS:
            raise ValueError(f"two attacks are called {name}")
        ATTACKS[name] = Attack(name, rate, function, **options)
        return function

    return register


def control(name: str) -> Callable[[AttackFunction], AttackFunction]:
    """Registers a control of attack `name`: the same load without the attack, the base of the others' slowdown."""

    def register(function: AttackFunction) -> AttackFunction:
        CONTROLS[name] = replace(ATTACKS[name], name=f"control of {name}", run=function)
        return function

    return register


def by_name(name: str) -> Attack:
    """Returns the attack or control of this name."""
    return ATTACKS.get(name) or next(each for each in CONTROLS.values() if each.name == name)
