"""Captures in S3, over its protocol: the file system is the one that users install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from inputs.s3_server import S3, s3_server

from trace_doctor.api import analyze, analyze_shard, merge
from trace_doctor.config import defaults
from trace_doctor.inputs import remote

s3fs = pytest.importorskip("s3fs")
URL = "s3://bucket/job"


@pytest.fixture
def bucket(job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """With the job of eight ranks."""
    import fsspec.config

    with s3_server() as server:
        server.objects = {f"job/{path.name}": path.read_bytes() for path in job.iterdir()}
        monkeypatch.setattr(remote, "_HEAD", 2048)  # so that no object is whole before it is read
        monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": True, "endpoint_url": server.url})
        s3fs.S3FileSystem.clear_instance_cache()
        yield server
        s3fs.S3FileSystem.clear_instance_cache()


def test_shards_of_a_bucket_put_together_are_the_folder(bucket: S3, job: Path, tmp_path: Path) -> None:
    """Lists come in pages, and each task copies its own part alone."""
    config, store = defaults(select=["TD6"]), tmp_path / "store"
    for number in range(2):
        analyze_shard(URL, summaries=store, shard=f"{number}/2", config=config)
    assert sorted(bucket.whole) == sorted(bucket.objects)
    assert merge(store, urls=[URL], config=config) == analyze(
        job, config=config, summaries=tmp_path / "local"
    )


def test_objects_that_are_denied_or_change_cost_their_rank(bucket: S3) -> None:
    """A connection that ends in the middle does not: the rest is read with the next."""

    def key(rank: int) -> str:
        return f"job/rank{rank}.pt.trace.json.gz"

    bucket.denied, bucket.cut = {key(1)}, {key(2)}
    bucket.replaced = {key(3): bucket.objects[key(4)]}
    result = analyze(URL, select=["TD6"])
    why = {ignored.path: ignored.reason for ignored in result.ignored if ignored.unread}
    assert sorted(why) == [f"rank{rank}.pt.trace.json.gz" for rank in (1, 3)]
    assert "has changed" in why["rank3.pt.trace.json.gz"]
    assert result.incomplete and len(result.ranks.read) == 6
