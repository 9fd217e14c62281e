"""Attacks for the tests of the siege itself."""

from tests.siege.registry import attack
from tests.siege.target import Target

ONLOOKERS, LIARS = "onlookers", "liars"


@attack(ONLOOKERS, "a wrong key twice a second")
async def onlookers(target: Target) -> None:
    while target.on():
        await target.ask(target.head("GET", "/v1/models", "Authorization: Bearer wrong"))
        await target.pause(0.5)


@attack(LIARS, "says that a promise was broken")
async def liars(target: Target) -> None:
    target.did["lies"] += 1
    target.says("a body became a request")
