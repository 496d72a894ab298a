"""The panel of a job of many ranks."""

from __future__ import annotations

import re

import msgspec

from trace_doctor.model import CollectiveRow, Result
from trace_doctor.reporters import render


def test_rows_of_known_hosts_are_named_by_what_tells_hosts_apart(job_result: Result) -> None:
    assert job_result.jobs is not None
    job = job_result.jobs[0]
    rows = [
        msgspec.structs.replace(row, host=f"gpu-cluster-node{row.ranks[0] // 8:04}<b>.example.org")
        for row in job.rows
    ]
    hosts = msgspec.structs.replace(job, rows=rows)
    page = render(msgspec.structs.replace(job_result, jobs=[hosts]), "html")
    panel = page.split('<section id="ranks"', 1)[1].split("</section>", 1)[0]
    beside = re.findall(
        r"<text[^>]*>([^<]*)</text>", panel.split('class="heat-names"', 1)[1].split("</svg>", 1)[0]
    )
    assert beside[0] == "rank 37" and "…-node0001&lt;b&gt;" in beside and "<b>" not in panel
    assert "rank 37</a> on <bdi>gpu-cluster-node0004&lt;b&gt;.example.org</bdi>" in panel
    assert "rank 36 on gpu-cluster-node0004" in panel


def _section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}"', 1)[1].split("</section>", 1)[0]


def test_of_more_devices_than_are_shown_those_that_delay_the_job_come_first(many_ranks: Result) -> None:
    """The timeline has them first already."""
    late = [lane for lane in many_ranks.timeline if lane.rank == 37]
    others = [lane for lane in many_ranks.timeline if lane.rank != 37]
    page = render(msgspec.structs.replace(many_ranks, timeline=late + others), "html")
    assert re.findall("rank \\d+ · GPU 0", _section(page, "time"))[0] == "rank 37 · GPU 0"
    verdicts = page.split("The most severe finding of each capture", 1)[1]
    assert "rank 37<" in verdicts.split("rank 3<", 1)[0]


def test_collectives_of_many_devices_are_added_up(many_ranks: Result) -> None:
    one = CollectiveRow(
        rank=0, device=0, name="ncclDevKernel_AllReduce", count=2, total_us=4_000.0, exposed_us=1_000.0
    )
    other = msgspec.structs.replace(one, name="ncclDevKernel_AllGather", total_us=9_000.0)
    rows = [msgspec.structs.replace(row, input=n, rank=n) for n in range(40) for row in (one, other)]
    panel = _section(render(msgspec.structs.replace(many_ranks, collectives=rows), "html"), "collectives")
    cells = [re.findall(">([^<>]+)<", row) for row in panel.split("<tbody>", 1)[1].split("</tr>")]
    assert cells[0][-6:] == ["ncclDevKernel_AllGather", "40", "80", "360.0", "40.0", "11.1%"]
    assert cells[1][-6:] == ["ncclDevKernel_AllReduce", "40", "80", "160.0", "40.0", "25.0%"]
