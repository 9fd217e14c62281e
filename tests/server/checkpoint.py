"""A tiny random LLaDA2 checkpoint with a byte-level tokenizer, written without torch."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|mask|>", "<|endoftext|>", "<|role_end|>", "<role>", "</role>")
BYTES = 256
MASK, EOS = BYTES, BYTES + 1
CONFIG = {
    "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "block_size": 8, "vocab_size": 264,
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "pad_token_id": EOS,
    "eos_token_id": EOS, "mask_token_id": MASK, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<role>{{ m['role'] }}</role>{{ m['content'] }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>assistant</role>{% endif %}"
)


TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # special tokens of some tokenizers
# Writes the tools into the prompt, and opens the reasoning if `enable_thinking` is set.
TAGGED_TEMPLATE = (
    "{% if tools %}<role>system</role>{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|role_end|>{% endif %}"
    "{% for m in messages %}<role>{{ m['role'] }}</role>{{ m['content'] }}"
    "{% for c in m.tool_calls or () %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>assistant</role>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# knows the role 'tool' #}"
)


def make_tokenizer(tagged: bool = False) -> Tokenizer:
    """Returns a tokenizer with a token per byte, printable ASCII first, then special tokens. `tagged` adds `TAGS`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (not "!" <= c <= "~", c))
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    assert len(vocab) == BYTES
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = SPECIAL + (TAGS if tagged else ())
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in tokens])
    return tokenizer


def make_weights(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    c = CONFIG
    hidden, heads, kv, dim = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def swiglu(prefix: str, width: int) -> dict[str, np.ndarray]:
        return {
            f"{prefix}gate_proj.weight": matrix(width, hidden),
            f"{prefix}up_proj.weight": matrix(width, hidden),
            f"{prefix}down_proj.weight": matrix(hidden, width),
        }

    ones = np.ones(hidden, np.float32)
    tensors = {
        "model.word_embeddings.weight": rng.standard_normal((c["vocab_size"], hidden)).astype(np.float32),
        "model.norm.weight": ones,
    }
    head = 6 * matrix(c["vocab_size"], hidden)  # scaled so that thresholds accept several tokens per step
    printable = ord("~") - ord("!") + 1
    for i in range(printable, BYTES):  # ties go to the lowest id, so greedy answers are printable
        head[i] = head[i % printable]
    tensors["lm_head.weight"] = head
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        tensors |= {
            p + "input_layernorm.weight": ones,
            p + "post_attention_layernorm.weight": ones,
            p + "attention.query_key_value.weight": matrix((heads + 2 * kv) * dim, hidden),
            p + "attention.query_layernorm.weight": np.ones(dim, np.float32),
            p + "attention.key_layernorm.weight": np.ones(dim, np.float32),
            p + "attention.dense.weight": matrix(hidden, heads * dim),
        }
        if layer < c["first_k_dense_replace"]:
            tensors |= swiglu(p + "mlp.", c["intermediate_size"])
            continue
        tensors[p + "mlp.gate.weight"] = matrix(c["num_experts"], hidden)
        tensors[p + "mlp.gate.expert_bias"] = np.zeros(c["num_experts"], np.float32)
        for expert in range(c["num_experts"]):
            tensors |= swiglu(f"{p}mlp.experts.{expert}.", c["moe_intermediate_size"])
        tensors |= swiglu(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["num_shared_experts"])
    return tensors


def write_checkpoint(directory: Path, seed: int = 1, tagged: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | ({"vocab_size": 272} if tagged else {})))
    template = TAGGED_TEMPLATE if tagged else TEMPLATE
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "mask_token": SPECIAL[0], "eos_token": SPECIAL[1]})
    )
    make_tokenizer(tagged).save(str(directory / "tokenizer.json"))
    save_file(make_weights(seed), directory / "model.safetensors")
    return directory


def without_tokenizer_json(checkpoint: Path, directory: Path) -> Path:
    """Copies a checkpoint to `directory`, with the files of a Qwen2 tokenizer instead of tokenizer.json."""
    shutil.copytree(checkpoint, directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    special = [token["content"] for token in tokenizer["added_tokens"] if token["special"]]
    vocabulary = {text: id for text, id in tokenizer["model"]["vocab"].items() if text not in added}
    config = json.loads((directory / "tokenizer_config.json").read_text())
    named = dict.fromkeys(("unk_token", "pad_token"), "<|endoftext|>") | {"tokenizer_class": "Qwen2Tokenizer"}
    files = {
        "vocab": vocabulary, "added_tokens": added, "tokenizer_config": config | named,
        "special_tokens_map": {"additional_special_tokens": special},
    }  # fmt: skip
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    return directory
