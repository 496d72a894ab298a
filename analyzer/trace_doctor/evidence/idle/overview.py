"""What a report draws of the time: lanes of the devices, the longest kernels, collectives, busy and idle shares."""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from trace_doctor.arrays import I64, U8
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.cpu_timeline import CPU
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.streams import MAX_IN_STRIP, strips
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import intersect, pairs, subtract, total, union
from trace_doctor.evidence.names.event_names import is_collective, is_host_collective
from trace_doctor.evidence.trace.gpu_timeline import COMM, GpuTimeline
from trace_doctor.evidence.trace.per_step import deviation_us, device_steps, in_steps, mean_us
from trace_doctor.evidence.trace.segments import KINDS, MAX_SEGMENTS, WORK, joined, reduced
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import CollectiveRow, Gap, KernelRow, Lane, Segment
from trace_doctor.run import Cat, Run

TOP_KERNELS = 20
TOP_GAPS = 5


class Overview(Evidence, frozen=True):
    """Raises NotCaptured when there is no time ledger."""

    window: tuple[int, int]
    _facts: Facts
    _parts: dict[int, tuple[I64, I64, I64]]

    @classmethod
    def build(cls, facts: Facts) -> Self:
        return cls(facts[Steps].window, facts, exposed(facts))

    def lanes(self, most: int = MAX_SEGMENTS, most_in_strip: int = MAX_IN_STRIP) -> list[Lane]:
        """One lane per device over the window, at most `most` segments each, with a strip for each of its streams where
        there are several. Times are us from the window's start."""
        return [self._lane(device, most, most_in_strip) for device in self._parts]

    def kernels(self, most: int = TOP_KERNELS) -> list[KernelRow]:
        """The kernels that take most time in the window, over all devices."""
        return [self._kernel(*one) for one in self._by_time[:most]]

    @property
    def kernel_names(self) -> int:
        """How many rows `kernels` has without a limit."""
        return len(self._by_time)

    @cached_property
    def _by_time(self) -> list[tuple[int, str, int, int, I64]]:
        """(total ns, name, device, kind, spans) of all kernels, longest first."""
        timeline = self._facts.get(GpuTimeline)
        if timeline is None:
            return []
        kernels = [
            (total(spans), name, device, kind, spans)
            for device in timeline.devices
            for name, kind, spans in _by_name(self._facts.run, timeline, device)
        ]
        return sorted(kernels, key=lambda k: (-k[0], k[1], k[2]))

    def _kernel(self, ns: int, name: str, device: int, kind: int, spans: I64) -> KernelRow:
        compute = total(self._parts[device][0])
        by_step = in_steps(spans, device_steps(self._facts))
        return KernelRow(
            rank=self._facts.capture.rank,
            device=device,
            name=name,
            kind=WORK[kind],
            count=len(spans),
            total_us=ns / 1e3,
            mean_us=ns / 1e3 / len(spans),
            share=ns / compute if compute else 0.0,
            step_us=mean_us(by_step),
            step_sd_us=deviation_us(by_step),
        )

    def collectives(self) -> list[CollectiveRow]:
        """Collectives by name, longest first, with the time in which no compute ran beside them."""
        timeline = self._facts.get(GpuTimeline)
        collective_rows = []
        for device, (compute, comm, _) in self._parts.items():
            groups = (
                self._host_collectives()
                if timeline is None
                else _grouped(self._facts.run, timeline.rows(device, COMM), timeline.window)
            )
            for name, spans in groups:
                alone = intersect(union(spans), comm) if timeline is None else subtract(union(spans), compute)
                collective_rows.append(
                    CollectiveRow(
                        rank=self._facts.capture.rank,
                        device=device,
                        name=name,
                        count=len(spans),
                        total_us=float((spans[:, 1] - spans[:, 0]).sum()) / 1000.0,
                        exposed_us=total(alone) / 1000.0,
                    )
                )
        return sorted(collective_rows, key=lambda c: (-c.total_us, c.name, c.device))

    def _host_collectives(self) -> list[tuple[str, I64]]:
        """Those on threads of their own, and the calls of them by the threads of the loop: the two that the ledger adds up."""
        run, threads = self._facts.run, self._facts[Threads]
        calls = run.named(is_collective, Cat.CPU_OP, Cat.USER_ANNOTATION)
        calls = calls[np.isin(run.thread[calls], [threads.main, *threads.autograd])]
        rows = np.union1d(calls, run.named(is_host_collective, Cat.CPU_OP, Cat.USER_ANNOTATION))
        return _grouped(run, rows, self.window)

    def _lane(self, device: int, most: int, most_in_strip: int) -> Lane:
        pieces, kind = self._tiles(device)
        whole = len(pieces)
        gaps = longest_gaps(pieces, kind, self.window[0])
        pieces, kind = reduced(pieces, kind, self.window, most)
        start = self.window[0]
        timeline = self._facts.get(GpuTimeline)
        streams, there = strips(timeline, device, most_in_strip) if timeline is not None else ([], 0)
        return Lane(
            rank=self._facts.capture.rank,
            device=device,
            label=self._label(device),
            dur_us=(self.window[1] - start) / 1000.0,
            segments=[
                Segment((a - start) / 1000.0, (b - a) / 1000.0, KINDS[k])
                for (a, b), k in zip(pieces.tolist(), kind.tolist(), strict=True)
            ],
            shown=len(pieces),
            of=whole,
            gaps=gaps,
            streams=streams,
            of_streams=there,
        )

    def _tiles(self, device: int) -> tuple[I64, U8]:
        """The window as pieces (n, 2) of one kind each (index in KINDS), neighbours of one kind joined."""
        idle = self._facts[IdleLedger]
        on_device = idle.device == device
        pieces = np.concatenate([*self._parts[device], pairs(idle.start[on_device], idle.end[on_device])])
        kind = np.concatenate(
            [np.repeat([0, 1, 2], [len(p) for p in self._parts[device]]), idle.cause[on_device] + len(WORK)]
        ).astype(np.uint8)
        order = np.argsort(pieces[:, 0], kind="stable")
        return joined(pieces[order], kind[order])

    def _label(self, device: int) -> str:
        if device == CPU:
            return "CPU (main thread)"
        name = self._facts.run.device_names.get(device)
        return f"GPU {device} ({name})" if name else f"GPU {device}"


