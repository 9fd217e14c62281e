"""Registry of decoding strategies."""

from __future__ import annotations

from collections.abc import Callable

from runtime.errors import ConfigError
from runtime.plugins import Registry
from runtime.scheduling.strategy import DecodingContext, Strategy

StrategyFactory = Callable[[DecodingContext], Strategy]
# Each strategy is stored with the families that it supports although they do not list it.
_STRATEGIES: Registry[tuple[StrategyFactory, tuple[str, ...]]] = Registry("decoding strategy")


def register_strategy(key: str, families: tuple[str, ...] = ()) -> Callable[[StrategyFactory], StrategyFactory]:
    """Registers a strategy as ``--decoding-strategy KEY``, for families that list it and for `families`."""

    def add(make: StrategyFactory) -> StrategyFactory:
        return _STRATEGIES.add(key, (make, families))[0]

    return add


def strategies() -> list[str]:
    """Returns the keys of all registered strategies, sorted."""
    return sorted(_STRATEGIES)


def strategies_supporting(family: str) -> tuple[str, ...]:
    """Returns the keys of the strategies that were registered for this family."""
    return tuple(key for key in strategies() if family in _STRATEGIES[key][1])


def make_strategy(key: str, fits: tuple[str, ...], context: DecodingContext) -> Strategy:
    """Creates the strategy `key`.

    Args:
        fits: keys of the strategies that the family of the model supports.

    Raises:
        ConfigError: the strategy is not one of them, or none of them is available.
    """
    usable = [name for name in strategies() if name in fits]
    if not usable:
        raise ConfigError(
            f"the model's family needs the decoding strategy {' or '.join(fits)}, which is not registered; registered: "
            f"{', '.join(strategies())}"
        )
    if key not in usable:
        raise ConfigError(f"--decoding-strategy {key!r} does not fit this model; use one of {', '.join(usable)}")
    return _STRATEGIES[key][0](context)
