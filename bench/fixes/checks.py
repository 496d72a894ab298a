"""What has to hold for every patch: it applies, the file parses, ruff says nothing new, nothing else changes, and once is
enough."""

from __future__ import annotations

import io
import keyword
import re
import subprocess
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from style import new_messages

from trace_doctor.fixes import Plan, plan
from trace_doctor.model import Finding, Result
from trace_doctor.program.source_tree import SourceTree

_FREELY = {
    "torch",
    "import",
    "from",
    "as",
    "True",
    "False",
    "None",
    "if",
    "else",
    "for",
    "in",
    "with",
    "and",
    "or",
    "not",
}
_WRITES: dict[str, set[str]] = {
    "allocator-setting": {"os", "environ", "setdefault"},
    "autocast": {"autocast", "device_type", "dtype", "bfloat16", "float16", "amp", "cuda", "GradScaler", "scaler", "scale",
                 "step", "update", "unscale_", "mixed_precision", "bf16", "fp16", "precision", "type", "state_dict",
                 "load_state_dict", "distributed", "fsdp", "MixedPrecisionPolicy", "mp_policy", "param_dtype",
                 "reduce_dtype", "float32"},
    "batch-size": {"per_device_train_batch_size"},
    "channels-last": {"to", "memory_format", "channels_last"},
    "checkpoint-blocks": {"utils", "checkpoint", "checkpoint_sequential", "use_reentrant", "gradient_checkpointing", "len",
                          "gradient_checkpointing_enable", "is_grad_enabled"},
    "compile-loss": {"compile"},
    "compile-model": {"compile", "mode", "backend", "dynamo_backend", "torch_compile", "torch_compile_mode",
                      "reduce", "overhead"},
    "dataloader-args": {"num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "dataloader_num_workers",
                        "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"},
    "detach-accumulation": {"detach", "item"},
    "every-n-guard": {"detach", "clone", "float", "int", "value", "item", "enumerate", "step", "batch_index", "micro_step",
                      "logging_steps", "log_every_n_steps"},
    "gradient-accumulation": {"enumerate", "step", "len", "gradient_accumulation_steps", "per_device_train_batch_size",
                              "accumulate_grad_batches"},
    "save-every-n": {"enumerate", "step"},
    "graph-break-line": {"pass", "compiler", "is_compiling", "_dynamo", "config", "capture_scalar_outputs"},
    "mark-dynamic": {"_dynamo", "mark_dynamic"},
    "matmul-precision": {"set_float32_matmul_precision", "backends", "cuda", "matmul", "fp32_precision", "tf32"},
    "no-sync": {"contextlib", "nullcontext", "no_sync", "len", "isinstance"},
    "optimizer-args": {"fused", "foreach", "optim", "adamw_torch_fused"},
    "pinned-copies": {"non_blocking", "pin_memory"},
    "remove-call": {"pass", "torch_empty_cache_steps"},
    "sum-on-device": {"detach", "clone", "float", "int", "value", "item", "enumerate", "step", "batch_index", "micro_step"},
    "tensor-device": {"device"},
    "zero-grad": {"zero_grad", "optimizer", "set_to_none"},
}  # fmt: skip
"""names that an edit may bring into a file that has them not; of the codemods left out anything goes"""
_OF_THE_MODEL = {"checkpoint-blocks"}
"""what writes the names of a model's parts, which another file may define"""
_PART = re.compile(r"""self\.(\w+)\s*=|(\w+)['"]?\s*[:=]\s*(?:torch\.)?nn\.""")