def longest_gaps(pieces: I64, kind: U8, origin: int) -> list[Gap]:
    """The TOP_GAPS longest runs of idle tiles, each with the cause that owns most of it."""
    idle = kind >= len(WORK)
    if not idle.any():
        return []
    run = np.cumsum(np.concatenate([[True], ~idle[1:] | ~idle[:-1]])) - 1
    sums = np.zeros((int(run[-1]) + 1, len(KINDS)), dtype=np.int64)
    np.add.at(sums, (run[idle], kind[idle]), (pieces[:, 1] - pieces[:, 0])[idle])
    start = pieces[np.searchsorted(run, np.arange(len(sums))), 0]
    length = sums.sum(axis=1)
    return [
        Gap(
            float(start[n] - origin) / 1000.0,
            float(length[n]) / 1000.0,
            KINDS[int(sums[n].argmax())],
            float(sums[n].max() / length[n]),
        )
        for n in np.argsort(-length, kind="stable")[:TOP_GAPS].tolist()
        if length[n]
    ]


def _by_name(run: Run, timeline: GpuTimeline, device: int) -> list[tuple[str, int, I64]]:
    """(name, kind, spans in the window) of the GPU work of a device."""
    return [
        (name, kind, spans)
        for kind in range(len(WORK))
        for name, spans in _grouped(run, timeline.rows(device, kind), timeline.window)
    ]


def _grouped(run: Run, rows: I64, window: tuple[int, int]) -> list[tuple[str, I64]]:
    """The spans of the rows within the window, by name."""
    spans = np.clip(pairs(run.ts[rows], run.end[rows]), *window)
    real = spans[:, 1] > spans[:, 0]
    spans, names = spans[real], run.name[rows][real]
    order = np.argsort(names, kind="stable")
    spans, names = spans[order], names[order]
    borders = np.flatnonzero(np.diff(names)) + 1
    return [
        (run.names[n[0]], s)
        for n, s in zip(np.split(names, borders), np.split(spans, borders), strict=True)
        if len(n)
    ]
