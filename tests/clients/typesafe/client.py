import checks
from checks import check, main, same
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Noul,
    NoulCriteria,
    Score,
    SystemOneResponse,
    TypeSafeBadRequestError,
    TypeSafeClient,
    TypeSafeNotFoundError,
)

STATE = {"mail": "Stripe has failed to connect for three days.", "from": ["Anna"]}
QUESTIONS = {
    "urgent": Noul(instructions="Is it urgent?", criteria=NoulCriteria(true="days are lost", false="it can wait")),
    "team": Choice(instructions="Which team?", criteria={"billing": "payments", "technical": None}),
    "anger": Score(instructions="How angry?", criteria=["calm", "annoyed", "angry"]),
}
client = TypeSafeClient(base_url=checks.SERVER, api_key=checks.KEY, model=checks.MODEL, timeout=60)


def check_answers(response: SystemOneResponse) -> None:
    answers = response.answers
    same(list(answers), list(QUESTIONS))
    assert 0 < answers["urgent"].noul < 1
    same(sorted(answers["team"].probabilities), ["billing", "technical"])
    assert answers["team"].choice in answers["team"].probabilities
    assert 0 <= answers["anger"].score <= 2
    assert response.usage.input_tokens > 0


@check("basic")
def system_one() -> None:
    check_answers(client.system_one(STATE, QUESTIONS))


@check("basic")
async def system_one_async() -> None:
    async with AsyncTypeSafeClient(base_url=checks.SERVER, api_key=checks.KEY, model=checks.MODEL, timeout=60) as other:
        check_answers(await other.system_one("Stripe has failed.", QUESTIONS, extra_body={"joint": True}))


@check("more")
def models() -> None:
    assert checks.MODEL in [model.name for model in client.models.list().models]


@check("more")
def errors() -> None:
    for model, criteria, kind in (
        ("other", {"a": None, "b": None}, TypeSafeNotFoundError),
        (checks.MODEL, {str(n): None for n in range(99)}, TypeSafeBadRequestError),
    ):
        try:
            client.system_one(STATE, {"q": Choice(instructions="Which?", criteria=criteria)}, model=model)
        except kind as error:
            assert "model" in str(error) or "questions.q" in str(error), error
        else:
            raise AssertionError(f"{kind.__name__} was not raised")


main()
