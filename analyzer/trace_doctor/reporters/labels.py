"""The words that every human-readable output shares: kinds of time, classes of memory, severities, places, savings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trace_doctor.model import (
    MEMORY_NAMES,
    PART_NAMES,
    Budget,
    CriticalPath,
    Finding,
    HowKnown,
    Known,
    Location,
    MemoryHeldRow,
    OnDevice,
    Outcome,
    Result,
    Saving,
    Severity,
    TimeLedgerRow,
    Unit,
    ranks_text,
)
from trace_doctor.reporters.engine_steps import kinds_words
from trace_doctor.reporters.units import (
    duration,
    estimate_duration,
    estimate_share,
    estimate_size,
    plural,
    share,
    size,
    step_change,
)
from trace_doctor.user_frames import brief_path


class Kind(NamedTuple):
    """A part of a ledger: what it is called and what it means."""

    label: str
    meaning: str


_BUSY = {
    "compute": "kernels were running",
    "comm": "only collectives were running: no compute overlapped them",
    "copy": "only memory copies or memsets were running",
}
_IDLE = {
    "data_loading": "the host was fetching the next batch",
    "sync": "the host had waited for the GPU and lost its run-ahead",
    "allocator": "the host was in cudaMalloc, cudaFree or a similar call",
    "compile": "the host was compiling: dynamo, inductor, Triton",
    "cold_start": "lazy initialization: modules and libraries load at their first use",
    "optimizer": "the host was preparing the optimizer step",
    "annotation": "the host was inside a record_function block that launched nothing",
    "python": "no operator ran on the host: Python code, or nothing was recorded",
    "dispatch": "the host was preparing operators and launches",
    "launch": "the work was on its way from the host to the device",
    "graph": "nodes of a CUDA graph waited for other nodes of it",
    "profiler": "the profiler itself blocked the host",
    "unattributed": "nothing in the capture explains the idle time",
}
_MEMORY = {
    "parameters": "the model's weights",
    "gradients": "what backward leaves for the optimizer",
    "optimizer_state": "what the optimizer keeps between steps",
    "activations": "saved by forward for backward",
    "inputs": "the batch",
    "temporaries": "allocated and freed within one phase",
    "workspaces": "scratch of cuBLAS, cuDNN and the like",
    "held_before_recording": "allocated before the allocation history began",
    "unknown": "the allocation history does not say",
    "unsharded_parameters": "gathered from all ranks by FSDP or ZeRO-3, until they are sharded again",
    "weight_copies": "16-bit copies of fp32 weights that autocast caches until its context ends",
}
_EXPOSED = {"comm": "exposed_comm", "copy": "exposed_copy"}
BUSY = {k: Kind(PART_NAMES[_EXPOSED.get(k, k)], meaning) for k, meaning in _BUSY.items()}
IDLE = {k: Kind(PART_NAMES[k], meaning) for k, meaning in _IDLE.items()}
KINDS = {**BUSY, **IDLE}
MEMORY = {k: Kind(MEMORY_NAMES[k], meaning) for k, meaning in _MEMORY.items()}

FAMILIES: dict[str, str] = {
    "0": "the capture itself",
    "1": "data",
    "2": "host",
    "3": "kernels",
    "4": "memory",
    "5": "compilation",
    "6": "communication",
}
"""what the first digit of a code stands for"""

SYMBOL: dict[Severity, str] = {"critical": "✖", "warning": "▲", "info": "●"}
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
HOW_KNOWN: dict[Known, str] = {"up_to": "up to", "about": "about"}
BASIS = {"measured": "measured", "replay": "simulated", "bound": "upper bound", "model": "estimated"}
"""the basis of a saving in a word"""
BASIS_MEANING = {
    "measured": "measured in the capture",
    "replay": "from simulating the captured steps without the cause",
    "bound": "an upper bound: at most what the capture shows of the cause",
    "model": "from a model, not from this capture",
}


def skipped_words(skipped: Sequence[Outcome]) -> str:
    """`22 rules skipped (15 need a better capture, 7 have nothing to check in this one)`: only what is lacking can be recorded."""
    lacking = sum(o.capture is not None for o in skipped)
    total = f"{plural(len(skipped), 'rule')} skipped"
    if lacking == len(skipped):
        return total
    absent = len(skipped) - lacking
    need, have = "needs" if lacking == 1 else "need", "has" if absent == 1 else "have"
    return f"{total} ({lacking:,} {need} a better capture, {absent:,} {have} nothing to check in this one)"


def by_family(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Rules under the name of their family, both in the order of the codes; rules of others come last."""
    families: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (not _family(o.code), o.code, o.name, o.reason or "")):
        families.setdefault(_family(outcome.code) or "other rules", []).append(outcome)
    return families


