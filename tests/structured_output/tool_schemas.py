"""A hundred parameter schemas of tools, in the style of widely used agents and tool servers."""

import json
from typing import Any

Schema = dict[str, Any]


def text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def integer(**more: Any) -> Schema:
    return {"type": "integer", **more}


def flag(default: bool = False) -> Schema:
    return {"type": "boolean", "default": default}


def one_of(*values: Any) -> Schema:
    return {"type": "string", "enum": list(values)}


def many(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def closed(required: list[str], **properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


PATH = text("Absolute path of a file", format="path")
URL = text("Address", format="uri")
TIME = text("ISO 8601", format="date-time")
DAY = text(format="date")
EMAIL = text(format="email")
PAGE = {"page": integer(minimum=1, default=1), "per_page": integer(minimum=1, maximum=100, default=30)}
REPOSITORY = {"owner": text("Owner"), "repo": text("Name of the repository", minLength=1)}
MONEY = closed(
    ["amount", "currency"], amount={"type": "number", "exclusiveMinimum": 0}, currency=text(pattern="^[A-Z]{3}$")
)
POINT = closed(["lat", "lon"], lat={"type": "number", "minimum": -90, "maximum": 90}, lon={"type": "number"})
METADATA = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": text()}
ANYTHING = {"type": "object", "additionalProperties": True}
OPTIONAL = {"anyOf": [text(), {"type": "null"}], "default": None}
TREE = {
    "type": "object",
    "properties": {"name": text(), "children": many({"$ref": "#/$defs/node"})},
    "required": ["name"],
}

FILES: list[Schema] = [
    closed(["path", "old", "new"], path=PATH, old=text(minLength=1), new=text(), replace_all=flag()),
    closed(["path", "edits"], path=PATH, edits=many(closed(["old", "new"], old=text(), new=text()), minItems=1)),
    closed(["pattern"], pattern=text("A regular expression", format="regex"), glob=text(), context=integer(minimum=0)),
    closed(["command"], command=many(text(), minItems=1), workdir=PATH, env=METADATA),
    closed(
        ["todos"], todos=many(closed(["content", "status"], content=text(minLength=1), status=one_of("open", "done")))
    ),
]
CODE: list[Schema] = [
    closed(
        ["owner", "repo", "title"], **REPOSITORY, title=text(), body=text(), labels=many(text()), milestone=integer()
    ),
    closed(["owner", "repo", "head", "base"], **REPOSITORY, head=text(), base=text(), draft=flag()),
    closed(["owner", "repo", "files"], **REPOSITORY, files=many(closed(["path"], path=text(), content=text()))),
    closed(["sha"], sha=text(pattern="^[0-9a-f]{7,40}$")),
    closed(["workflow"], workflow=text(), inputs=METADATA, ref=text(default="main")),
]
WEB: list[Schema] = [
    closed(["query"], query=text(minLength=2), allowed_domains=many(text(format="hostname")), blocked=many(text())),
    closed(["url", "method"], url=URL, method=one_of("GET", "POST"), headers=METADATA, body=ANYTHING),
    closed(
        ["fields"], fields=many(closed(["ref", "value"], ref=text(), value={"type": ["string", "number", "boolean"]}))
    ),
    closed(["coordinate"], coordinate=many(integer(), minItems=2, maxItems=2), action=one_of("key", "type", "click")),
    closed(["pair"], pair={"type": "array", "prefixItems": [text(), integer()], "minItems": 2, "items": False}),
]
WORK: list[Schema] = [
    closed(["to", "subject"], to=many(EMAIL, minItems=1), cc=many(EMAIL), subject=text(maxLength=200), html=flag()),
    closed(
        ["start", "end"], start=TIME, end=TIME, attendees=many(EMAIL), recurrence=OPTIONAL, color=integer(maximum=11)
    ),
    closed(["title"], title=text(), due=DAY, priority=integer(minimum=1, maximum=4), tags=many(text(), maxItems=10)),
    closed(["contact"], contact=closed(["name"], name=text(), email=EMAIL, phone=text(pattern=r"^\+[1-9]\d{6,14}$"))),
    closed(["amount"], amount=MONEY, customer=text(pattern="^cus_[A-Za-z0-9]+$"), metadata=METADATA),
]
DATA: list[Schema] = [
    closed(
        ["sql"], sql=text(), params=many({"type": ["string", "number", "boolean", "null"]}), limit=integer(default=100)
    ),
    closed(["key"], key=text(), value={}, ttl=integer(minimum=0)),
    closed(["metric"], metric=text(), start=TIME, end=TIME, step=text(pattern=r"^\d+[smhd]$"), group_by=many(text())),
    closed(["place"], place={"oneOf": [POINT, closed(["city"], city=text(), country=text(maxLength=2))]}),
    closed(["root"], root={"$ref": "#/$defs/node"}) | {"$defs": {"node": TREE}},
]
ACTIONS: list[Schema] = [
    {
        "type": "object",
        "properties": {
            "action": {"oneOf": [closed(["type", "thought"], type={"type": "string", "const": "think"}, thought=text()),
                                 closed(["type", "query"], type={"type": "string", "const": "search"}, query=text()),
                                 closed(["type", "answer"], type={"type": "string", "const": "finish"}, answer=text())],
                       "discriminator": {"propertyName": "type"}}
        },
        "required": ["action"],
    },
    closed(["thought", "next"], thought=text(), step=integer(), total=integer(minimum=1), next=flag(), branch=OPTIONAL),
    closed(["entities"], entities=many(closed(["name", "type"], name=text(), type=text(), notes=many(text())))),
    closed(["relations"], relations=many(closed(["from", "to"], **{"from": text(), "to": text(), "kind": text()}))),
    {"type": "object", "properties": {}, "$schema": "http://json-schema.org/draft-07/schema#"},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", **closed(["id"], id=text(format="uuid"))},
    {"allOf": [closed([], a=text()) | {"additionalProperties": True}], "type": "object", "unevaluatedProperties": True},
    {"type": "object", "properties": {"scores": {"type": "object", "propertyNames": {"enum": ["speed", "cost"]}}}},
    {"type": "object", "properties": {"when": {"anyOf": [TIME, DAY, {"type": "null"}]}}, "dependentRequired": {}},
    {"type": "object", "properties": {"x": {"not": {}}, "y": text()}, "required": ["y"], "minProperties": 1},
]  # fmt: skip
BASIC = [*FILES, *CODE, *WEB, *WORK, *DATA, *ACTIONS]


def _nullable(schema: Schema) -> Schema:
    """Returns the schema in the style of strict agents: all properties are required, and optional ones may be null."""
    names = schema["properties"]
    required = schema.get("required", [])
    wrapped = {name: each if name in required else {"anyOf": [each, {"type": "null"}]} for name, each in names.items()}
    return {**schema, "properties": wrapped, "required": list(names), "additionalProperties": False}


def _wrapped(schema: Schema, number: int) -> Schema:
    """Returns the schema in the style of a tool server that takes a batch of requests and a reason."""
    inner = {name: each for name, each in schema.items() if name not in ("$defs", "$schema")}
    made = closed(
        ["reason", "requests"], reason=text(maxLength=80), requests=many(inner, minItems=1, maxItems=number % 4 + 1)
    )
    return made | {name: schema[name] for name in ("$defs",) if name in schema}


def _drafted(schema: Schema) -> Schema:
    """Returns the schema with annotations that schema generators add."""
    annotated = {
        name: {"title": name.title(), "examples": ["x"], "x-order": i, **each}
        for i, (name, each) in enumerate(schema["properties"].items())
    }
    return {
        "title": "Arguments", "$comment": "generated", **schema, "properties": annotated, "unevaluatedProperties": True,
    }  # fmt: skip


WITH_PROPERTIES = [schema for schema in BASIC if "properties" in schema]
_WRITTEN = [
    *BASIC,
    *(_nullable(schema) for schema in WITH_PROPERTIES),
    *(_wrapped(schema, number) for number, schema in enumerate(WITH_PROPERTIES)),
    *(_drafted(schema) for schema in WITH_PROPERTIES),
]
TOOLS: list[Schema] = list({json.dumps(schema): schema for schema in _WRITTEN}.values())
