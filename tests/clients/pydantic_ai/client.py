from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key=KEY))


class Person(BaseModel):
    name: str
    age: int
    city: str


@check("basic")
async def run() -> None:
    result = await Agent(model).run(SUM)
    same(result.output, SUM_ANSWER)
    assert result.usage.output_tokens > 5


@check("basic")
async def history() -> None:
    agent = Agent(model)
    first = await agent.run(SUM)
    same((await agent.run("Solve: 7 * 8.", message_history=first.all_messages())).output, "7 x 8 = 56.")


@check("streaming")
async def run_stream() -> None:
    agent = Agent(model)
    whole = (await agent.run(TALE)).output
    async with agent.run_stream(TALE) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    same("".join(pieces), whole)
    assert len(pieces) > 2, pieces


@check("structured")
async def native_output() -> None:
    result = await Agent(model, output_type=NativeOutput(Person)).run(RECORD)
    same(result.output, Person(**PERSON))


@check("structured")
async def prompted_output() -> None:
    result = await Agent(model, output_type=PromptedOutput(Person, template=False)).run(RECORD)
    same(result.output, Person(**PERSON))


@check("structured")
async def native_output_streamed() -> None:
    async with Agent(model, output_type=NativeOutput(Person)).run_stream(RECORD) as result:
        same(await result.get_output(), Person(**PERSON))


main()