def _family(code: str) -> str:
    return FAMILIES.get(code[2:3], "") if code.startswith("TD") else ""


def device_name(device: int) -> str:
    """`GPU 0`; device −1 is how a capture without GPU work is written."""
    return f"GPU {device}" if device >= 0 else "CPU"


class Names:
    """What the captures of a result are called: nothing for a single one, `rank 3` where ranks tell them apart, else
    the end of their path."""

    def __init__(self, result: Result) -> None:
        rows: list[OnDevice] = [
            *result.time_ledger,
            *result.memory_ledger,
            *result.memory_held,
            *result.timeline,
            *result.memory_timeline,
        ]
        captures = dict.fromkeys((r.input, r.rank) for r in sorted(rows, key=lambda r: (r.input, r.rank)))
        self.several = len(captures) > 1
        self.ranked = len({rank for _, rank in captures}) == len(captures)
        unranked = [] if self.ranked else [n for n, _ in captures if n < len(result.inputs)]
        tails = _tails({n: result.inputs[n].path for n in unranked})  # compares each with all others
        self._names = {
            n: f"rank {rank}" if self.ranked else tails.get(n, f"input {n}") for n, rank in captures
        }

    def capture(self, row: OnDevice) -> str:
        """How a row's capture is called; empty where there is one only."""
        return self.of(row.input) or (f"rank {row.rank}" if self.several else "")

    def of(self, number: int) -> str:
        """Of a position in `Result.inputs`; nothing for one that has no picture."""
        return self._names.get(number, "") if self.several else ""

    def place(self, row: OnDevice) -> str:
        """`rank 3 · GPU 0`, or `GPU 0` where there is one capture."""
        return " · ".join(p for p in (self.capture(row), device_name(row.device)) if p)


def _tails(paths: Mapping[int, str]) -> dict[int, str]:
    """As much of the end of each path as tells it from the others, without what all end in: of recordings the name of
    the folder. Short, and no two alike."""
    parts = {n: path.split("/") for n, path in paths.items()}
    while len({p[-1] for p in parts.values()}) == 1 and all(len(p) > 1 for p in parts.values()):
        parts = {n: p[:-1] for n, p in parts.items()}
    names = {}
    for n, own in parts.items():
        shorter = ["/".join(own[-count:]) for count in range(1, len(own) + 1)]
        others = ["/".join(["", *p]) for k, p in parts.items() if k != n]
        name = next((s for s in shorter if not any(o.endswith("/" + s) for o in others)), shorter[-1])
        names[n] = name
    return _shortened(names)


def _shortened(names: Mapping[int, str]) -> dict[int, str]:
    """Each in at most 26 characters, of a longer name both ends. Where these are alike, the part in which the names
    differ, else a number."""
    short = {n: name if len(name) <= 26 else f"{name[:9]}…{name[-16:]}" for n, name in names.items()}
    for alike in _alike(short):
        places = enumerate(zip(*(names[n] for n in alike), strict=False))
        differs = next((at for at, letters in places if len(set(letters)) > 1), 0)
        for n in alike:
            begin = max(0, min(differs - 14, len(names[n]) - 24))
            end = "…" if begin + 24 < len(names[n]) else ""
            short[n] = f"{'…' if begin else ''}{names[n][begin : begin + 24]}{end}"
    for alike in _alike(short):
        for n in alike:
            short[n] += f" #{n + 1}"
    return short


