"""`sdpa-backend`: which kernels scaled_dot_product_attention may use."""

from __future__ import annotations

from dataclasses import replace

from trace_doctor.fixes.codemods import codemod
from trace_doctor.model.parameters import SdpaBackend
from trace_doctor.program.edits import Change, NoEdit, wrap
from trace_doctor.program.place import Place, on_line, only, refusal
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.training import whole_line
from trace_doctor.program.script import argument, literal
from trace_doctor.program.versions import accepts, needs

_KERNEL = "torch.nn.attention.sdpa_kernel"
_SDPA = "torch.nn.functional.scaled_dot_product_attention"


@codemod(
    "sdpa-backend",
    SdpaBackend,
    adds="torch nn attention sdpa_kernel SDPBackend FLASH_ATTENTION EFFICIENT_ATTENTION CUDNN_ATTENTION MATH",
    words=("scaled_dot_product_attention",),
)
def sdpa_backend(place: Place, params: SdpaBackend) -> Change:
    """Runs scaled_dot_product_attention under sdpa_kernel, which raises with the reason where a fast kernel refuses.

    params: `backends`, of SDPBackend's names.
    """
    names = list(params.backends)
    calls = [(s, c) for s in place.scripts for c in s.calls(_SDPA)]
    calls = on_line(place, calls) or calls
    script, call = only(
        calls, "call scaled_dot_product_attention", "scaled_dot_product_attention is not called"
    )
    if "sdpa_kernel" in script.text or "sdp_kernel" in script.text:
        raise NoEdit("already", f"{script.name} chooses its attention kernels already")
    if not accepts(place.torch, _KERNEL):
        raise refusal(script, call, needs(_KERNEL))
    mask = argument(call, "attn_mask", 3)
    if names == ["FLASH_ATTENTION"] and mask is not None and literal(mask.value) is not None:
        why = "FlashAttention takes no attn_mask: is_causal=True says the same of a causal one"
        raise refusal(script, call, why)
    line = whole_line(script, call)
    kernel, imports = name_for(script, _KERNEL, call)
    backend, more = name_for(script, "torch.nn.attention.SDPBackend", call)
    if (kernel, backend) == ("sdpa_kernel", "SDPBackend") and imports and more:
        text = imports[0].text.replace("import sdpa_kernel", "import SDPBackend, sdpa_kernel")
        imports, more = (replace(imports[0], text=text, meaning=text),), ()
    backends = [f"{backend}.{n}" for n in names]
    inside = backends[0] if len(backends) == 1 else f"[{', '.join(backends)}]"
    return Change(
        script, (*imports, *more, *wrap(script, line, line, f"with {kernel}({inside}):")), script.line(call)
    )
