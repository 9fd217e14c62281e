from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from checks import KEY, MODEL, PERSON, RECORD, SUM, SUM_ANSWER, TALE, URL, check, main, same
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)


class Person(BaseModel):
    name: str
    age: int
    city: str


def agent(**more: object) -> Agent[None]:
    client = AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)
    model = OpenAIChatCompletionsModel(MODEL, client)
    return Agent(name="demo", model=model, model_settings=ModelSettings(include_usage=True), **more)


@check("basic")
async def run() -> None:
    result = await Runner.run(agent(), SUM)
    same(result.final_output, SUM_ANSWER)
    asked = [*result.to_input_list(), {"role": "user", "content": "Solve: 7 * 8."}]
    same((await Runner.run(agent(), asked)).final_output, "7 x 8 = 56.")


@check("streaming")
async def run_streamed() -> None:
    whole = (await Runner.run(agent(), TALE)).final_output
    result = Runner.run_streamed(agent(), TALE)
    pieces = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
    same(["".join(pieces), result.final_output], [whole, whole])
    assert len(pieces) > 2, pieces
    assert result.context_wrapper.usage.output_tokens > 10


@check("basic")
async def over_responses() -> None:
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0))
    result = await Runner.run(Agent(name="demo", model=model), SUM)
    same(result.final_output, SUM_ANSWER)
    asked = [*result.to_input_list(), {"role": "user", "content": "Solve: 7 * 8."}]
    same((await Runner.run(Agent(name="demo", model=model), asked)).final_output, "7 x 8 = 56.")


@check("structured")
async def output_type() -> None:
    same((await Runner.run(agent(output_type=Person), RECORD)).final_output, Person(**PERSON))


main()