def _alike(names: Mapping[int, str]) -> list[list[int]]:
    """The keys of each name that several have."""
    by_name: dict[str, list[int]] = {}
    for n, name in names.items():
        by_name.setdefault(name, []).append(n)
    return [numbers for numbers in by_name.values() if len(numbers) > 1]


def main_rows(result: Result) -> list[TimeLedgerRow]:
    """One row for each device: its steady steps, else the longest phase it has."""
    best: dict[tuple[int, int], TimeLedgerRow] = {}
    for row in result.time_ledger:
        other = best.get((row.input, row.device))
        if other is None or (row.phase == "steady", row.window_ns) > (
            other.phase == "steady",
            other.window_ns,
        ):
            best[row.input, row.device] = row
    return list(best.values())


_NOT_COMPUTE = 0.05
"""share of the steady time from which copies or communication alone are named beside `GPU busy`, which counts them"""


def busy_parts(result: Result) -> str:
    """What the busy share consists of, `compute 74.6%, only copying 25.3%`, where work without compute takes 5% of the steady
    time; else empty."""
    rows = [row for row in result.time_ledger if row.phase == "steady"]
    window = max(1, sum(row.window_ns for row in rows))
    alone = {
        "only communicating": sum(row.exposed_comm_ns for row in rows) / window,
        "only copying": sum(row.exposed_copy_ns for row in rows) / window,
    }
    named = [f"{what} {share(part)}" for what, part in alone.items() if part >= _NOT_COMPUTE]
    compute = share(sum(row.compute_ns for row in rows) / window)
    return ", ".join([f"compute {compute}", *named]) if named else ""


def facts(result: Result) -> list[str]:
    """What was captured, in a few words each: device, ranks, steps, step time, busy share, peak."""
    summary = result.summary
    traces = 0 if Names(result).ranked else len({row.input for row in result.time_ledger})
    slowest = f" (slowest of {traces:,} captures)" if traces > 1 else ""
    devices = list(dict.fromkeys(i.device_name for i in result.inputs if i.device_name))
    ranks = len({i.rank for i in result.inputs})
    steps = max((i.steps for i in result.inputs), default=0)
    parts = [*devices[:2], plural(ranks, "rank") if ranks > 1 else "", plural(steps, "step") if steps else ""]
    if summary.step_us is not None and summary.plain_step_us is not None:
        plain, profiled = duration(summary.plain_step_us), duration(summary.step_us)
        parts.append(f"{plain}/step ({profiled} with profiler){slowest}")
    elif summary.step_us is not None:
        mean = f" (mean{kinds})" if (kinds := kinds_words(result)) else ""
        parts.append(f"{duration(summary.step_us)}/step{slowest}{mean}")
    if summary.gpu_busy_share is not None:
        split = f" ({of_what})" if (of_what := busy_parts(result)) else ""
        parts.append(f"GPU busy {share(summary.gpu_busy_share)}{split}")
    if summary.peak_allocated_bytes is not None:
        parts.append(f"peak {size(summary.peak_allocated_bytes)}")
    elif result.memory_held:
        parts.append(held_words(max(result.memory_held, key=lambda r: r.held_bytes)))
    return [f for f in parts if f]


PINNED = "pinned host memory"


def held_words(row: MemoryHeldRow) -> str:
    """`11.0 GiB allocated when the snapshot was written`"""
    return f"{size(row.held_bytes)} allocated when the snapshot was written"


def against_baseline(finding: Finding, result: Result) -> str:
    """`new`, `known` or `worse` where the gate compared with a baseline; else nothing."""
    gate = result.gate
    if gate is None or not gate.with_baseline:
        return ""
    if finding.id not in gate.known:
        return "new"
    return "worse" if finding.id in gate.failing else "known"


