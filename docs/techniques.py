"""The page of techniques: what is wanted, how it is made, in the words of which framework, and which rules name it.

Read from the source: the functions of `trace_doctor_rules/techniques/`, and what each rule's file calls of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import inspect

RULES = Path(__file__).resolve().parent.parent / "rules" / "trace_doctor_rules"

TOPICS: Mapping[str, tuple[str, ...]] = {
    "Workers, pinning, prefetching": (
        "start_workers",
        "start_workers_in_trainer",
        "start_workers_in_lightning",
        "more_workers",
        "free_cores",
        "work_ahead",
        "pinned_copies",
        "persistent_workers",
    ),
    "Sharding of an IterableDataset": ("shard_iterable",),
    "Expandable segments and other settings of the allocator": ("allocator-setting", "max_split_size"),
    "Padding, and warming up with the largest shape": ("steady_shapes", "keep_the_cache"),
    "Gradients: cleared in time, and to None": ("zero-grad",),
    "SDPA and FlashAttention": ("use_sdpa", "sdpa_backend", "no_attention_weights"),
    "xFormers, FlexAttention, TransformerEngine": ("attention_libraries",),
    "FSDP and ZeRO": ("fully_shard", "zero", "prefetch_shards", "overlap_in_deepspeed"),
    "Tensor and sequence parallelism": ("split_layers",),
    "DistributedDataParallel": (
        "data_parallel",
        "ddp_buckets",
        "ddp_fewer_bytes",
        "no_sync",
        "overlap_collective",
    ),
    "torch.compile": (
        "compile_model",
        "cuda_graphs",
        "keep_in_graph",
        "forbid_graph_breaks",
        "mark_dynamic",
        "set-call-args",
    ),
    "The loss in the graph": ("compile_loss", "chunked_loss", "fused_loss"),
    "Regional compilation": ("compile_blocks",),
    "Batch size": ("batch-size", "raise_batch", "fill_the_gpu"),
    "Gradient accumulation": ("gradient_accumulation",),
    "Gradient checkpointing": ("checkpoint_blocks", "checkpoint_other_layers"),
    "fp16, bf16, TF32": ("autocast", "one_type", "tf32", "single_precision"),
    "Fused and multi-tensor optimizers": (
        "fused_optimizer",
        "foreach_optimizer",
        "update_together",
        "update_in_place",
        "newer_torch",
    ),
    "8-bit optimizers and Adafactor": ("less_optimizer_state", "adafactor"),
    "DeepSpeed offload": ("offload",),
    "Grouped GEMM for mixtures of experts": ("grouped_gemm",),
    "Containers": ("one_image",),
    "Less host work and synchronization": (
        "read_seldom",
        "sum_on_device",
        "fixed_sizes",
        "copy_seldom",
        "copy_behind",
        "no_synchronize",
        "launches_do_not_wait",
        "save_seldom",
        "off_the_step",
        "detach-accumulation",
    ),
    "Work made where it is used": ("create_on_device", "keep_on_device", "make_once", "vectorise"),
    "Layouts and algorithms of convolutions": ("channels_last", "cudnn_benchmark"),
    "Memory freed": ("release_output",),
    "Inference servers": (
        "decode_in_graphs",
        "schedule_ahead",
        "static_cache",
        "copy_tokens_behind",
        "no_value_on_host",
        "serve_in_half",
        "fused_attention_backend",
        "compile_in_engine",
        "more_requests",
        "smaller_prefills",
        "batch_block_copies",
        "keep_cache_on_device",
        "balance_requests",
        "record_after_warm_up",
    ),
    "Memory of other GPUs": ("other_devices",),
}
"""topic -> functions of `techniques/`, and codemods that rules name themselves"""
_SAMPLES: Mapping[str, Mapping[str, object]] = {
    "dataloader-args": {
        "num_workers": 4,
        "pin_memory": True,
        "persistent_workers": True,
        "prefetch_factor": 4,
    },
    "optimizer-args": {"fused": True},
    "replace-optimizer": {"to": "adamw-8bit"},
    "compile-model": {"mode": "reduce-overhead"},
    "remove-call": {"call": "torch.cuda.empty_cache"},
    "gradient-accumulation": {"steps": 4},
    "batch-size": {"size": 64},
    "allocator-setting": {"key": "expandable_segments", "value": True},
    "set-call-args": {"callee": "torch.compile"},
    "set-config": {"name": "torch.backends.cudnn.benchmark", "value": True},
}
"""parameters that show what a codemod asks a framework for"""


def page() -> str:
    """The text of docs/techniques.md."""
    made, named = techniques(), rules()
    lines = [
        "# Techniques",
        "",
        "What findings recommend, and how it is done: *edit* is a tested codemod that changes the source or a configuration "
        "file, *shown* one that is made if you name it (`fix --select TD407-1.1`), *advice* is code to adapt manually. This page is generated.",
        "",
        "| wanted | technique | how | rules |",
        "| --- | --- | --- | --- |",
    ]
    for topic, names in TOPICS.items():
        for name in names:
            how, title = made[name] if name in made else (f"edit: `{name}`", _summary(name))
            codes = " ".join(f"[{c}](rules/{c}.md)" for c in sorted(named.get(name, ())))
            lines.append(f"| {topic} | {title} | {how} | {codes} |")
    lines += [
        "",
        "No edit is written where the script does not hold what decides:",
        "",
        "- FlexAttention: its mask is a function of positions. A mask that is a tensor does not say which one.",
        "- xFormers, TransformerEngine: tensors have other layouts, and parameters other names in checkpoints.",
        "- Padding, a first step with the largest shape: which dimension varies, what it is padded with, and whether the loss "
        "leaves padding out.",
        "",
        "## In the words of frameworks",
        "",
        "Where a framework runs the loop, the same edit sets its own argument instead: in the script, in the file or the "
        "command that it is configured by. `since` is the first release that has it; without a pinned release only what "
        "all have is written.",
        "",
        "| edit | Trainer | Accelerate | Lightning | Fabric |",
        "| --- | --- | --- | --- | --- |",
        *_framework_rows(),
        "",
        "DeepSpeed: `deepspeed-zero` and `autocast` edit its JSON file or dictionary; what a Trainer's arguments repeat of "
        "it is changed in both. Variables such as `PYTORCH_CUDA_ALLOC_CONF` are extended where a launch script, an image or "
        "a job description sets them, and set in the script otherwise.",
        "",
        "## What an edit adds",
        "",
        "The parameters that a codemod takes, and all identifiers and words of strings that it may bring into a script in "
        "addition to them, numbers and what the script itself says. Nothing else of a finding is ever written.",
        "",
        "| edit | parameters | adds |",
        "| --- | --- | --- |",
        *_additions(),
    ]
    return "\n".join(lines) + "\n"


def _summary(codemod: str) -> str:
    from trace_doctor.fixes.codemods import codemods

    return codemods()[codemod].summary.rstrip(".")


def _framework_rows() -> Iterator[str]:
    from trace_doctor.fixes.codemods import codemods
    from trace_doctor.fixes.frameworks import trainers as f
    from trace_doctor.model.parameters import parameters

    tables = (f.TRAINING_ARGUMENTS, {**f.ACCELERATE, **f.DYNAMO}, f.LIGHTNING, f.FABRIC)
    for name in codemods():
        wanted = f.wishes_of(name, parameters(name, _SAMPLES.get(name, {})))
        cells = [
            ", ".join(_said(t[w], v) for w, v in wanted.items()) if set(wanted) <= set(t) else ""
            for t in tables
        ]
        if any(cells):
            yield f"| `{name}` | " + " | ".join(cells) + " |"


def _additions() -> Iterator[str]:
    from trace_doctor.fixes.codemods import codemods

    for name, mod in codemods().items():
        fields = [_parameter(field) for form in _structs(mod.params) for field in form.fields]
        adds = " ".join(f"`{word}`" for word in sorted(mod.adds))
        yield f"| `{name}` | {', '.join(dict.fromkeys(fields))} | {adds} |"


def _structs(form: Any) -> Iterator[inspect.StructType]:
    """The types of parameters: one, or one for each callee."""
    info = inspect.type_info(form)
    for each in info.types if isinstance(info, inspect.UnionType) else (info,):
        assert isinstance(each, inspect.StructType)
        if each.tag is not None:
            tagged = inspect.Field("callee", "callee", inspect.LiteralType((each.tag,)), required=True)
            each = inspect.StructType(each.cls, (tagged, *each.fields))
        yield each


def _parameter(field: inspect.Field) -> str:
    """`dtype`: bfloat16 or float16"""
    return f"`{field.encode_name}`: {_values(field.type)}"


def _values(form: inspect.Type) -> str:
    match form:
        case inspect.LiteralType():
            return " or ".join(f"`{v}`" for v in form.values)
        case inspect.UnionType() if any(isinstance(t, inspect.BoolType) for t in form.types):
            return "true or false"
        case inspect.UnionType():
            return _values(next(t for t in form.types if not isinstance(t, inspect.NoneType)))
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"{form.ge} to {form.le}"
        case inspect.VarTupleType():
            return f"some of {_values(form.item_type)}"
        case inspect.StructType():
            return "(" + ", ".join(map(_parameter, form.fields)) + ")"
        case inspect.StrType(pattern=str()):
            return "a version"
        case _:
            return "a name, which is compared with the script and not written"


def _said(setting: object, value: str) -> str:
    from trace_doctor.fixes.frameworks.trainers import Setting

    assert isinstance(setting, Setting)
    text = f"{setting.name}={setting.value.format(value)}"
    if setting.plugin is not None:
        text = f"{setting.plugin.name}={setting.plugin.constructor.split('.')[-1]}({text})"
    since = max(setting.since or (0, 0), (setting.plugin.since if setting.plugin else None) or (0, 0))
    return f"`{text}`" + (f" since {since[0]}.{since[1]}" if since > (0, 0) else "")


# ---------------------------------------------------------------------- read from the source


@cache
def techniques() -> dict[str, tuple[str, str]]:
    """Function or value of `techniques/` -> (how it is made, its title)."""
    found = {}
    for name, node in _made():
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in (*_PATCH, *_ADVICE):
                titles = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "title")]
                found[name] = (_how(call), _title(titles[0]) or name.replace("_", " ").capitalize())
                break
    return found


_PATCH, _ADVICE = ("patch", "patched"), ("advice", "advised", "Fix")


def _made() -> Iterator[tuple[str, ast.stmt]]:
    for file in sorted((RULES / "techniques").glob("[a-z]*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield node.name, node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                yield node.targets[0].id, node


def _how(call: ast.Call) -> str:
    if getattr(call.func, "id", "") not in _PATCH:
        return "advice"
    assert isinstance(call.args[1], ast.Constant)
    display = any(k.arg == "safety" and getattr(k.value, "value", "") == "display" for k in call.keywords)
    return f"{'shown' if display else 'edit'}: `{call.args[1].value!s}`"


def _title(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return ""


@cache
def rules() -> dict[str, set[str]]:
    """Technique or codemod -> codes of the rules that name it."""
    from trace_doctor.registry import all_rules

    found: dict[str, set[str]] = {}
    for rule in all_rules():
        path = RULES.parent / (rule.__module__.replace(".", "/") + ".py")
        for name in _names(path, None):
            found.setdefault(name, set()).add(rule.code)
    return found


def _names(path: Path, only: str | None) -> set[str]:
    """What a file, or one function of it, calls of `techniques`, and the codemods that it names for a fix."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    helpers = {
        alias.asname or alias.name: (file, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trace_doctor_rules.")
        for file in [RULES.parent / (str(node.module).replace(".", "/") + ".py")]
        if file.is_file()  # else a package: its module holds captures of cases
        for alias in node.names
    }
    own = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    todo: list[ast.AST] = [own[only]] if only in own else [tree] if only is None else []
    seen, found = {only}, set()
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "techniques":
                found.add(node.attr)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Fix", "patch"):
                found |= {
                    n.value
                    for k in node.keywords
                    if k.arg == "codemod"
                    for n in ast.walk(k.value)
                    if isinstance(n, ast.Constant) and isinstance(n.value, str)
                }
            elif isinstance(node, ast.Name) and node.id in helpers:
                found |= _names(*helpers[node.id])
            elif isinstance(node, ast.Name) and only is not None and node.id in own and node.id not in seen:
                seen.add(node.id)
                todo.append(own[node.id])
    return found
