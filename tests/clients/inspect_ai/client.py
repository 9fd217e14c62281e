import json
import os
import subprocess
from pathlib import Path
from typing import Any

import checks
from checks import calculated, check, main, same
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from inspect_ai.model import GenerateConfig, Model, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from person import Person

NAME = f"openai-api/unmask/{checks.MODEL}"
SUMS = Path("sums.py")
SUMS.write_text("""
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def sums():
    samples = [Sample(input=f"Solve: {i} + 30.", target=f"{i} + 30 = {i + 30}.") for i in range(8)]
    return Task(dataset=samples, solver=generate(), scorer=match("exact"))
""")


def demo(**arguments: Any) -> Model:
    return get_model(NAME, base_url=checks.URL, api_key=checks.KEY, memoize=False, **arguments)


def accuracy(log: EvalLog) -> float:
    assert log.status == "success" and log.results, log.error
    return log.results.scores[0].metrics["accuracy"].value


def evaluate(task: Task | str, model: Model) -> EvalLog:
    (log,) = eval(task, model=model, display="none", log_dir="logs")
    return log


@check("basic")
def command_line() -> None:
    env = os.environ | {"UNMASK_API_KEY": checks.KEY, "UNMASK_BASE_URL": checks.URL}
    command = ["inspect", "eval", str(SUMS), "--model", NAME, "--display", "none", "--log-dir", "of_command"]
    subprocess.run(command, env=env, check=True)
    (found,) = list_eval_logs("of_command")
    log = read_eval_log(found)
    same([accuracy(log), len(log.samples or [])], [1.0, 8])
    (usage,) = log.stats.model_usage.values()
    assert usage.output_tokens > 40, usage


@check("basic")
def over_responses() -> None:
    same(accuracy(evaluate(str(SUMS), demo(responses_api=True))), 1.0)


@check("streaming")
async def stream() -> None:
    complete = await demo().generate(checks.TALE)
    same((await demo(stream=True).generate(checks.TALE)).completion, complete.completion)


@check("structured")
async def response_schema() -> None:
    schema = ResponseSchema(name="person", json_schema=json_schema(Person), strict=True)
    answer = await demo().generate(checks.RECORD, config=GenerateConfig(response_schema=schema))
    same(json.loads(answer.completion), checks.PERSON)


@tool
def calculator() -> Tool:
    async def execute(expression: str) -> str:
        """Calculate the value of an arithmetic expression.

        Args:
            expression: The expression.
        """
        return calculated(expression)

    return execute


@check("tools")
def there_and_back() -> None:
    task = Task(
        dataset=[Sample(input=checks.COMPUTE, target=checks.COMPUTED)],
        solver=[use_tools(calculator()), generate()],
        scorer=includes(),
    )
    for model in (demo(), demo(stream=True), demo(responses_api=True)):
        log = evaluate(task, model)
        same(accuracy(log), 1.0)
        (sample,) = log.samples or []
        same([message.role for message in sample.messages], ["user", "assistant", "tool", "assistant"])


@check("more")
async def several_choices_and_logprobs() -> None:
    config = GenerateConfig(num_choices=2, logprobs=True, top_logprobs=2, temperature=0.2, seed=1)
    answer = await demo().generate(checks.SUM, config=config)
    same([choice.message.text for choice in answer.choices], [checks.SUM_ANSWER] * 2)
    logprobs = answer.choices[0].logprobs
    assert logprobs
    same("".join(token.token for token in logprobs.content), checks.SUM_ANSWER)


main()
