"""Captures that the cases of `memory_spike` build."""

from __future__ import annotations

from typing import Any, Literal

from trace_doctor.testing import MIB, SnapshotBuilder


def forwards(layers: int, scores: int, *, clock: bool = True) -> SnapshotBuilder:
    """Inference: every layer makes `scores` MiB of score matrices, of which the next operator needs only the last."""
    b = SnapshotBuilder(clock=clock)
    b.held(300 * MIB)
    for _ in range(layers):
        for line in range(4):
            with b.forward(line=10 + line):
                b.temporary(2 * MIB, MIB)
        with b.forward("/home/me/attention.py", 41, op="softmax"):
            b.temporary(scores * MIB, scores * MIB)
    return b


def stages_of_one_matrix(beside: int = 8) -> SnapshotBuilder:
    """Each layer's scores are scaled, masked, normalised ... into a matrix of the same size, and three of them are there at
    any time: without those at the peak, others stand nearly as high. Or, with nothing `beside`, a model of equal layers."""
    b = SnapshotBuilder()
    b.held(4000 * MIB)
    for _ in range(20):
        for _ in range(beside):
            with b.forward(line=10):
                b.temporary(2 * MIB, MIB)
        stages: list[Any] = []
        for line in range(41, 46):
            with b.forward("/home/me/attention.py", line):
                stages.append(b.alloc(256 * MIB))
            if len(stages) == 3:
                b.free(stages.pop(0))
        b.free(*stages)
    return b


def kept() -> SnapshotBuilder:
    """Large activations that backward needs."""
    b = SnapshotBuilder()
    b.train(4, activations=[600 * MIB] * 3)
    return b


def weight_copies() -> SnapshotBuilder:
    """Autocast keeps copies of the weights for the whole forward: large, in one phase, but not short-lived."""
    b = SnapshotBuilder()
    b.held(800 * MIB)
    for _ in range(2):
        copies = []
        for layer in range(40):
            with b.forward(line=20 + layer, op="_to_copy"):
                copies.append(b.alloc(10 * MIB))
            with b.forward(line=20 + layer):
                b.temporary(2 * MIB, MIB)
        with b.script_line(70):
            b.free(*copies)
    return b


def in_backward(node: str = "CatBackward0", size: int = 300, forward: int = 20) -> SnapshotBuilder:
    b = SnapshotBuilder()
    for _ in range(3):
        with b.forward(line=31):
            activations = [b.alloc(forward * MIB) for _ in range(20)]
        with b.backward(node):
            b.temporary(size * MIB, size * MIB)
        with b.backward():
            b.free(*activations)
        with b.optimizer_step():
            pass
    return b


def attention_in_functions() -> SnapshotBuilder:
    """Attention by matmul and a softmax of exp and a division, called by the script: autograd saves exp and the quotient, and
    the backward of the division makes three more matrices of scores."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(3):
        with b.script_line(41, "attention"):
            scores = b.alloc(300 * MIB)
        with b.script_line(43, "softmax"):
            exp = b.alloc(300 * MIB)
            b.free(scores)
            weights = b.alloc(300 * MIB)
        with b.forward("/home/me/loss.py", 50, op="mse_loss"):
            b.temporary(MIB)
        with b.backward("BmmBackward0"):
            gradient = b.alloc(300 * MIB)
            b.free(weights)
        with b.backward("DivBackward0"):
            b.temporary(300 * MIB, 300 * MIB, 300 * MIB)
            b.free(gradient, exp)
        with b.optimizer_step():
            b.temporary(2 * MIB)
    return b


def one_function_of_a_library() -> SnapshotBuilder:
    """Attention and the layer behind it call the same function of a library, which allocates."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    einsum = ("/venv/lib/python3.12/site-packages/einops/_backends.py", 291, "einsum")
    for _ in range(3):
        for line, mib in ((41, 300), (60, 200)):
            of_line = b.alloc(
                mib * MIB, frames=[einsum, (b.script, line, "forward"), (b.script, 99, "<module>")]
            )
            with b.forward():
                b.temporary(MIB)
            b.free(of_line)
        with b.backward():
            b.temporary(MIB)
        with b.optimizer_step():
            b.temporary(2 * MIB)
    return b


def graphs_beside_a_spike() -> SnapshotBuilder:
    """Forwards with gradients and without a backward: each keeps its graph until its result goes, and ends with large logits."""
    b = SnapshotBuilder(annotate=False)
    b.held(100 * MIB)
    for _ in range(3):
        graph = []
        for layer in range(60):
            with b.forward(line=20 + layer % 6):
                graph.append(b.alloc(10 * MIB))
        with b.forward(line=40):
            b.temporary(150 * MIB)
        with b.script_line(70):
            b.free(*graph)
    return b


def loss() -> SnapshotBuilder:
    """Logits in bf16, their log-softmax's gradient and the loss's."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(3):
        with b.forward(line=31):
            logits = b.alloc(300 * MIB)
        with b.backward("LogSoftmaxBackward0"):
            b.temporary(600 * MIB)
        with b.backward():
            b.free(logits)
        with b.optimizer_step():
            pass
    return b


def foreach(parameters: int = 60) -> SnapshotBuilder:
    """step() makes a temporary for each parameter and frees them all when the last is there."""
    b = SnapshotBuilder()
    b.held(600 * MIB)
    for _ in range(2):
        with b.forward(line=31):
            b.temporary(*[MIB] * 40)
        with b.backward():
            b.temporary(*[MIB] * 40)
        with b.optimizer_step():
            temporaries = [b.alloc(10 * MIB) for _ in range(parameters)]
            b.free(*temporaries)
    return b


def an_output_held_until_the_next() -> SnapshotBuilder:
    """Inference without a mark at its steps: `logits = model(x)` keeps the old ones until the new ones are there."""
    b = SnapshotBuilder(annotate=False)
    old = [b.held(MIB)]
    for _ in range(30):
        with b.forward(line=20):
            for _ in range(12):
                b.temporary(8 * MIB)
        with b.forward(line=30):
            new = b.alloc(600 * MIB)
        b.free(*old)
        old = [new]
    return b


def few_operators_a_pass() -> SnapshotBuilder:
    """The same with one layer: its output lives for a few allocations, and for longer than a whole pass."""
    b = SnapshotBuilder(annotate=False)
    b.held(1900 * MIB)
    old = [b.held(MIB)]
    for _ in range(3):
        with b.script_line(10):
            x = b.alloc(190 * MIB)
        with b.forward(line=20):
            new = b.alloc(950 * MIB)
        with b.script_line(10):
            b.free(*old)
        old = [x, new]
    b.free(*old)
    return b


def layers_called_by_the_script() -> SnapshotBuilder:
    """No module around them: a layer's result dies in the function of the script that follows it."""
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(30):
        with b.forward(line=31):
            wide = b.alloc(300 * MIB)
        with b.script_line(70):
            after = b.alloc(300 * MIB)
            b.free(wide)
        with b.forward(line=33):
            narrow = b.alloc(10 * MIB)
            b.free(after)
        with b.script_line(72):
            b.free(narrow)
    return b


def ends_at_the_peak() -> SnapshotBuilder:
    """The record stops while the block is alive: nothing says that it is short-lived."""
    b = SnapshotBuilder()
    for line in range(30):
        with b.forward(line=line):
            b.temporary(2 * MIB)
    with b.forward(line=50):
        b.alloc(900 * MIB)
    return b


def with_frames_of(stacks: Literal["cpp", "state"] | None) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks, annotate=False)
    b.alloc(MIB)  # is there at the end
    with b.forward():
        b.temporary(900 * MIB)
    return b
