from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from person import Person
from strands import Agent
from strands.models.openai import OpenAIModel


def model() -> OpenAIModel:
    return OpenAIModel(client_args={"base_url": URL, "api_key": KEY, "max_retries": 0}, model_id=MODEL)


def agent() -> Agent:
    return Agent(model(), callback_handler=None)


@check("basic")
def call() -> None:
    solver = agent()
    same(str(solver(SUM)).strip(), SUM_ANSWER)
    same(str(solver("Solve: 7 * 8.")).strip(), "7 x 8 = 56.")


@check("streaming")
async def stream_async() -> None:
    pieces = [event["data"] async for event in agent().stream_async(TALE) if "data" in event]
    same("".join(pieces), str(await agent().invoke_async(TALE)).removesuffix("\n"))
    assert len(pieces) > 2, pieces


@check("structured")
async def structured_output() -> None:
    messages = [{"role": "user", "content": [{"text": RECORD}]}]
    found = [event["output"] async for event in model().structured_output(Person, messages) if "output" in event]
    same(found[-1], Person(**PERSON))


main()
