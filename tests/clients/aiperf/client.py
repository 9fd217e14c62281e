"""Runs eight requests, two at a time, and checks the measurements and the texts of the answers."""

import functools
import json
import os
import pathlib
import shutil
import subprocess

from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, check, main, same

REQUESTS = 8
PROMPTS = pathlib.Path("prompts.jsonl")
PROMPTS.write_text(f"{json.dumps({'text': SUM})}\n" * REQUESTS)
TOKENIZER = "unmask/demo"  # offline, aiperf finds it only in the hub's cache, not by the path of a folder


def cached():
    """Makes a hub cache with the demo's tokenizer, and returns its path."""
    home = pathlib.Path("hub")
    repository_folder = home / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    shutil.copytree(os.environ["UNMASK_CLIENT_TOKENIZER"], repository_folder / "snapshots" / "demo", dirs_exist_ok=True)
    (repository_folder / "refs").mkdir(exist_ok=True)
    (repository_folder / "refs" / "main").write_text("demo")
    return str(home.resolve())


@functools.cache
def profiled(name, *more):
    """Runs a profile, and checks that each request has the known answer and the number of tokens that aiperf counts."""
    made = pathlib.Path(name)
    command = [
        "aiperf", "profile", "--model", MODEL, "--url", SERVER, "--api-key", KEY, "--endpoint-type", "chat", *more,
    ]  # fmt: skip
    command += ["--input-file", str(PROMPTS), "--custom-dataset-type", "single_turn", "--tokenizer", TOKENIZER]
    command += ["--request-count", str(REQUESTS), "--concurrency", "2", "--workers-max", "1", "--ui", "none"]
    command += ["--artifact-dir", str(made), "--export-level", "records", "--export-outputs-json"]
    env = os.environ | {"HF_HOME": cached()}
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    profile = json.loads((made / "profile_export_aiperf.json").read_text())
    same((profile["request_count"]["avg"], profile["error_summary"], profile["was_cancelled"]), (REQUESTS, [], False))
    same(
        [one["response_text"] for one in json.loads((made / "outputs.json").read_text())["data"]],
        [SUM_ANSWER] * REQUESTS,
    )
    same(profile["usage_completion_tokens"]["avg"], profile["output_token_count"]["avg"])
    return made


@check("basic")
def complete():
    profiled("whole")


@check("streaming")
def streamed():
    profiled("streamed", "--streaming")


@check("more")
def metrics():
    """Checks that aiperf reads the server's /metrics in addition to its own measurements, without errors."""
    profile = json.loads((profiled("whole") / "server_metrics_export.json").read_text())
    same(profile["summary"]["endpoints_successful"], [f"{SERVER}/metrics"])
    assert any(name.startswith("unmask") for name in profile["metrics"]), list(profile["metrics"])


main()