class Checker:
    """Checks the plans of one source. Patches that were checked before are not checked again, and a second
    run is tried once for each codemod and file."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.files = 0
        """patched Python files"""
        self.messages: Counter[str] = Counter()
        """codemods and code of a new message of ruff -> how many"""
        self._seen: set[bytes] = set()
        self._repeated: set[tuple[str | None, str]] = set()

    def complaints(
        self, made: Plan, findings: list[Finding], *, torch_version: str | None = None
    ) -> list[str]:
        """What is wrong with the edits of a plan; empty for a sound one."""
        patch = made.patch()
        if not patch or patch in self._seen:
            return []
        self._seen.add(patch)
        found = list(_applied(made, patch))
        for name, (file, new) in made.outputs.items():
            written = [
                i.fix.codemod or ""
                for i in made.of("ready")
                if i.change and name in [f.name for f, _ in i.change.files]
            ]
            if name.endswith(".py"):
                found += _sound(name, new)
                said = list(new_messages(self.tree.path(name), file.data, new))
                found += [f"{name}: {message}" for message in said]
                codemods = " and ".join(sorted(set(written)))
                self.messages.update(f"{codemods}: {m.split()[0]} ({m.split('(')[-1]}" for m in said)
                self.files += 1
            known = self._blocks() if _OF_THE_MODEL & set(written) else set()
            found += _unexpected(name, file.data, new, written, known)
        written = {(i.fix.codemod, i.change.script.name) for i in made.of("ready") if i.change}
        if found or written <= self._repeated:
            return found
        self._repeated |= written
        return self._second(made, findings, torch_version)

    def _blocks(self) -> set[str]:
        """What the classes of the source call their parts: `transformer`, `h`."""
        texts = (self.tree.data(n).decode("utf-8", "replace") for n in self.tree.files)
        return {name for text in texts for names in _PART.findall(text) for name in names if name}

    def _second(self, made: Plan, findings: list[Finding], torch_version: str | None) -> list[str]:
        """What a second run, of the same fixes, still wants to change."""
        ready = {(i.finding.id, i.index) for i in made.of("ready")}
        again = plan(
            Result(findings=findings), self.tree.root, tree=patched(made), torch_version=torch_version
        )
        left = [i for i in again.of("ready") if (i.finding.id, i.index) in ready]
        return [f"second run: {i.fix.codemod}: {i.diff.decode(errors='replace')}" for i in left]


def patched(made: Plan) -> SourceTree:
    """The source with the edits of a plan made, in memory."""
    tree = SourceTree(made.tree.root if made.tree.single is None else made.tree.single)
    changed = {name: new for name, (_, new) in made.outputs.items()}
    tree._bytes.update({**made.tree._bytes, **changed})
    tree._scripts.update({n: s for n, s in made.tree._scripts.items() if n not in changed})
    return tree


def _applied(made: Plan, patch: bytes) -> Iterator[str]:
    """`git apply` of the patch gives the files that the plan says, byte by byte."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, _) in made.outputs.items():
            path = Path(folder, made.prefix + name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        for how in (["--check"], []):
            git = subprocess.run(
                ["git", "apply", *how, "-"], check=False, input=patch, cwd=folder, capture_output=True
            )
            if git.returncode:
                yield f"git apply {' '.join(how)}: {git.stderr.decode(errors='replace').strip()}"
                return
        for name, (_, new) in made.outputs.items():
            if Path(folder, made.prefix + name).read_bytes() != new:
                yield f"{name}: git apply gives other bytes than the plan"


def _sound(name: str, new: bytes) -> Iterator[str]:
    try:
        compile(new, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        yield f"{name}: {error}"


def _unexpected(name: str, old: bytes, new: bytes, codemods: list[str], known: set[str]) -> Iterator[str]:
    """Names that the edits bring in and that none of their codemods writes."""
    if not all(c in _WRITES for c in codemods):
        return
    allowed = _FREELY.union(known, *(_WRITES[c] for c in codemods))
    before, after = Counter(_words(name, old)), Counter(_words(name, new))
    new = {w for w in after if w not in before and w.removeprefix("compiled_") not in before}
    if strange := new - allowed:
        yield f"{name}: {', '.join(sorted(strange))} is not what {', '.join(codemods)} writes"


def _words(name: str, data: bytes) -> list[str]:
    if not name.endswith(".py"):
        return re.findall(r"[A-Za-z_]\w*", data.decode("utf-8", "replace"))
    tokens = tokenize.tokenize(io.BytesIO(data).readline)
    return [
        t.string
        for t in tokens
        if t.type == tokenize.NAME and (t.string in _FREELY or not keyword.iskeyword(t.string))
    ]
