"""The panel of a job of many ranks."""

from __future__ import annotations

import re

import msgspec

from trace_doctor.model import Result
from trace_doctor.reporters import render


def test_rows_of_known_hosts_are_named_by_what_tells_hosts_apart(job_result: Result) -> None:
    assert job_result.jobs is not None
    job = job_result.jobs[0]
    rows = [
        msgspec.structs.replace(row, host=f"gpu-cluster-node-{row.ranks[0] // 8:04}.<b>") for row in job.rows
    ]
    hosts = msgspec.structs.replace(job, rows=rows)
    page = render(msgspec.structs.replace(job_result, jobs=[hosts]), "html")
    panel = page.split('<section id="ranks"', 1)[1].split("</section>", 1)[0]
    beside = re.findall(
        r"<text[^>]*>([^<]*)</text>", panel.split('class="heat-names"', 1)[1].split("</svg>", 1)[0]
    )
    assert beside[0] == "rank 37" and "…0001.&lt;b&gt;" in beside and "<b>" not in panel
    assert "rank 37</a> on <bdi>gpu-cluster-node-0004.&lt;b&gt;</bdi>" in panel
    assert "rank 36 on gpu-cluster-node-0004" in panel
