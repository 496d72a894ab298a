"""Attention."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import LOWER_PEAK, advised, patch, patched


def use_sdpa(verify: str = LOWER_PEAK, target: Target | None = None, *, heads: bool = True) -> Fix:
    """An edit of attention that is written out as matmul, softmax, matmul; without `heads` of tensors that have none."""
    return patch(
        "Use scaled_dot_product_attention",
        "use-sdpa",
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n"
        "# fused kernels take (batch, heads, tokens, size): give tensors without heads a dimension by unsqueeze(1)\n"
        "# mask: the one of your code, True where a key is kept, or what is added to the scores; without it every position\n"
        "# sees all others. Causal: is_causal=True instead. Dropout: dropout_p, in training only\n"
        '# HF: from_pretrained(..., attn_implementation="sdpa"); the score matrix is then never stored',
        "not bitwise identical, dropout draws other numbers; a mask needs two dimensions or more and the query's type",
        verify,
        params={} if heads else {"heads": False},
        target=target,
    )


sdpa_backend = patched(
    "Force the flash backend",
    "sdpa-backend",
    "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n    out = F.scaled_dot_product_attention(q, k, v)",
    "raises where the kernel does not take the type, the mask or the head size",
    params={"backends": ["FLASH_ATTENTION"]},
    safety="display",
)
"""Shown only: it raises where the flash kernel refuses, which tells why."""
no_attention_weights = advised(
    "Set need_weights=False",
    "out, _ = self.attention(x, x, x, need_weights=False)   # then it uses scaled_dot_product_attention",
    "the second result is None then",
)
"""Advice: with the weights returned, every score is stored."""
attention_libraries = advised(
    "Use FlexAttention",
    "# FlexAttention (torch 2.5 and later): a mask or a bias as a function, fused by the compiler\n"
    "from torch.nn.attention.flex_attention import flex_attention\n"
    "attend = torch.compile(flex_attention)   # once, next to the model\n"
    "out = attend(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h, i, j])\n"
    "# xFormers: (batch, tokens, heads, size), where SDPA takes (batch, heads, tokens, size)\n"
    "from xformers.ops import LowerTriangularMask, memory_efficient_attention\n"
    "q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"
    "out = memory_efficient_attention(q, k, v, attn_bias=LowerTriangularMask()).transpose(1, 2)\n"
    "# TransformerEngine: the whole block, in fp8 on compute capability 8.9 and newer\n"
    "import transformer_engine.pytorch as te\n"
    "block = te.TransformerLayer(hidden_size, ffn_hidden_size, num_attention_heads)\n"
    "with te.fp8_autocast(enabled=True):\n"
    "    x = block(x)   # (tokens, batch, hidden_size)",
    "another dependency, other layouts and other parameter names in checkpoints",
)
"""Advice for masks and biases that no fused kernel of SDPA takes."""
