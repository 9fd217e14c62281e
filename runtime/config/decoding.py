"""Flags that set defaults of decoding fields, in the order of ``--help``."""

from __future__ import annotations

from functools import partial

from runtime.config.flags import DECODING, Flag

_decode = partial(Flag, group=DECODING, engine=True)
_fraction = partial(_decode, type="float", low=0, high=1)
_canvas = partial(_decode, type="float", low=0)  # default: the checkpoint's generation_config.json, else what it names

DECODING_FLAGS: tuple[Flag, ...] = (
    _fraction(name="add-block-threshold", help="progress of the newest block at which the next opens; 0.1"),
    _fraction(name="semi-complete-threshold", help="progress at which a block's successor may force; 0.9 (d2f: 0.95)"),
    _fraction(
        name="accept-threshold", help="confidence above which a token is taken; the family's, or 0.9 (dmax: 0.5)"
    ),
    _fraction(name="edit-threshold", help="confidence above which a filled token is replaced (edit); 0"),
    _fraction(
        name="remask-threshold", help="confidence below which a filled token is masked again (threshold); 0: off"
    ),
    _fraction(name="token-stability-threshold", help="fraction of unchanged tokens at which the next block opens; 0"),
    _decode(name="max-post-edit-steps", type="int", low=0, help="editing steps of a block without masks; 16"),
    _decode(name="penalty-lambda", type="float", low=0, help="penalty on repeating the previous token (edit); 0"),
    _decode(name="full-cache", choices=("prefix", "dual", "vicinity"), help="what later steps reuse (full); nothing"),
    _decode(
        name="token-merge-mode",
        choices=("dmax_topk", "iter_smooth_topk"),
        help="how filled positions' embeddings are mixed (dmax); dmax_topk",
    ),
    _decode(name="token-merge-top-k", type="int", low=1, high=64, help="most probable tokens that are mixed (dmax); 1"),
    _decode(name="token-merge-renormalize", type="bool", help="keep the embeddings' length (dmax_topk); true"),
    _decode(name="token-merge-weight", type="float", low=0, high=100, help="of what is added (iter_smooth_topk); 1"),
    _canvas(
        name="diffusion-gemma-max-steps", type="int", low=1, high=4096, help="maximum number of steps of a canvas; 48"
    ),
    _canvas(name="diffusion-gemma-t-min", above_low=True, help="what a canvas's temperature falls towards; 0.4"),
    _canvas(name="diffusion-gemma-t-max", above_low=True, help="temperature of a canvas's first step; 0.8"),
    _canvas(name="diffusion-gemma-entropy-bound", above_low=True, help="nats that bound what a step takes; 0.1"),
    _canvas(name="diffusion-gemma-stability-threshold", type="int", high=64, help="unchanged steps before its end; 1"),
    _canvas(name="diffusion-gemma-confidence-threshold", help="nats below which it ends when unchanged; 0.005"),
)
