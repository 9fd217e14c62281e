"""The training model: LLaDA2 in batched torch, with the checkpoint's names.

See docs/models/architecture-notes.md#llada2-layers.

Parameters have the checkpoint's names, but the experts of a layer are stacked. `export.py` splits them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from training.demo.norm import RMSNorm, rms_norm
from training.demo.shape import Shape

Dispatch = Literal["loop", "dense"]
Mask = torch.Tensor | BlockMask  # a dense mask is bool, and additive under autocast


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
        self.query_key_value = nn.Linear(shape.hidden_size, (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.query_layernorm = RMSNorm(self.dim, shape.rms_norm_eps)
        self.key_layernorm = RMSNorm(self.dim, shape.rms_norm_eps)
        self.dense = nn.Linear(self.heads * self.dim, shape.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Returns the attention output [rows, length, hidden].

        Args:
            x: [rows, length, hidden].
            cos: [rows, length, 1, rotary / 2].
            sin: as `cos`.
            mask: a dense mask has four dimensions, which broadcast to [rows, heads, length, length].
        """
        rows, length, _ = x.shape
        qkv = self.query_key_value(x).view(rows * length, -1, self.dim)
        qk, v = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        norms = (self.query_layernorm.weight, self.heads), (self.key_layernorm.weight, self.kv_heads)
        weight = torch.cat([w.expand(n, -1) for w, n in norms])
        qk = rotate(rms_norm(qk, weight, self.query_layernorm.eps).view(rows, length, -1, self.dim), cos, sin)
        q, k = qk.split((self.heads, self.kv_heads), dim=2)
        v = v.view(rows, length, -1, self.dim)
        if isinstance(mask, BlockMask):
            q, k, v = (t.transpose(1, 2).to(x.dtype) for t in (q, k, v))
            out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
            assert isinstance(out, torch.Tensor)
        else:
            group = self.heads // self.kv_heads
            k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
            )
        return self.dense(out.transpose(1, 2).reshape(rows, length, -1))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Applies NeoX rotary embedding to the first dimensions of x [rows, length, heads, dim]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class MLP(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def _largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """Returns indices of each row's largest values, int64 [tokens, count]. Repeated argmax fuses; `topk` does not."""
    indices = []
    for _ in range(count):
        indices.append(x.argmax(-1, keepdim=True))
        x = x.masked_fill(_among(indices[-1], x.shape[-1])[:, 0], -math.inf)
    return torch.cat(indices, dim=-1)


def _sum_of_two(x: torch.Tensor) -> torch.Tensor:
    """x [tokens, groups, experts] -> sum of each group's two largest [tokens, groups]."""
    if x.shape[-1] == 2:
        return x.sum(-1)
    first = _among(x.argmax(-1), x.shape[-1])
    return x.amax(-1) + x.masked_fill(first, -math.inf).amax(-1)


def _among(indices: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the one-hot encoding of indices, bool [*indices.shape, count]."""
    return indices.unsqueeze(-1) == torch.arange(count, device=indices.device)


class Gate(nn.Module):
    """Router in float32: sigmoid scores, ranked with a bias inside the best groups."""

    load: torch.Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.num_experts, shape.hidden_size))
        self.register_buffer("expert_bias", torch.zeros(shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.num_experts), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [tokens, hidden] -> chosen experts int64 [tokens, k] and their weights float32 [tokens, k]."""
        s = self.shape
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.sigmoid(x.float() @ self.weight.float().T)
        with torch.no_grad():
            ranked = (scores + self.expert_bias).view(len(x), s.n_group, -1)
            groups = _largest(_sum_of_two(ranked), s.topk_group)
            group_mask = _among(groups, s.n_group).any(1)
            ranked = ranked.masked_fill(~group_mask.unsqueeze(-1), -math.inf).flatten(1)
            chosen = _largest(ranked, s.num_experts_per_tok)
            among = _among(chosen, s.num_experts)
            if self.training:
                self.load += among.any(1).float().sum(0)
        weights = (scores.unsqueeze(1) * among).sum(-1)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * s.routed_scaling_factor

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Moves the bias towards underused experts, and resets the counts."""
        self.expert_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Experts(nn.Module):
    """The experts of a layer, stacked [experts, out, in]."""

    def __init__(self, shape: Shape, dispatch: Dispatch) -> None:
        super().__init__()
        e, i, h = shape.num_experts, shape.moe_intermediate_size, shape.hidden_size
        self.gate_proj = nn.Parameter(torch.empty(e, i, h))
        self.up_proj = nn.Parameter(torch.empty(e, i, h))
        self.down_proj = nn.Parameter(torch.empty(e, h, i))
        self.dispatch = dispatch

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], chosen and weights [tokens, k] -> [tokens, hidden]."""
        return getattr(self, f"_{self.dispatch}")(x, chosen, weights)

    def _dense(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Runs every expert on every token, with weight 0 if not chosen: few, large GEMMs."""
        experts, width, hidden = self.gate_proj.shape
        expert_weights = (_among(chosen, experts) * weights.unsqueeze(-1)).sum(1)
        inner = F.silu(F.linear(x, self.gate_proj.flatten(0, 1))) * F.linear(x, self.up_proj.flatten(0, 1))
        inner = inner.view(-1, experts, width) * expert_weights.to(inner.dtype).unsqueeze(-1)
        return F.linear(inner.flatten(1), self.down_proj.permute(1, 0, 2).reshape(hidden, -1))

    def _sorted(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=len(self.gate_proj))
        return order, torch.div(order, chosen.shape[1], rounding_mode="floor"), counts

    def _loop(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Sorts tokens by expert and runs one expert after the other: least arithmetic, for CPUs."""
        order, rows, counts = self._sorted(chosen)
        pieces = x[rows].split(counts.tolist())
        outs = [
            F.linear(F.silu(F.linear(p, g)) * F.linear(p, u), d)
            for p, g, u, d in zip(pieces, self.gate_proj, self.up_proj, self.down_proj, strict=True)
        ]
        out = torch.cat(outs) * weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).index_add_(0, rows, out)


class MoE(nn.Module):
    def __init__(self, shape: Shape, dispatch: Dispatch) -> None:
        super().__init__()
        self.gate = Gate(shape)
        self.experts = Experts(shape, dispatch)
        self.shared_experts = MLP(shape.hidden_size, shape.moe_intermediate_size * shape.num_shared_experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        return (self.experts(flat, *self.gate(flat)) + self.shared_experts(flat)).view_as(x)


class Layer(nn.Module):
    def __init__(self, shape: Shape, number: int, dispatch: Dispatch) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.attention = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        dense = number < shape.first_k_dense_replace
        self.mlp = MLP(shape.hidden_size, shape.intermediate_size) if dense else MoE(shape, dispatch)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: Mask) -> torch.Tensor:
        x = x + self.attention(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, shape: Shape, dispatch: Dispatch) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, n, dispatch) for n in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class DemoModel(nn.Module):
    """Computes hidden states from ids and positions [rows, length] and an attention mask. `lm_head` returns logits."""

    frequencies: torch.Tensor

    def __init__(self, shape: Shape, dispatch: Dispatch = "loop") -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape, dispatch)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        rotary = int(shape.head_dim * shape.partial_rotary_factor)
        steps = torch.arange(0, rotary, 2, dtype=torch.float32) / rotary
        self.register_buffer("frequencies", shape.rope_theta**-steps, persistent=False)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Initializes weights: normal with deviation 1/sqrt(in_features), less for outputs to the residual stream."""
        depth = math.sqrt(2 * self.shape.num_hidden_layers)
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                continue
            if "word_embeddings" in name:
                weight.normal_(0, 1.0)
                continue
            scale = 1 / math.sqrt(weight.shape[-1])
            weight.normal_(
                0, scale / depth if name.endswith(("dense.weight", "down_proj", "down_proj.weight")) else scale
            )

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: Mask) -> torch.Tensor:
        angles = positions.unsqueeze(-1).float() * self.frequencies
        cos, sin = angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)
        x = self.model.word_embeddings(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
            if isinstance(mask, torch.Tensor):
                mask = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill_(~mask, -torch.inf)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def gates(self) -> list[Gate]:
        return [m for m in self.modules() if isinstance(m, Gate)]


def training_mask(docs: torch.Tensor, blocks: torch.Tensor, noised: torch.Tensor) -> torch.Tensor:
    """Returns the block-causal mask of packed rows, bool [rows, 1, length, length]: True if the query sees the key.

    Inside a document, a query sees the clean copy of every earlier block. Of its own block it sees the copy that it
    belongs to.
    """

    def query(a: torch.Tensor) -> torch.Tensor:
        return a.unsqueeze(2)

    def key(a: torch.Tensor) -> torch.Tensor:
        return a.unsqueeze(1)

    earlier = (key(blocks) < query(blocks)) & ~key(noised)
    own = (key(blocks) == query(blocks)) & (key(noised) == query(noised))
    return ((key(docs) == query(docs)) & (earlier | own)).unsqueeze(1)


def training_blocks(docs: torch.Tensor, blocks: torch.Tensor, noised: torch.Tensor) -> BlockMask:
    """Returns `training_mask` for FlexAttention, which skips tiles without visible keys.

    Rows have many short documents, so there are many such tiles.
    """
    rows, length = docs.shape

    def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        same = blocks[row, key] == blocks[row, query]
        earlier = (blocks[row, key] < blocks[row, query]) & ~noised[row, key]
        own = same & (noised[row, key] == noised[row, query])
        return (docs[row, key] == docs[row, query]) & (earlier | own)

    return create_block_mask(sees, rows, None, length, length, device=docs.device, _compile=docs.is_cuda)
