#!/bin/sh
# transformers 5 loads a sentencepiece file as LlamaTokenizer without its normalization and its dummy prefix.
#
# A tokenizer.model contains how a text is normalized (here nfkc_cf, which folds case) and whether a space is put before
# it (here not). transformers 5.17.0 builds the class from the pieces alone, and applies the settings of Llama. It loads
# the file without a warning, and the ids differ from those with which the model was trained.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/v"
"$dir/v/bin/pip" install -q transformers==5.17.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.1
cd "$dir"
cat > run.py <<'EOF'
import json, pathlib
import sentencepiece
from transformers import AutoTokenizer
text = iter([f"the quick brown fox number {i} jumps over {i * 7} lazy dogs" for i in range(300)])
pathlib.Path("m").mkdir()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=text, model_prefix="m/tokenizer", vocab_size=330, hard_vocab_limit=False, model_type="bpe",
    byte_fallback=True, normalization_rule_name="nfkc_cf", add_dummy_prefix=False, minloglevel=2,
)
pathlib.Path("m/config.json").write_text(json.dumps({"model_type": "llama"}))
settings = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": False}
pathlib.Path("m/tokenizer_config.json").write_text(json.dumps(settings))
processor = sentencepiece.SentencePieceProcessor(model_file="m/tokenizer.model")
tokenizer = AutoTokenizer.from_pretrained("m")
for text in ("the fox", "THE FOX"):
    own, other = processor.encode(text, out_type=str), tokenizer.tokenize(text)
    print(f"{text} | sentencepiece: {' '.join(own)} | transformers: {' '.join(other)}".replace("\u2581", "_"))
EOF
"$dir/v/bin/python" run.py > "$dir/out" 2> "$dir/log" || { cat "$dir/log"; exit 1; }
cat "$dir/out"
diff "$dir/out" - <<'SEEN'
the fox | sentencepiece: the _fox | transformers: _ the _fox
THE FOX | sentencepiece: the _fox | transformers: _ <0x54> <0x48> <0x45> _ <0x46> <0x4F> <0x58>
SEEN