def where(location: Location) -> str:
    """`train.py:41` when the line is known, else the place in the capture; `torch/nn/functional.py:12` of an installed package."""
    if location.file:
        file = brief_path(location.file)
        return f"{file}:{location.line}" if location.line is not None else file
    return location.function or ""


def where_briefly(location: Location) -> str:
    """As `where`, of a long path only the end: `…/llama/modeling_llama.py:330`."""
    place = where(location)
    if len(place) <= 48 or "/" not in place:
        return place
    *_, parent, name = place.split("/")
    return f"…/{parent}/{name}" if len(parent) + len(name) <= 60 else f"…/{name}"


def in_which_capture(finding: Finding, names: Names) -> str:
    """As `where_in_capture`, with the capture's name where the rank does not tell it from the others."""
    capture = "" if names.ranked else names.of(finding.input)
    return ", ".join(p for p in (capture, where_in_capture(finding.location)) if p)


def where_in_capture(location: Location) -> str:
    """`rank 0, GPU 0, stream 7, step 3`: what is known of it."""
    parts = [
        ranks_text(location.about_ranks) if location.about_ranks else "",
        device_name(location.device) if location.device is not None else "",
        f"stream {location.stream}" if location.stream is not None else "",
        f"step {location.step}" if location.step is not None else "",
    ]
    return ", ".join(p for p in parts if p)


def saving_words(saving: Saving | None) -> str:
    """`saves up to 33% of step (178 → 120 ms, simulated)`, or `saves about 33% of step (20–45%, 178 → 120 ms, estimated)`; empty
    where a finding claims nothing."""
    words = claim_words(saving)
    return f"saves {words}" if words else ""


def claim_words(saving: Saving | None) -> str:
    """As `saving_words`, without "saves"."""
    costs = cost_words(saving)
    return f"{how_known(saving)} {costs}" if saving is not None and costs else ""


def how_known(figure: HowKnown) -> str:
    """`up to` before a bound, `about` before an estimate."""
    return HOW_KNOWN[figure.known]


def bytes_words(figure: HowKnown) -> Callable[[float], str]:
    """How the bytes of a saving are written. A bound is a sum of what was recorded: with the figures of an estimate it could
    come out larger than what it is a part of."""
    return estimate_size if figure.known == "about" else size


def interval(figure: HowKnown, value: float, words: Callable[[float], str]) -> str:
    """`20–45%`: where the real figure of an estimate lies in 80 % of cases; empty for a bound."""
    if figure.known != "about" or figure.low is None or figure.high is None:
        return ""
    return f"{words(value * figure.low).removesuffix('%')}–{words(value * figure.high)}"


def figure_words(
    figure: HowKnown, value: float, words: Callable[[float], str], *rest: str, of: str = ""
) -> str:
    """`12%`, or `12% (8.0–20%)`, with what it is a share of, and what else belongs into the brackets."""
    inside = ", ".join(p for p in (interval(figure, value, words), *rest) if p)
    return f"{words(value)}{of}{inside and f' ({inside})'}"


def peak_words(saving: Saving) -> str:
    """What its bytes are bytes of."""
    return "peak memory" if saving.peak == "allocated" else "reserved memory"


def cost_words(saving: Saving | None) -> str:
    """As `claim_words`, without how it is known."""
    if saving is None:
        return ""
    parts = []
    time, part = saving.time_us_per_step, saving.share_of_step
    basis = "" if saving.known == "about" and saving.basis == "bound" else BASIS[saving.basis]
    if part:
        change = step_change(time / part, time) if time else ""
        parts.append(figure_words(saving, part, estimate_share, change, basis, of=" of step"))
    elif time:
        parts.append(figure_words(saving, time, estimate_duration, basis, of="/step"))
    if saving.bytes:
        unless_said = "" if parts else basis
        if peak := saving.share_of_peak:
            also = bytes_words(saving)(saving.bytes)
            of = " of peak" if saving.peak == "allocated" else " of peak reserved memory"
            parts.append(figure_words(saving, peak, estimate_share, also, unless_said, of=of))
        else:
            parts.append(figure_words(saving, saving.bytes, bytes_words(saving), unless_said))
    return " and ".join(parts)


