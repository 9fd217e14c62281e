import checks
from checks import calculated, check, main, same
from guidance import assistant, gen, json, models, user
from person import Person


def model():
    return models.OpenAI(checks.MODEL, api_key=checks.KEY, base_url=checks.URL, max_retries=0, echo=False)


def asked(question, form):
    """Returns what `form` captured as "answer"."""
    state = model()
    with user():
        state += question
    with assistant():
        state += form
    return state["answer"]


@check("basic")
def chat():
    same(asked(checks.SUM, gen("answer")), checks.SUM_ANSWER)


@check("basic")
def two_turns():
    state = model()
    for question, answer in ((checks.TALE, None), (checks.SUM, checks.SUM_ANSWER)):
        with user():
            state += question
        with assistant():
            state += gen("answer")
        assert answer is None or state["answer"] == answer, state["answer"]


@check("structured")
def json_schema():
    same(Person.model_validate_json(asked(checks.RECORD, json("answer", schema=Person))), Person(**checks.PERSON))


@check("tools")
def round_trip():
    asked_for = []

    def calculator(expression: str) -> str:
        """Compute an expression."""
        asked_for.append(expression)
        return calculated(expression)

    state = model()
    with user():
        state += checks.COMPUTE
    with assistant():
        state += gen(tools=[calculator])
    with assistant():
        state += gen("answer")
    same(len(asked_for), 1)
    assert checks.COMPUTED in state["answer"], state["answer"]


main()
