"""Flags that set defaults of decoding fields, in the order of ``--help``."""

from __future__ import annotations

from functools import partial

from runtime.config.flags import DECODING, Flag

_decode = partial(Flag, group=DECODING, engine=True)
_fraction = partial(_decode, type="float", low=0, high=1)
_canvas = partial(_decode, type="float", low=0)  # default: the checkpoint's generation_config.json, else what it names

DECODING_FLAGS: tuple[Flag, ...] = (
    _fraction(
        name="add-block-threshold", help="progress of the newest block at which the next block opens; default: 0.1"
    ),
    _fraction(
        name="semi-complete-threshold",
        help="progress of a block at which the next block may force a token; default: 0.9 (d2f: 0.95)",
    ),
    _fraction(
        name="accept-threshold",
        help="confidence above which a token is accepted; default: that of the family, else 0.9 (dmax: 0.5)",
    ),
    _fraction(name="edit-threshold", help="confidence above which edit replaces an unmasked token; default: 0"),
    _fraction(
        name="remask-threshold",
        help="confidence below which threshold masks an unmasked token again; default: 0 (never)",
    ),
    _fraction(
        name="token-stability-threshold", help="fraction of unchanged tokens at which the next block opens; default: 0"
    ),
    _decode(
        name="max-post-edit-steps",
        type="int",
        low=0,
        help="maximum number of edit steps of a block without masks; default: 16",
    ),
    _decode(
        name="penalty-lambda", type="float", low=0, help="penalty of edit on repeating the previous token; default: 0"
    ),
    _decode(
        name="full-cache",
        choices=("prefix", "dual", "vicinity"),
        help="part of the KV cache that later steps of full reuse; default: none",
    ),
    _decode(
        name="token-merge-mode",
        choices=("dmax_topk", "iter_smooth_topk"),
        help="how dmax mixes embeddings of unmasked positions; default: dmax_topk",
    ),
    _decode(
        name="token-merge-top-k",
        type="int",
        low=1,
        high=64,
        help="number of most probable tokens that dmax mixes; default: 1",
    ),
    _decode(
        name="token-merge-renormalize", type="bool", help="keep the norm of the embeddings (dmax_topk); default: true"
    ),
    _decode(
        name="token-merge-weight",
        type="float",
        low=0,
        high=100,
        help="weight of the added mixture (iter_smooth_topk); default: 1",
    ),
    _canvas(
        name="diffusion-gemma-max-steps",
        type="int",
        low=1,
        high=4096,
        help="maximum number of steps per canvas; default: 48",
    ),
    _canvas(name="diffusion-gemma-t-min", above_low=True, help="lower limit of a canvas's temperature; default: 0.4"),
    _canvas(
        name="diffusion-gemma-t-max", above_low=True, help="temperature of the first step of a canvas; default: 0.8"
    ),
    _canvas(
        name="diffusion-gemma-entropy-bound",
        above_low=True,
        help="entropy bound of the tokens that a step accepts, in nats; default: 0.1",
    ),
    _canvas(
        name="diffusion-gemma-stability-threshold",
        type="int",
        high=64,
        help="unchanged steps after which a canvas ends; default: 1",
    ),
    _canvas(
        name="diffusion-gemma-confidence-threshold",
        help="entropy in nats below which an unchanged canvas ends; default: 0.005",
    ),
)
