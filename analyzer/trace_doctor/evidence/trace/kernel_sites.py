"""Which lines of the user's code a kernel comes from, where more than the launch around it tells: compiled kernels by what Inductor
said of them, nodes of CUDA graphs by what was recorded when the graph was captured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec.structs import replace

from trace_doctor.arrays import I64
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.graph_replays import GRAPH_ID
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.loaders.graph_annotations import INLINE, label_in
from trace_doctor.loaders.provenance import KernelSource, user_frames
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.run import Cat, GraphNode, Run
from trace_doctor.user_frames import Frame, called, shown_path

_REGION = re.compile(r"Torch-Compiled Region: (\S+/\d{1,9})")
_PROBED = 16
"""compiled kernels whose arguments are looked at for a stack (torch 2.14)"""
_LOOKED_AT = 32
"""of the longest kernels of one name, whose arguments are decoded"""
_MOST_NAMED = 3
"""places that a text names"""


class KernelSites(Evidence, frozen=True):
    """Raises NotCaptured where neither Python stacks nor any of these files is there."""

    run: Run
    nesting: Nesting
    launches: Launches | None
    sites: CallSites | None
    sources: tuple[KernelSource, ...]
    beyond_launches: bool
    """whether anything but Python stacks around launches tells where kernels come from"""
    in_arguments: bool
    """whether arguments of kernels have to be read again for that"""
    folder: Path | None

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, sites = facts.run, facts.get(CallSites)
        sources = _sources(run, facts.capture.torch_logs)
        in_arguments = bool(run.graph_nodes or run.meta.get(INLINE)) or _has_stacks(run)
        beyond = bool(sources) or in_arguments
        if sites is None and not beyond:
            raise NotCaptured(
                "nothing tells which lines kernels come from",
                "profile(..., with_stack=True); for compiled kernels INDUCTOR_PROVENANCE=1 TORCH_TRACE=folder next to the trace",
            )
        return cls(
            run,
            facts[Nesting],
            facts.get(Launches),
            sites,
            sources,
            beyond,
            in_arguments,
            facts.options.source,
        )

    def alternatives(self, row: int) -> tuple[tuple[Site, ...], ...]:
        """Of a GPU row: each set of lines that it may come from; several where a name stands for several kernels. Without an exact
        line the function around its launch; empty where nothing is known."""
        arguments, calls = self._arguments(row), self._calls(row)
        node = self._node(arguments)
        if node.stack:
            return ((self._site(node.stack[0]),),)
        if stack := user_frames(arguments.get("stack")):
            return ((self._site(stack[-1]),),)
        if kernels := self._sources_of(row, calls):
            return tuple(dict.fromkeys(tuple(map(self._site, k.lines)) for k in kernels))
        site = self.sites.site(row) if self.sites is not None else None
        return ((site,),) if site is not None else ()

    def site(self, row: int) -> Site | None:
        """Where a GPU row comes from, if that is one function: the first of its lines there; without a line where a name stands for
        several kernels."""
        alternatives = self.alternatives(row)
        every = sorted((site for lines in alternatives for site in lines), key=lambda s: s.line)
        if len({(s.file, s.function) for s in every}) != 1:
            return None
        return every[0] if len(alternatives) == 1 else replace(every[0], exact=False)

    def label(self, row: int) -> str:
        """How the script named the work when the CUDA graph was captured; "" where it did not."""
        arguments = self._arguments(row)
        inline = label_in(arguments) if self.run.meta.get(INLINE) else ""
        return inline or self._node(arguments).label

    def text(self, row: int) -> str:
        """Both, for people: `forward() (model.py:7, 8)`, `one of …` where a name stands for several kernels; "" for neither."""
        places = [", ".join(_by_function(lines)) for lines in self.alternatives(row)]
        more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
        where = f"{'one of ' * (len(places) > 1)}{'; '.join(places[:_MOST_NAMED])}{more}"
        return " · ".join(filter(None, (self.label(row), where)))

    def main(self, rows: I64) -> tuple[str, float]:
        """`text` of most of these kernels, as far as their longest ones tell, and its share of their time; "" where only Python stacks tell."""
        run, ns = self.run, Counter[str]()
        longest = rows[np.argsort(-run.dur[rows], kind="stable")][
            : _LOOKED_AT * self.beyond_launches
        ].tolist()
        if self.in_arguments:
            run.args(longest)  # at once, in the order of the file: they are remembered
        for row in longest:
            ns[self.text(row)] += max(int(run.dur[row]), 1)
        known = ((text, time) for text, time in ns.most_common() if text)
        text, time = next(known, ("", 0))
        return text, min(time / max(int(run.dur[rows].sum()), 1), 1.0)

    def _site(self, frame: Frame) -> Site:
        return Site(shown_path(frame.file, self.folder), frame.line, frame.function, exact=True)

    def _arguments(self, row: int) -> dict[str, Any]:
        return self.run.args([row])[0] if self.in_arguments else {}

    def _node(self, arguments: dict[str, Any]) -> GraphNode:
        graph, node = count(arguments, GRAPH_ID) or 0, count(arguments, "graph node id") or 0
        return self.run.graph_nodes.get(graph << 32 | node & 0xFFFFFFFF, _UNKNOWN) if graph else _UNKNOWN

    def _calls(self, row: int) -> list[int]:
        """What is open on the host when a row is launched, innermost first."""
        launch = self.launches.launch_of(row) if self.launches is not None else -1
        return self.nesting.ancestors(launch) if launch >= 0 else []

    def _sources_of(self, row: int, calls: Sequence[int]) -> list[KernelSource]:
        """Those of its name, else of the nearest operator around its launch that has one (`extern_kernels.mm`); of the compiled
        function that is open then, where that is known."""
        names = [self.run.text(r) for r in (row, *calls)]
        kernels = next((known for name in names if (known := self._by_name.get(name))), [])
        regions = {match.group(1) for name in names if (match := _REGION.fullmatch(name))}
        return [k for k in kernels if k.compile_id in regions] or kernels

    @cached_property
    def _by_name(self) -> dict[str, list[KernelSource]]:
        by_name: dict[str, list[KernelSource]] = {}
        for kernel in self.sources:
            by_name.setdefault(kernel.kernel, []).append(kernel)
        return by_name


_UNKNOWN = GraphNode()


def _sources(run: Run, logs: Sequence[CompileLog]) -> tuple[KernelSource, ...]:
    """Of the logs of the traced process, else of all of its rank and of those that name none."""
    fitting = [log for log in logs if log.kernels and log.rank in (None, run.rank)]
    traced = {thread.pid for thread in run.threads}
    own = [log for log in fitting if log.pid is not None and str(log.pid) in traced]
    return tuple(kernel for log in own or fitting for kernel in log.kernels)


def _has_stacks(run: Run) -> bool:
    compiled = run.named(lambda name: name.startswith("triton_"), Cat.KERNEL)[:_PROBED]
    return any(isinstance(arguments.get("stack"), str) for arguments in run.args(compiled.tolist()))


def _by_function(lines: Sequence[Site]) -> list[str]:
    """`forward() (model.py:7, 8)` for each function; without a line where none is exact."""
    functions: dict[tuple[str, str], list[int]] = {}
    for site in lines:
        functions.setdefault((site.function, site.file), []).extend([site.line] * site.exact)
    return [
        f"{called(function)} ({file}{':' * bool(numbers)}{', '.join(map(str, sorted(set(numbers))))})"
        for (function, file), numbers in functions.items()
    ]
