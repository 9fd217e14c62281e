"""Runs tasks with sums: the demo model generates the right answer, which is more probable than wrong ones."""

import json
import os
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
home = Path(tempfile.mkdtemp(prefix="unmask-lm-eval-"))
os.environ["HF_HOME"] = str(home)

import requests  # noqa: E402
from checks import KEY, MODEL, SERVER, URL, check, main, same  # noqa: E402

os.environ["OPENAI_API_KEY"] = KEY
import lm_eval  # noqa: E402

SUMS = [(12, 30, 3), (7, 21, 1), (25, 40, 2), (31, 16, 0)]  # two numbers, and the index of the right answer


def tokenizer():
    """Returns the folder of the demo checkpoint with its tokenizer, which is part of the package."""
    return str(Path(__file__).parents[3] / "runtime" / "demo" / "checkpoint")


def documents():
    path = home / "sums.jsonl"
    with path.open("w") as file:
        for a, b, digits in SUMS:
            wrong = [a + b - 10, a + b - 1, a + b + 2]
            wrong.insert(digits, a + b)
            choices = [f"{a} + {b} = {one}." for one in wrong]
            file.write(json.dumps({"question": f"Solve: {a} + {b}.", "choices": choices, "right": digits}) + "\n")
    return str(path)


def task(name, kind, **more):
    files = {"data_files": {"test": documents()}}
    return {
        "task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "output_type": kind,
        "doc_to_text": "{{question}}", **more,
    }  # fmt: skip


GENERATION = {
    "doc_to_target": "{{choices[right]}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 24},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHOICE = {
    "doc_to_target": "right",
    "doc_to_choice": "choices",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def score(model, path, expected, metric, **arguments):
    known = {"model": MODEL, "base_url": f"{URL}/{path}", "num_concurrent": 2, "max_length": 512} | arguments
    done = lm_eval.simple_evaluate(
        model=model, model_args=known, tasks=[expected], apply_chat_template=True, bootstrap_iters=0
    )
    return done["results"][expected["task"]][f"{metric},none"]


@check("basic")
def chat_generation():
    expected = task("sums_chat", "generate_until", **GENERATION)
    same(score("local-chat-completions", "chat/completions", expected, "exact_match", tokenizer_backend=None), 1.0)


@check("basic")
def generation():
    expected = task("sums_text", "generate_until", **GENERATION)
    same(score("local-completions", "completions", expected, "exact_match", **ids()), 1.0)


@check("more")
def multiple_choice():
    expected = task("sums_choice", "multiple_choice", **CHOICE)
    same(score("local-completions", "completions", expected, "acc", **ids()), 1.0)


@check("more")
def remote_tokenizer():
    from lm_eval.utils import RemoteTokenizer, check_remote_tokenizer_support

    base = f"{URL}/completions"
    assert check_remote_tokenizer_support(base, auth_token=KEY)
    remote = RemoteTokenizer(base, auth_token=KEY)
    tokenizer_info = requests.get(
        f"{SERVER}/tokenizer_info", headers={"Authorization": f"Bearer {KEY}"}, timeout=30
    ).json()
    same(remote.eos_token, tokenizer_info["eos_token"])
    same(remote.decode(remote.encode("Solve: 12 + 30.")), "Solve: 12 + 30.")
    assert "HUMAN" in remote.apply_chat_template([{"role": "user", "content": "hello"}])


def ids():
    """Returns options that send prompts as token ids: to the server, special tokens in a text are ordinary text."""
    return {"tokenizer": tokenizer(), "tokenizer_backend": "huggingface", "tokenized_requests": True}


main()
