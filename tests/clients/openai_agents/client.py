import checks
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import called, check, main, same
from openai import AsyncOpenAI
from person import Person

set_tracing_disabled(True)


calculator = function_tool(checks.calculator)


def agent(**more: object) -> Agent[None]:
    client = AsyncOpenAI(base_url=checks.URL, api_key=checks.KEY, max_retries=0)
    model = OpenAIChatCompletionsModel(checks.MODEL, client)
    return Agent(name="demo", model=model, model_settings=ModelSettings(include_usage=True), **more)


def responses() -> OpenAIResponsesModel:
    return OpenAIResponsesModel(checks.MODEL, AsyncOpenAI(base_url=checks.URL, api_key=checks.KEY, max_retries=0))


@check("basic")
async def run() -> None:
    for made in (agent(), Agent(name="demo", model=responses())):
        result = await Runner.run(made, checks.SUM)
        same(result.final_output, checks.SUM_ANSWER)
        asked = [*result.to_input_list(), {"role": "user", "content": "Solve: 7 * 8."}]
        same((await Runner.run(made, asked)).final_output, "7 x 8 = 56.")


@check("streaming")
async def run_streamed() -> None:
    output = (await Runner.run(agent(), checks.TALE)).final_output
    result = Runner.run_streamed(agent(), checks.TALE)
    pieces = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    same(["".join(pieces), result.final_output], [output, output])
    assert len(pieces) > 2, pieces
    assert result.context_wrapper.usage.output_tokens > 10


@check("structured")
async def output_type() -> None:
    same((await Runner.run(agent(output_type=Person), checks.RECORD)).final_output, Person(**checks.PERSON))


@check("tools")
async def there_and_back() -> None:
    for made in (agent(tools=[calculator]), Agent(name="demo", model=responses(), tools=[calculator])):
        called.clear()
        result = await Runner.run(made, checks.COMPUTE)
        assert checks.COMPUTED in result.final_output, result.new_items
        same(len(called), 1)


@check("tools")
async def there_and_back_streamed() -> None:
    for made in (agent(tools=[calculator]), Agent(name="demo", model=responses(), tools=[calculator])):
        called.clear()
        result = Runner.run_streamed(made, checks.COMPUTE)
        async for _ in result.stream_events():
            pass
        assert checks.COMPUTED in result.final_output, result.new_items
        same(len(called), 1)


main()
