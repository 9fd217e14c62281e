"""Request bodies just over the limits on their shape, and the largest that these allow."""

from runtime.server.serving.request_body import (
    MAX_BODY,
    MAX_CONTAINERS,
    MAX_DIGITS,
    MAX_FIELDS,
    MAX_MESSAGES,
    MAX_STRINGS,
    MAX_VALUES,
)

CHAT, TEXT, OWN, IDS = "/v1/chat/completions", "/v1/completions", "/generate", "/detokenize"
_USER = b'{"messages":[{"role":"user","content":'
_ONE = _USER + b'""}],"max_tokens":1,'
MANY = 20_000  # over the limits on strings, fields, objects and lists
_SPARE = 64  # containers, strings and values left for the rest of a body


def many(head: bytes, item: bytes, tail: bytes, count: int | None = None) -> bytes:
    """Returns `head`, `item` `count` times, and `tail`. Without a count, spaces fill the 2 MiB of `MANY` items."""
    if count is None:
        count, item = MANY, item.ljust((MAX_BODY - len(head) - len(tail)) // MANY - 1)
    return head + b",".join([item] * count) + tail


def keys(head: bytes, tail: bytes, value: bytes = b"0", limit: int = MANY) -> bytes:
    return head + b",".join(b'"%x":%s' % (i, value) for i in range(limit)) + tail


def filled(head: bytes, item: bytes, tail: bytes) -> bytes:
    """Returns `head`, `item` repeated as often as it fits into 2 MiB, and `tail`."""
    return head + item * ((MAX_BODY - len(head) - len(tail)) // len(item)) + tail


# Bodies that are refused for their shape, before they are parsed.
SHAPES: dict[str, tuple[str, bytes]] = {
    "parts {}": (CHAT, many(_USER + b"[", b"{}", b"]}]}")),
    "parts": (CHAT, many(_USER + b"[", b'{"type":"text","text":""}', b"]}]}")),
    "messages {}": (CHAT, many(b'{"messages":[', b"{}", b"]}")),
    "messages []": (CHAT, many(b'{"messages":[', b"[]", b"]}")),
    "messages": (CHAT, many(b'{"messages":[', b'{"role":"user","content":""}', b"]}")),
    "70,000 messages": (CHAT, many(b'{"messages":[', b'{"role":"user","content":""}', b"]}", 70_000)),
    "unknown fields": (CHAT, keys(_USER + b'""}],', b"}")),
    "unknown fields of a message": (CHAT, keys(_USER + b'"",', b"}]}")),
    "unknown fields of decoding": (OWN, keys(b'{"prompt":"x","decoding":{', b"}}")),
    "logit_bias": (CHAT, keys(_USER + b'""}],"logit_bias":{', b"}}")),
    "tools": (CHAT, many(_USER + b'""}],"tools":[', b"{}", b"]}")),
    "chat_template_kwargs": (CHAT, keys(_USER + b'""}],"chat_template_kwargs":{', b"}}")),
    "metadata": (CHAT, keys(_USER + b'""}],"metadata":{', b"}}")),
    "too many ids": (OWN, many(b'{"prompt":[', b"1", b"]}", 2 * MAX_VALUES)),
    "tokens": (IDS, many(b'{"tokens":[', b'""', b"]}")),
    "prompts": (TEXT, many(b'{"prompt":[', b'""', b"]}")),
    "prompts of ids": (TEXT, many(b'{"prompt":[', b"[1]", b"]}")),
    "nested": (OWN, b'{"prompt":' + b"[" * (MAX_CONTAINERS + 1)),
    "nested 150 deep": (OWN, many(b'{"prompt":[', b"[" * 150 + b"]" * 150, b"]}", 100)),
    "ids of 65 digits": (OWN, many(b'{"prompt":[', b"9" * (MAX_DIGITS + 1), b"]}")),
    "digits": (OWN, b'{"prompt":"x","max_tokens":' + b"9" * (MAX_DIGITS + 1) + b"}"),
    "repeated keys": (OWN, many(b"{", b'"prompt":""', b"}")),
}
# The largest bodies that the limits on the shape accept.
LARGEST: dict[str, tuple[str, bytes]] = {
    "parts {}": (CHAT, many(_USER + b"[", b"{}", b"]}]}", MAX_CONTAINERS - _SPARE)),
    "messages {}": (CHAT, many(b'{"messages":[', b"{}", b"]}", MAX_MESSAGES - 1)),
    "messages": (CHAT, many(b'{"messages":[', b'{"role":"user","content":""}', b"]}", MAX_MESSAGES)),
    "unknown fields": (CHAT, keys(_USER + b'""}],', b"}", limit=MAX_FIELDS - _SPARE)),
    "unknown fields of a message": (CHAT, keys(_USER + b'"",', b"}]}", limit=MAX_FIELDS - _SPARE)),
    "unknown lists of decoding": (
        OWN,
        keys(b'{"prompt":"x","decoding":{', b"}}", b"[]", limit=MAX_CONTAINERS - _SPARE),
    ),
    "tools": (CHAT, many(_USER + b'""}],"tools":[', b"{}", b"]}", MAX_CONTAINERS - _SPARE)),
    "ids": (OWN, many(b'{"prompt":[', b"123456", b"]}", MAX_VALUES - _SPARE)),
    "ids and a string": (OWN, many(b'{"prompt":[', b"123456", b',"x"]}', MAX_VALUES - _SPARE)),
    "tokens": (IDS, many(b'{"tokens":[', b'""', b"]}", MAX_STRINGS - _SPARE)),
    "numbers": (CHAT, many(_ONE + b'"chat_template_kwargs":{"a":[', b"1.5e1", b"]}}", MAX_VALUES - _SPARE)),
    "prompts of ids": (TEXT, many(b'{"prompt":[', b"[1]", b"]}", MAX_CONTAINERS - _SPARE)),
    "long numbers": (OWN, many(b'{"prompt":[', b"9" * MAX_DIGITS, b"]}")),
    "numbers of 30 digits": (OWN, many(b'{"prompt":"x","stop_token_ids":[', b"9" * 30, b"]}")),
    "some of everything": (
        CHAT,
        _ONE
        + b'"chat_template_kwargs":{"a":['
        + b",".join([b'"%s"' % (b"\\u00e9" * 10)] * (MAX_STRINGS - _SPARE))
        + b'],"b":['
        + b",".join([b"{}"] * (MAX_CONTAINERS - _SPARE))
        + b'],"c":['
        + b",".join([b"1.5e-10"] * (MAX_VALUES - MAX_STRINGS - MAX_CONTAINERS - _SPARE))
        + b"]}}",
    ),
    "a long text": (OWN, filled(b'{"prompt":"', b"x", b'"}')),
    "escapes": (OWN, filled(b'{"prompt":"', b'\\"', b'"}')),
    "escapes of every kind": (OWN, filled(b'{"prompt":"', b'\\\\\\"', b'"}')),
    "a long key": (OWN, filled(b'{"', b"x", b'":1}')),
    "spaces": (OWN, filled(b'{"max_tokens":1,"prompt":', b" ", b'"x"}')),
}  # fmt: skip
