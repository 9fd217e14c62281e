import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import checks
import httpx
import openai
from checks import calculated, check, main, same, user_message
from person import Person

NAME = "demo"  # of the model at the proxy
PROXY_KEY = "sk-of-the-proxy"
CONFIG = {
    "model_list": [{"model_name": NAME, "litellm_params": {
        "model": f"openai/{checks.MODEL}", "api_base": checks.URL, "api_key": "os.environ/UNMASK_CLIENT_KEY"}}],
    "litellm_settings": {"num_retries": 0}, "general_settings": {"master_key": PROXY_KEY},
}  # fmt: skip


@contextmanager
def proxy() -> Iterator[str]:
    """Runs the proxy. Yields its URL."""
    Path("config.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = ["litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True"}  # no downloads
    process = subprocess.Popen(command, env=os.environ | local)
    try:
        while not ready(url):
            assert process.poll() is None, "the proxy has ended"
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/readiness", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


CALCULATOR: Any = {
    "name": "calculator",
    "description": "Calculate the value of an arithmetic expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def claude_message(text: str) -> Any:
    return {"model": NAME, "max_tokens": 200, "messages": user_message(text)}


@check("basic")
def chat() -> None:
    answer = client.chat.completions.create(model=NAME, messages=user_message(checks.SUM))
    same([answer.choices[0].message.content, answer.choices[0].finish_reason], [checks.SUM_ANSWER, "stop"])


@check("basic")
def its_own_history() -> None:
    first = client.chat.completions.create(model=NAME, messages=user_message(checks.SUM)).choices[0].message
    history = [*user_message(checks.SUM), first.model_dump(), *user_message(checks.MULTIPLICATION)]
    answer = client.chat.completions.create(model=NAME, messages=history)
    same(answer.choices[0].message.content, checks.MULTIPLICATION_ANSWER)


@check("basic")
def responses() -> None:
    same(client.responses.create(model=NAME, input=checks.SUM).output_text, checks.SUM_ANSWER)


@check("basic")
def messages() -> None:
    answer = claude.messages.create(**claude_message(checks.SUM))
    same([block.text for block in answer.content if block.type == "text"], [checks.SUM_ANSWER])
    same(answer.stop_reason, "end_turn")


@check("streaming")
def chat_streamed() -> None:
    complete = client.chat.completions.create(model=NAME, messages=user_message(checks.TALE))
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=user_message(checks.TALE), stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    same("".join(pieces), complete.choices[0].message.content)
    assert len(pieces) > 2, pieces
    assert chunks[-1].usage and complete.usage
    same(chunks[-1].usage.completion_tokens, complete.usage.completion_tokens)


@check("streaming")
def responses_streamed() -> None:
    complete = client.responses.create(model=NAME, input=checks.TALE).output_text
    with client.responses.stream(model=NAME, input=checks.TALE) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    same(text, complete)


@check("streaming")
def messages_streamed() -> None:
    complete = claude.messages.create(**claude_message(checks.TALE))
    with claude.messages.stream(**claude_message(checks.TALE)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    same(["".join(pieces), final.content[0].text], [complete.content[0].text] * 2)
    assert len(pieces) > 2, pieces


@check("structured")
def parsed() -> None:
    answer = client.chat.completions.parse(model=NAME, messages=user_message(checks.RECORD), response_format=Person)
    same(answer.choices[0].message.parsed, Person(**checks.PERSON))


@check("tools")
def there_and_back() -> None:
    asked: Any = {"model": NAME, "tools": [{"type": "function", "function": CALCULATOR}]}
    message = client.chat.completions.create(**asked, messages=user_message(checks.COMPUTE)).choices[0].message
    (call,) = message.tool_calls or []
    result = calculated(json.loads(call.function.arguments)["expression"])
    history = [*user_message(checks.COMPUTE), message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    answer = client.chat.completions.create(**asked, messages=history).choices[0].message.content
    assert answer and checks.COMPUTED in answer, answer
    with client.chat.completions.stream(**asked, messages=user_message(checks.COMPUTE)) as stream:
        (again,) = stream.get_final_completion().choices[0].message.tool_calls or []
    same(again.function.arguments, call.function.arguments)


@check("tools")
def there_and_back_with_messages() -> None:
    tool = {"name": CALCULATOR["name"], "description": CALCULATOR["description"]}
    asked = claude_message(checks.COMPUTE) | {"tools": [tool | {"input_schema": CALCULATOR["parameters"]}]}
    with claude.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    (call,) = (block for block in message.content if block.type == "tool_use")
    same([message.stop_reason, call.name], ["tool_use", "calculator"])
    result = {"type": "tool_result", "tool_use_id": call.id, "content": calculated(call.input["expression"])}
    asked["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(**asked)
    assert checks.COMPUTED in answer.content[0].text, answer


@check("more")
def models() -> None:
    same([model.id for model in client.models.list()], [NAME])


@check("more")
def errors() -> None:
    try:
        client.chat.completions.create(model=NAME, messages=user_message(checks.SUM), max_tokens=0)
    except openai.BadRequestError as error:
        assert "max_tokens: 0 is out of range" in error.message, error
        return
    raise AssertionError("a wrong value is not refused")


with proxy() as url:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=PROXY_KEY, max_retries=0)
    claude = anthropic.Anthropic(base_url=url, api_key=PROXY_KEY, max_retries=0)
    main()
