"""Memory snapshots, over a small caching allocator."""

from __future__ import annotations

from typing import Any

from script import CALL, STEPS, TORCH, Script
from trace_doctor.testing import SnapshotBuilder

MIB = 1 << 20
LINEAR = "at::_ops::addmm::call(...)"


class Training:
    """A model of linear layers under AdamW, recorded from its first step on."""

    def __init__(
        self,
        script: Script,
        *,
        layers: int,
        weight: int,
        activation: int,
        device_bytes: int = 80 << 30,
        expandable_segments: bool = False,
    ) -> None:
        self.script = script
        self.b = SnapshotBuilder(
            script=script.file,
            function="train",
            device_bytes=device_bytes,
            expandable_segments=expandable_segments,
        )
        self.layers, self.weight, self.activation = layers, weight, activation
        self.gradients: list[Any] = []
        for _ in range(layers):
            self.b.held(weight)

    def forward(self, caller: str = "model(x)") -> list[Any]:
        return [
            self.b.alloc(self.activation, frames=self.script.module(LINEAR, caller)) for _ in range(self.layers)
        ]

    def backward(self, kept: list[Any]) -> None:
        """Frees the activations from the last to the first; new gradients, or sums into those that are there."""
        there = bool(self.gradients)
        with self.b.backward("AddmmBackward0"):
            for block in reversed(kept):
                made = self.b.alloc(self.weight)
                if there:
                    self.b.free(made)
                else:
                    self.gradients.append(made)
                self.b.free(block)

    def optimizer_step(self, first: bool) -> None:
        with self.b.optimizer_step(line=self.script.line("optimizer.step()")):
            for _ in range(2 * self.layers if first else 0):
                self.b.alloc(self.weight)

    def zero_grad(self, to_none: bool = True) -> None:
        with self.b.zero_grad(line=self.script.line("optimizer.zero_grad(")):
            if to_none:
                self.b.free(*self.gradients)
                self.gradients.clear()


def zero_grad_misplaced(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=6, weight=16 * MIB, activation=64 * MIB)
    for step in range(STEPS):
        kept = job.forward()
        if script.faulty:
            job.zero_grad()
        job.backward(kept)
        job.optimizer_step(step == 0)
        if not script.faulty:
            job.zero_grad()
    return job.b


def zero_grad_set_to_none_false(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=6, weight=16 * MIB, activation=64 * MIB)
    for step in range(STEPS):
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad(to_none=not script.faulty)
    return job.b


def empty_cache_in_loop(script: Script) -> SnapshotBuilder:
    """The longest document comes first; each later one is shorter."""
    job = Training(script, layers=4, weight=24 * MIB, activation=100 * MIB)
    for step, length in enumerate((100, 60, 45, 80, 30, 70, 55, 90)):
        job.activation = length * MIB
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
        if script.faulty:
            job.b.empty_cache(line=script.line("empty_cache()"))
    return job.b


def allocator_churn_shapes(script: Script) -> SnapshotBuilder:
    """Cached segments that are too small for the next document are given back under pressure; one that grows
    (`expandable_segments`) fits every document."""
    job = Training(script, layers=4, weight=24 * MIB, activation=0, expandable_segments=not script.faulty)
    for step, length in enumerate((60, 120, 90, 160, 60, 140, 110, 180)):
        job.activation = length * MIB
        if script.faulty and step:
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.release_cached()
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
    return job.b


def fragmentation(script: Script) -> SnapshotBuilder:
    """Every document is longer than the one before: its activations fit no cached segment, or the one that grows."""
    job = Training(script, layers=4, weight=24 * MIB, activation=0, expandable_segments=not script.faulty)
    for step, length in enumerate(range(40, 200, 20)):
        job.activation = length * MIB
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
    return job.b


def memory_spike(script: Script) -> SnapshotBuilder:
    """Logits of 8128 tokens over 32,768 words are 1 GiB, and so are their log-softmax, its gradient and the gradient
    of the logits. Of 64 chunks, computed again in the backward, each needs a 64th of it."""
    job = Training(script, layers=3, weight=64 * MIB, activation=16 * MIB)
    chunks = 1 if script.faulty else 64
    size = 1024 * MIB // chunks
    where = [
        (script.file, script.line("F.cross_entropy("), "loss" if script.faulty else "chunk_loss"),
        *script.train("model(tokens)"),
    ]

    def loss() -> Any:
        logits = job.b.alloc(size, frames=[("??", 0, "at::_ops::mm::call(...)"), *where])
        softmax = job.b.alloc(size, frames=[("??", 0, "at::_ops::_log_softmax::call(...)"), *where])
        job.b.free(logits)
        return softmax

    for _ in range(STEPS):
        kept = job.forward("model(tokens)")
        softmax = [loss() for _ in range(chunks)] if script.faulty else []
        for _ in range(0 if script.faulty else chunks):
            job.b.free(loss())
        for _ in range(chunks):
            again = softmax.pop() if script.faulty else loss()
            with job.b.backward("NllLossBackward0"):
                into_softmax = job.b.alloc(size)
            with job.b.backward("LogSoftmaxBackward0"):
                into_logits = job.b.alloc(size)
                job.b.free(into_softmax, again)
            with job.b.backward("MmBackward0"):
                job.b.free(into_logits)
        job.backward(kept)
        job.optimizer_step(first=False)
        job.zero_grad()
    return job.b


