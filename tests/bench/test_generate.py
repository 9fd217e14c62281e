"""Tests of `runtime.bench generate` with a tiny shape, and of checkpoints without tensors.

`generate` and `serve --arch` write such checkpoints.
"""

import json

import pytest

from runtime import LLM
from runtime.bench import random_backend
from runtime.bench.__main__ import main
from runtime.bench.random_weights import random_llm, write_files
from runtime.config import EngineConfig
from runtime.errors import ConfigError
from runtime.server.engine_client.ipc_protocol import Configure
from runtime.tokenizer import Tokenizer

TINY = ["generate", "--arch", "llada2-tiny", "--random-weights", "--device", "cpu"]
SIZES = ["--prompt", "32", "--max-tokens", "96", "--rounds", "1", "--repeats", "1"]


def test_every_step_fills_a_block(tmp_path, capsys):
    assert main([*TINY, *SIZES, "--batch", "1", "3", "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert (found["setup"]["model"], found["setup"]["dtype"]) == ("llada2-tiny", "float32")
    assert [row["batch"] for row in found["results"]] == [1, 3]
    for row in found["results"]:
        assert row["steps"] == 3
        assert 0 < row["different"] <= 1
        assert 0 < row["in_steps"] < 1
        assert row["allowed"] == pytest.approx(row["batch"] * 32 / row["commit_ms"] * 1e3, rel=0.01)
        assert row["share"] == pytest.approx(row["tokens_per_s"] / row["allowed"], rel=0.01)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "size", "mask"), [("llada2-tiny", 1024, 1023), ("llada2-mini", 157184, 156895)])
def test_files_of_a_shape_have_a_word_for_each_id(tmp_path, name, size, mask):
    write_files(tmp_path, name)
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.max_token_id == size - 1
    texts = [tokenizer.decode([id]) for id in range(1024, min(size, 5000))]
    assert all(word.startswith(" ") and len(word) > 4 for word in texts)
    ids = tokenizer.encode_chat([{"role": "user", "content": "What is 2 + 2?"}])
    assert mask not in ids
    assert len(ids) > 5


def test_the_backend_draws_random_weights_that_the_files_lack(tmp_path):
    write_files(tmp_path, "llada2-tiny")
    config = EngineConfig(model=str(tmp_path), device="cpu", max_num_reqs=2, max_model_len=64)
    configure = Configure(config, (), "info", "text")
    engine = random_backend.make_engine(configure, lambda phase, done, total: None, lambda why: None)
    assert (engine.info.mask_token_id, engine.info.vocab_size) == (1023, 1024)
    engine.close()
    with random_llm(str(tmp_path), device="cpu", max_num_reqs=2, max_model_len=64) as llm:
        assert llm.generate("one two")[0].text is not None
    with pytest.raises(ConfigError, match="tensor"):  # only benchmarks accept such a checkpoint
        LLM(str(tmp_path), device="cpu")
