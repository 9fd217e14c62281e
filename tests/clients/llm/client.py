import os
import pathlib
import subprocess
from typing import Any

from checks import KEY, MODEL, PERSON, RECORD, SCHEMA, SUM, SUM_ANSWER, TALE, URL, check, main, same

USER = pathlib.Path(os.environ["HOME"]) / "llm"
MODELS = f"""
- model_id: demo
  model_name: {MODEL}
  api_base: "{URL}"
  api_key_name: demo
  supports_schema: true
"""


def llm(*args: str) -> Any:
    command = ["llm", *args]
    done = subprocess.run(command, env=os.environ | {"LLM_USER_PATH": str(USER)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


USER.mkdir(parents=True)
(USER / "extra-openai-models.yaml").write_text(MODELS)
llm("keys", "set", "demo", "--value", KEY)


@check("basic")
def prompt() -> None:
    same(llm("-m", "demo", "--no-stream", SUM).strip(), SUM_ANSWER)


@check("basic")
def conversation() -> None:
    same(llm("-m", "demo", "-c", "Solve: 7 * 8.").strip(), "7 x 8 = 56.")


@check("streaming")
def streamed() -> None:
    same(llm("-m", "demo", TALE), llm("-m", "demo", "--no-stream", TALE))


@check("structured")
def schema() -> None:
    import json

    same(json.loads(llm("-m", "demo", "--schema", json.dumps(SCHEMA), RECORD)), PERSON)


main()
