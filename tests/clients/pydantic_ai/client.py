import checks
from checks import calculated, calculator, called, check, main, same
from person import Person
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(checks.MODEL, provider=OpenAIProvider(base_url=checks.URL, api_key=checks.KEY))


@check("basic")
async def run() -> None:
    result = await Agent(model).run(checks.SUM)
    same(result.output, checks.SUM_ANSWER)
    assert result.usage.output_tokens > 5


@check("basic")
async def history() -> None:
    agent = Agent(model)
    first = await agent.run(checks.SUM)
    same((await agent.run("Solve: 7 * 8.", message_history=first.all_messages())).output, "7 x 8 = 56.")


@check("streaming")
async def run_stream() -> None:
    agent = Agent(model)
    output = (await agent.run(checks.TALE)).output
    async with agent.run_stream(checks.TALE) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    same("".join(pieces), output)
    assert len(pieces) > 2, pieces


@check("structured")
async def native_output() -> None:
    result = await Agent(model, output_type=NativeOutput(Person)).run(checks.RECORD)
    same(result.output, Person(**checks.PERSON))


@check("structured")
async def prompted_output() -> None:
    result = await Agent(model, output_type=PromptedOutput(Person, template=False)).run(checks.RECORD)
    same(result.output, Person(**checks.PERSON))


@check("structured")
async def native_output_streamed() -> None:
    async with Agent(model, output_type=NativeOutput(Person)).run_stream(checks.RECORD) as result:
        same(await result.get_output(), Person(**checks.PERSON))


class Calculator(BaseModel):
    """Calculate the value of an arithmetic expression."""

    expression: str


@check("tools")
async def there_and_back() -> None:
    called.clear()
    result = await Agent(model, tools=[calculator]).run(checks.COMPUTE)
    assert checks.COMPUTED in result.output, result.all_messages()
    same(len(called), 1)


@check("tools")
async def there_and_back_streamed() -> None:
    called.clear()
    async with Agent(model, tools=[calculator]).run_stream(checks.COMPUTE) as result:
        assert checks.COMPUTED in await result.get_output(), result.all_messages()
    same(len(called), 1)


@check("tools")
async def output_as_a_tool() -> None:
    found = (await Agent(model, output_type=ToolOutput(Calculator, name="calculator")).run(checks.COMPUTE)).output
    same(calculated(found.expression), checks.COMPUTED)


main()