def by_hand(result: Result) -> Saving | None:
    """The saving with the largest share of a step that a finding claims, where no patch has it; else None."""
    savings = [f.saving for f in result.findings if f.saving and f.saving.share_of_step]
    most = max(savings, key=lambda s: s.share_of_step or 0.0, default=None)
    if most is None or (most.share_of_step or 0.0) <= 1.05 * (
        result.summary.saving_up_to.share_of_step or 0.0
    ):
        return None
    return most


def together(result: Result, between: str) -> str:
    """What all fixes may give together, after `between`; nothing where fewer than two findings claim something."""
    if sum(cost_words(f.saving) != "" for f in result.findings) < 2:
        return ""  # what its own line says
    upto = result.summary.saving_up_to
    most = by_hand(result)
    gain = []
    if upto.share_of_step and upto.time_us_per_step:
        gain.append(
            f"{estimate_share(upto.share_of_step)} of step (≈{estimate_duration(upto.time_us_per_step)})"
        )
    if upto.bytes:
        gain.append(f"{bytes_words(upto)(upto.bytes)} of memory")
    gains = f"combined: {how_known(upto)} {' and '.join(gain)}" if gain else ""
    if most is not None:  # what the findings say is more than the patches give
        hand = f"manual fix: {how_known(most)} {estimate_share(most.share_of_step or 0.0)} of step"
        gains = f"{hand}; patches {gains}" if gains else hand
    return f"{between}{gains}" if gains else ""


def amount(value: float | None, unit: Unit) -> str:
    """A measured figure with its unit; empty where it is not known."""
    if value is None:
        return ""
    return duration(value) if unit == "us" else size(value) if unit == "bytes" else share(value)


def short_kernel(name: str) -> str:
    """`void at::native::vectorized_elementwise_kernel<4, …>(int, …)` -> `at::native::vectorized_elementwise_kernel`."""
    head = name.removeprefix("void ").replace("(anonymous namespace)", "{anonymous}")
    end = min((i for i in (head.find("<"), head.find("(")) if i > 0), default=len(head))
    return head[:end].strip() or name


def budget_outcome(budget: Budget) -> str:
    """What makes the limit and, beside a baseline, whether the difference is more than noise."""
    if budget.status == "undecided" or budget.found is None:
        return f"is inconclusive: {budget.how}"
    change = budget.found - budget.baseline if budget.baseline is not None else 0.0
    noisy = budget.noise is not None and 0 < abs(change) <= budget.noise
    return "; ".join(p for p in (budget.how, "within noise" if noisy else "") if p)


def budget_words(budget: Budget) -> str:
    """Expected, found, all values, the baseline and the noise band, in one line."""
    if budget.status == "undecided" or budget.found is None:
        return f"{budget.name} {budget_outcome(budget)}"
    parts = [f"{budget.name} {amount(budget.found, budget.unit)}"]
    if budget.limit is not None:
        parts.append(f"expected at most {amount(budget.limit, budget.unit)}")
    if budget.baseline is not None:
        parts.append(f"baseline {amount(budget.baseline, budget.unit)}")
    if budget.noise:
        parts.append(f"noise ±{amount(budget.noise, budget.unit)}")
    if len(budget.values) > 1:
        parts.append(f"runs {', '.join(amount(v, budget.unit) for v in budget.values[:10])}")
    return "; ".join(p for p in (", ".join(parts), budget_outcome(budget)) if p)


def shares_of_path(path: CriticalPath) -> str:
    """Of a critical path: `59.1 ms: between kernels 73%, host 26%`."""
    parts = [f"{kind} {share(us / path.path_us)}" for kind, us in path.by_kind.items() if us]
    return f"{duration(path.path_us)}: {', '.join(parts)}" if parts else duration(path.path_us)