def memory_growth(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=4, weight=4 * MIB, activation=32 * MIB)
    for step in range(STEPS):
        job.backward(job.forward("loss = F.cross_entropy(model(x)"))
        job.optimizer_step(step == 0)
        job.zero_grad()
        validation = job.forward("validation_loss = F.cross_entropy(model(x)")
        if not script.faulty:
            with job.b.script_line(script.line("validation_total +="), "train"):
                job.b.free(*validation)
    return job.b


def out_of_memory(script: Script) -> SnapshotBuilder:
    """The job may use 1 GiB; its ninth batch is sixteen times as large as the others."""
    limit = 1024 * MIB
    job = Training(script, layers=6, weight=32 * MIB, activation=10 * MIB, device_bytes=limit)
    for step in range(9):
        if step == 8 and script.faulty:
            job.activation = 160 * MIB
            job.b.release_cached()
            free = limit - (job.layers * job.weight)
            for _ in range(free // job.activation):
                job.b.alloc(job.activation, frames=script.module(LINEAR))
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.oom(job.activation, device_free=free % job.activation)
            break
        job.backward(job.forward())
        job.optimizer_step(first=False)
        job.zero_grad()
    return job.b


def activation_bound(script: Script) -> SnapshotBuilder:
    """Each of twelve blocks keeps 96 MiB for the backward, or 32 MiB where it is run again there; 1 GiB may be used."""
    limit, size = 1024 * MIB, 32 * MIB
    b = SnapshotBuilder(script=script.file, function="train", device_bytes=limit)
    for _ in range(24):
        b.held(4 * MIB)
    loop = (script.file, script.line("for block in self.blocks") + 1, "forward")
    again = [] if script.faulty else [(TORCH + "utils/checkpoint.py", 503, "checkpoint")]

    def block(line: str, native: str = LINEAR) -> Any:
        inside = [("??", 0, native), (script.file, script.line(line), "forward"), *CALL, *again, loop, *CALL]
        return [*inside, *script.train("model(x)")]

    def run() -> list[Any]:
        return [
            b.alloc(size, frames=block("self.up(x)")),
            b.alloc(size, frames=block("F.gelu(", "at::_ops::gelu::call(...)")),
            b.alloc(size, frames=block("self.down(hidden)")),
        ]

    for _ in range(STEPS):
        gradients: list[Any] = []
        kept: list[list[Any]] = []
        for _ in range(9 if script.faulty else 12):
            kept.append(run())
            if not script.faulty:
                b.free(*kept[-1][:2])
        if script.faulty:
            b.alloc(size, frames=block("self.up(x)"))
            with b.script_line(script.line("model(x)"), "train"):
                b.oom(size, device_free=limit - 96 * MIB - 28 * size - 8 * MIB)
            break
        for blocks in reversed(kept):
            with b.backward("AddmmBackward0"):
                repeated = [b.alloc(size), b.alloc(size)]
                gradients += [b.alloc(4 * MIB), b.alloc(4 * MIB)]
                b.free(*repeated, blocks[2])
        with b.optimizer_step(line=script.line("optimizer.step()")):
            b.temporary(MIB)
        with b.zero_grad(line=script.line("optimizer.zero_grad(")):
            b.free(*gradients)
    return b


def optimizer_state_bound(script: Script) -> SnapshotBuilder:
    """Parameters hold 240 MiB, AdamW's state twice that, the activations of a batch 480: the second one does not fit
    into 1 GiB."""
    limit = 1024 * MIB
    job = Training(script, layers=6, weight=40 * MIB, activation=80 * MIB, device_bytes=limit)
    for step in range(STEPS):
        if step and script.faulty:
            job.b.release_cached()
            for _ in range(3):
                job.b.alloc(job.activation, frames=script.module(LINEAR))
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.oom(job.activation, device_free=24 * MIB)
            break
        job.backward(job.forward())
        job.optimizer_step(step == 0 and script.faulty)
        job.zero_grad()
    return job.b


def stale_graph(script: Script) -> SnapshotBuilder:
    """Without inference mode the variable `output` holds 260 MiB while the next batch is computed."""
    b = SnapshotBuilder(script=script.file, function="train", annotate=False)
    b.held(20 * MIB)
    old: list[Any] = []
    for _ in range(STEPS):
        with b.script_line(script.line("x = torch.randn("), "train"):
            x = b.alloc(32 * MIB)
        kept: list[Any] = []
        for layer in range(8):
            native = "at::_ops::gelu::call(...)" if layer % 2 else LINEAR
            made = b.alloc(32 * MIB, frames=script.module(native))
            if not script.faulty:
                b.free(*kept)
                kept.clear()
            kept.append(made)
        output = b.alloc(4 * MIB, frames=script.module(LINEAR))
        if not script.faulty:
            b.free(*kept)
            kept.clear()
        b.free(*old, *([] if script.faulty else [x]))
        old = [x, *kept, output] if script.faulty else [output]
    return b


SCENARIOS = (
    zero_grad_misplaced,
    zero_grad_set_to_none_false,
    allocator_churn_shapes,
    fragmentation,
    memory_spike,
    memory_growth,
    activation_bound,
    optimizer_state_bound,
    empty_cache_in_loop,
    out_of_memory,
    stale_graph,
)
