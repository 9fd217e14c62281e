"""Prints ids of a slow tokenizer of transformers 4. Runs in the environment of lock.txt.

Reads a JSON object: `directory`, `tokenizer_class`, `texts` (encoded as ordinary text) and `marked` (texts whose
special tokens are tokens).
"""

import json
import sys

import transformers

request = json.load(sys.stdin)
tokenizer = getattr(transformers, request["tokenizer_class"]).from_pretrained(request["directory"])
assert not tokenizer.is_fast


def encode(text, split):
    return tokenizer(text, add_special_tokens=False, split_special_tokens=split)["input_ids"]


ids = {"texts": [encode(t, True) for t in request["texts"]], "marked": [encode(t, False) for t in request["marked"]]}
json.dump(ids, sys.stdout)
