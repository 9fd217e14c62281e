"""``/tokenize`` and ``/detokenize``: exactly what the generating routes would feed the model."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import RequestError
from runtime.server.answers.status import Detokenized, Tokenized, TokenizerInfo
from runtime.server.conversation import continues, ending_arguments, plain, without_messages
from runtime.server.responses import json_response
from runtime.server.routes.documented import errors, gives, takes
from runtime.server.schemas import DetokenizeRequest, TokenizeRequest
from runtime.server.service import Service
from runtime.server.talking import Talk
from runtime.server.tooling import tooling

router = APIRouter()
MAX_EACH = 4096  # tokens whose bytes are told one by one


@router.post("/tokenize", **takes(TokenizeRequest, Tokenized))
async def tokenize(request: Request) -> Response:
    """The ids of a prompt, or of a chat's messages with the template around them."""
    service: Service = request.app.state.service
    body = await service.body(request, TokenizeRequest)
    service.model_name(body.model)
    info, _ = service.require()
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        talk = Talk(service.config, *service.require(), tooling(body.tools, None, None))
        messages = plain(body.messages)
        variables = ending_arguments(body, body.chat_template_kwargs)
        continued = continues(body, messages)
        ids = await talk.prompt(request, service.preparer, messages, variables, continued=continued)
    else:
        without_messages(body)
        if body.chat_template_kwargs is not None:
            raise RequestError("chat_template_kwargs: only with messages", param="chat_template_kwargs")
        ids = await service.preparer.encode(request, body.prompt or "", begun=body.add_special_tokens is not False)
    return json_response({"tokens": ids, "count": len(ids), "max_model_len": info.max_model_len})


@router.get("/tokenizer_info", **gives(TokenizerInfo, refusals=errors(401, 403, 503)))
async def tokenizer_info(request: Request) -> Response:
    """The texts of special tokens, null where there is none, and the chat template. Text that looks like one of these
    tokens is encoded as ordinary text all the same."""
    service: Service = request.app.state.service
    info, tokenizer = service.require()
    named: dict[str, str | None] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "mask_token"))
    known = {"mask_token": info.mask_token_id, "bos_token": info.bos_token_id, "eos_token": info.eos_token_ids[0]}
    named |= {name: tokenizer.byte_decoder.decode([id]) for name, id in known.items() if id is not None}
    return json_response(
        {**named, **tokenizer.named_tokens, "chat_template": tokenizer.chat_template, "max_token_id": info.max_token_id}
    )


@router.post("/detokenize", **takes(DetokenizeRequest, Detokenized))
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included; with `return_bytes` each one's own, null where it is special."""
    service: Service = request.app.state.service
    body = await service.body(request, DetokenizeRequest)
    service.model_name(body.model)
    _, tokenizer = service.require()
    each: dict[str, Any] = {}
    if body.return_bytes:  # before `decode`, which may empty the list
        if len(body.tokens) > MAX_EACH:
            raise RequestError(
                f"tokens: has {len(body.tokens)} ids; at most {MAX_EACH} with return_bytes", param="tokens"
            )
        each["bytes"] = [None if t in tokenizer.special else list(tokenizer.byte_decoder(t)) for t in body.tokens]
    return json_response({"prompt": await service.preparer.decode(request, body.tokens), **each})
