"""All kernels and operators of a capture, each with what launched most of it."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.kernels import launching_operators
from trace_doctor.evidence.compute.operators import Operators
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.names.kernel_names import kernel_class, on_tensor_cores
from trace_doctor.evidence.trace.call_sites import CallSites
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.model.work_detail import KernelDetail, OperatorDetail, Origin, WorkDetail
from trace_doctor.run import Run

_DTYPES = {
    "float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8", "long int": "int64", "int": "int32", "short int": "int16", "signed char": "int8",
    "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip
_LEAST = 0.05
"""of the time: an origin of less says nothing of where it comes from"""
_ASKED = 4
"""Calls of an operator whose inputs are decoded for one kernel"""


def work_detail_of(facts: Facts, most: int) -> WorkDetail:
    """At most `most` kernels and as many operators; empty without a trace."""
    overview, operators = facts.get(Overview), facts.get(Operators)
    return WorkDetail(
        kernels=_kernels(facts, overview, most) if overview else [],
        of_kernels=overview.kernel_names if overview else 0,
        operators=_operators(facts, operators, most) if operators else [],
        of_operators=len(operators.names) if operators else 0,
    )


def _kernels(facts: Facts, overview: Overview, most: int) -> list[KernelDetail]:
    run, launches, gpu = facts.run, facts[Launches], facts.run.gpu
    operator = launching_operators(run, facts[Nesting], launches, gpu)
    launch = launches.launch.astype(np.int64)
    sites, inputs, kernel_sites = facts.get(CallSites), facts.get(OperatorInputs), facts.get(KernelSites)
    rows = overview.kernels(most)
    ids = {name: n for n, name in enumerate(run.names)}
    # in the window alone, as the sums are
    inside = (run.end[gpu] > overview.window[0]) & (run.ts[gpu] < overview.window[1])
    of_kernel: dict[tuple[int, int], I64] = _places(run, gpu, inside)
    details = []
    for row in rows:
        at = of_kernel.get((row.device, ids[row.name]), gpu[:0])
        ns = run.dur[gpu[at]]
        launcher, with_operator = _most(run.name_ids_at(operator[at]), ns)
        chosen = operator[at][run.name_ids_at(operator[at]) == launcher] if launcher >= 0 else gpu[:0]
        details.append(
            KernelDetail(
                device=row.device,
                name=row.name,
                kind=row.kind,
                count=row.count,
                total_us=row.total_us,
                share=row.share if row.kind == "compute" else 0.0,
                tensor_cores=on_tensor_cores(row.name) if row.kind == "compute" else None,
                dtype=_dtype(row.name, inputs, chosen) if row.kind == "compute" else "",
                operator=Origin(name=run.names[launcher], share=with_operator) if launcher >= 0 else None,
                site=_recorded_site(kernel_sites, gpu[at]) or _site(run, sites, launch[at], ns),
            )
        )
    return details


def _places(run: Run, gpu: I64, inside: Bool) -> dict[tuple[int, int], I64]:
    """Places in `gpu` by (device, id of the name)."""
    at = np.flatnonzero(inside)
    key = run.device[gpu[at]].astype(np.int64) * (len(run.names) + 1) + run.name[gpu[at]]
    order = np.argsort(key, kind="stable")
    at, key = at[order], key[order]
    parts = np.split(at, np.flatnonzero(np.diff(key)) + 1)
    return {(int(run.device[gpu[p[0]]]), int(run.name[gpu[p[0]]])): p for p in parts if len(p)}


def _most(ids: I64, ns: I64) -> tuple[int, float]:
    """The id with the largest sum, and its share of all; -1 where it is not known (ids of -1)."""
    there, at = np.unique(ids, return_inverse=True)
    if not len(there) or there[-1] < 0:
        return -1, 0.0
    sums = np.bincount(at, weights=np.maximum(ns, 1))
    best = int(np.where(there >= 0, sums, -1).argmax())
    part = float(sums[best] / sums.sum())
    return (int(there[best]), part) if part >= _LEAST else (-1, 0.0)


def _dtype(name: str, inputs: OperatorInputs | None, operators: I64) -> str:
    """From the name of the kernel; else of the first tensor of the operators that launched it, where they agree."""
    if precision := kernel_class(name).precision:
        return precision
    if inputs is None or not len(operators):
        return ""
    some = operators[np.linspace(0, len(operators) - 1, min(_ASKED, len(operators))).astype(np.int64)]
    types = {next((kind for _, kind in one.tensors()), "") for one in inputs.of(some.tolist())}
    return _DTYPES.get(types.pop(), "") if len(types) == 1 else ""


def _recorded_site(sites: KernelSites | None, kernels: I64) -> Origin | None:
    """Where most of these kernels come from, by what is known beyond their launches."""
    name, part = sites.main(kernels) if sites is not None else ("", 0.0)
    return Origin(name=name, share=part) if name else None


def _site(run: Run, sites: CallSites | None, host: I64, ns: I64) -> Origin | None:
    """The function of the script around most of these host events; None without stacks, or where no event lies in one."""
    if sites is None or sites.old_stacks:
        return None
    row = sites.frames(host)
    most, part = _most(run.name_ids_at(row), ns)
    site = sites.site(int(row[run.name_ids_at(row) == most][0])) if most >= 0 else None
    return Origin(name=str(site), share=part) if site is not None else None


def _operators(facts: Facts, operators: Operators, most: int) -> list[OperatorDetail]:
    run, sites = facts.run, facts.get(CallSites)
    details = []
    for n, row in enumerate(operators.rows(most)):
        rows, own = operators.calls(n)
        details.append(
            OperatorDetail(
                name=row.name,
                kind=row.kind,
                count=row.count,
                self_us=row.self_us,
                share=row.share,
                step_us=row.step_us,
                site=_site(run, sites, rows, own),
            )
        )
    return details
