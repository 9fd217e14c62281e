import json
import os
import pathlib
import subprocess

from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, check, main, same

PROMPTS = pathlib.Path("prompts.jsonl")
PROMPTS.write_text("".join(json.dumps({"prompt": SUM, "output_tokens_count": 16}) + "\n" for _ in range(8)))


@check("streaming")
def streamed() -> None:
    """Runs eight requests, two at a time, and checks the report."""
    backend = {"kind": "openai_http", "target": SERVER, "model": MODEL, "api_key": KEY, "stream": True}
    made = pathlib.Path("report.json")
    command = ["guidellm", "run", "--backend", json.dumps(backend), "--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", "kind=max_requests,count=8", "--data", f"kind=json_file,path={PROMPTS}"]
    command += ["--output", f"kind=json,path={made}", "--disable-console"]
    env = os.environ | {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (benchmark,) = json.loads(made.read_text())["benchmarks"]
    same(benchmark["metrics"]["request_totals"], {"successful": 8, "errored": 0, "incomplete": 0, "total": 8})
    for request in benchmark["requests"]["successful"]:
        assert request["output"].startswith(SUM_ANSWER), request
        same(request["output_tokens"], 16)


main()
