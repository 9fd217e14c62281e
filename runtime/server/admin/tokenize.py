"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: token ids exactly as generation routes use them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from runtime.request.validation import refuse
from runtime.server.admin.protocol import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest, TokenizerInfo
from runtime.server.serving.context import Context, ServerContext
from runtime.server.serving.handler import json_response
from runtime.server.serving.routes import json_route, response_doc
from runtime.server.serving.tools import ChatContext, Choice, offered_tools, select_tools

router = APIRouter(tags=["Tokens"])
MAX_EACH = 4096  # tokens with `return_bytes`


@json_route(router, "/tokenize", "Tokenize a prompt or a chat")
async def tokenize(context: ServerContext, request: Request, body: TokenizeRequest) -> Tokenized:
    """Returns the token ids of a prompt, or of messages with the chat template."""
    context.model_name(body.model)
    loaded = context.require()
    body.check_input(body.prompt)
    if body.messages is not None:
        tools = select_tools(offered_tools(body.tools), Choice(), single_call=False)
        ids = await ChatContext(context.config, *loaded, tools).prompt(request, context.preprocessor, body.to_chat())
    else:
        ids = await context.preprocessor.encode(
            request,
            body.prompt or "",
            add_bos=body.add_special_tokens is not False,
            parse_special=body.parse_special is True,
        )
    return {"tokens": ids, "count": len(ids), "max_model_len": loaded[0].max_model_len}


@router.get("/tokenizer_info", summary="Describe the tokenizer", **response_doc(TokenizerInfo, 401, 403, 503))
async def tokenizer_info(context: Context) -> Response:
    """Returns the texts of special tokens, null for missing ones, and the chat template.

    Text in requests is not encoded as a special token, unless the request sets `parse_special`.
    """
    info, tokenizer = context.require()
    named: dict[str, str | None] = dict.fromkeys(("bos_token", "eos_token", "pad_token", "mask_token"))
    known = {"mask_token": info.mask_token_id, "bos_token": info.bos_token_id, "eos_token": info.eos_token_ids[0]}
    named |= {name: tokenizer.byte_decoder.decode([id]) for name, id in known.items() if id is not None}
    return json_response(
        {**named, **tokenizer.named_tokens, "chat_template": tokenizer.chat_template, "max_token_id": info.max_token_id}
    )


@json_route(router, "/detokenize", "Convert token ids to text")
async def detokenize(context: ServerContext, request: Request, body: DetokenizeRequest) -> Detokenized:
    """Returns the text of token ids, including special tokens; with `return_bytes` also the bytes of each."""
    context.model_name(body.model)
    _, tokenizer = context.require()
    answer: Detokenized = {"prompt": ""}
    if body.return_bytes:  # before `decode`, which may empty the list
        if len(body.tokens) > MAX_EACH:
            raise refuse("tokens", f"has {len(body.tokens)} ids; at most {MAX_EACH} with return_bytes")
        answer["bytes"] = [None if t in tokenizer.special else list(tokenizer.byte_decoder(t)) for t in body.tokens]
    answer["prompt"] = await context.preprocessor.decode(request, body.tokens)
    return answer
