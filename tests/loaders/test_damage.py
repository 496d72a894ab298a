"""Broken files as real profilers and killed jobs wrote them: what can be read is read, the rest is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trace_doctor.errors import DamagedCapture, NotACapture
from trace_doctor.loaders import kineto_window
from trace_doctor.loaders.kineto import load_trace
from trace_doctor.run import Cat, Run

HEAD = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['


def event(name: str, ts: float, dur: Any = 5, **fields: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 2,
        "ts": ts,
        "dur": dur,
        "args": {},
    } | fields


def sound(count: int, start: int = 0) -> list[str]:
    return [json.dumps(event(f"op{i}", 10 * i)) for i in range(start, start + count)]


def load(tmp_path: Path, content: str | bytes, name: str = "trace.json") -> Run:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load_trace(path, name)


def trace(*events: str, tail: str = "]}") -> str:
    return HEAD + ",\n".join(events) + tail


def names(run: Run) -> list[str]:
    return [run.text(i) for i in range(len(run))]


# -- text that is not JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-nan(ind)", "inf", "N/A", ""])
def test_bare_words_count_as_null(tmp_path: Path, word: str) -> None:
    kernel = event("k", 5, cat="kernel", args={"stream": 7, "device": 0, "x": "WORD"})
    odd = json.dumps(kernel).replace('"WORD"', word)
    run = load(tmp_path, trace(*sound(2), odd, *sound(2, 2)))
    assert names(run) == ["op0", "k", "op1", "op2", "op3"]
    assert run.args([1]) == [{"stream": 7, "device": 0, "x": None}]
    assert (run.stream[1], run.damage.repaired, run.damage.lost) == (7, 1, 0)
    assert run.warnings == ["1 event was readable only after a repair"]


def test_a_bare_word_in_the_metadata_costs_only_that_value(tmp_path: Path) -> None:
    head = HEAD.replace(
        '"deviceProperties": []',
        '"deviceProperties": [{"id": 0, "name": "V100", "clock": NaN}], "version": N/A',
    )
    run = load(tmp_path, head + ",".join(sound(2)) + "]}")
    assert len(run) == 2
    assert run.device_names == {0: "V100"}
    assert run.meta["deviceProperties"][0]["clock"] is None


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"C:\Users\new\train.py(3): f", r"C:\Users\new\train.py(3): f"),
        (r"re.match(\s+\d)", r"re.match(\s+\d)"),
        (r"D:\data\u12", r"D:\data\u12"),
        ("C:\\x\nnext line", "C:\\x\nnext line"),
        (r"say \"hi\" to C:\Windows", r'say "hi" to C:\Windows'),
    ],
)
def test_lone_backslashes_keep_their_text(tmp_path: Path, written: str, read: str) -> None:
    odd = json.dumps(event("NAME", 15)).replace("NAME", written)
    run = load(tmp_path, trace(*sound(2), odd, *sound(2, 2)))
    assert names(run) == ["op0", "op1", read, "op2", "op3"]
    assert run.damage.repaired == 1


@pytest.mark.parametrize(
    "written",
    [
        'f("x")',
        'f("a", "b")',
        'line one\nline two "quoted"',
        '<lambda>: {"k": 1}',
        '"',
    ],
)
def test_unescaped_quotes_and_newlines_in_a_name(tmp_path: Path, written: str) -> None:
    odd = json.dumps(event("NAME", 15)).replace("NAME", written)
    run = load(tmp_path, trace(*sound(2), odd, *sound(2, 2)))
    assert names(run) == ["op0", "op1", written, "op2", "op3"]
    assert (run.damage.repaired, run.damage.lost) == (1, 0)


def test_an_unreadable_event_costs_only_itself(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(300), '{"ph":"X","name":"a":"b","ts":,,}', *sound(300, 300)))
    assert names(run) == [f"op{i}" for i in range(600)]
    assert run.damage.lost == 1
    assert not run.damage.truncated
    assert run.warnings == ["1 event could not be read"]


def test_an_unreadable_last_event_does_not_hide_the_end(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(3), '{"ph":"X","name":"a":"b","ts":,,}', tail='], "traceName": "t"}'))
    assert len(run) == 3
    assert run.damage.lost == 1
    assert not run.damage.truncated


def test_control_bytes_invalid_utf8_and_a_byte_order_mark(tmp_path: Path) -> None:
    odd = json.dumps(event("NAME", 15)).encode().replace(b"NAME", b"caf\xe9 \x01 tri\xff")
    content = b"\xef\xbb\xbf" + trace(*sound(2)).encode().replace(b"]}", b",") + odd + b"]}"
    run = load(tmp_path, content)
    assert names(run) == ["op0", "op1", "caf\ufffd \x01 tri\ufffd"]
    names(run)[2].encode()  # can be written to any output


# -- files that end early ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 20, 60, 95])
def test_a_cut_file_gives_all_complete_events(tmp_path: Path, cut: int) -> None:
    whole = trace(*sound(400))
    run = load(tmp_path, whole[:-cut])
    complete = whole[:-cut].count("}}")
    assert names(run) == [f"op{i}" for i in range(min(complete, 400))]
    assert run.damage.truncated
    assert run.damage.lost == 0
    assert run.warnings == ["the file is cut off; all complete events were read"]


def test_a_cut_gzip_file_gives_what_was_compressed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [json.dumps(event(rng.bytes(40).hex(), 10 * i)) for i in range(5000)]
    packed = gzip.compress(trace(*texts).encode())
    run = load(tmp_path, packed[: len(packed) // 2], "trace.json.gz")
    assert 2000 < len(run) < 3000
    assert names(run) == [json.loads(t)["name"] for t in texts[: len(run)]]
    assert run.damage.truncated


def test_a_damaged_gzip_file_gives_what_precedes_the_damage(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [json.dumps(event(rng.bytes(40).hex(), 10 * i)) for i in range(20000)]
    packed = bytearray(gzip.compress(trace(*texts).encode()))
    half = len(packed) // 2
    packed[half : half + 64] = bytes(64)
    run = load(tmp_path, bytes(packed), "trace.json.gz")
    assert len(run) > 3000
    assert run.damage.truncated
    assert run.warnings[0].startswith("the gzip data is damaged")


def test_a_trailing_comma_is_no_damage(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(3), tail=",\n]}"))
    assert len(run) == 3
    assert run.warnings == []


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\0" * 4096, gzip.compress(b"", mtime=0)])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DamagedCapture, match=r"^trace\.json: .*empty"):
        load(tmp_path, content)


def test_a_trace_cut_before_its_first_event(tmp_path: Path) -> None:
    with pytest.raises(DamagedCapture, match="ends before its first event"):
        load(tmp_path, '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "na')


# -- odd layouts -------------------------------------------------------------------------------------------------


def test_legacy_autograd_list(tmp_path: Path) -> None:
    """`torch.autograd.profiler` without Kineto: a list, no categories, processes named CPU and CUDA functions."""
    run = load(
        tmp_path,
        json.dumps(
            [
                {
                    "name": "aten::mm",
                    "ph": "X",
                    "ts": 1.5,
                    "dur": 4,
                    "tid": 1,
                    "pid": "CPU functions",
                    "args": {},
                },
                {
                    "name": "aten::mm",
                    "ph": "s",
                    "ts": 1.5,
                    "tid": 1,
                    "pid": "CPU functions",
                    "id": 3,
                    "cat": "cpu_to_cuda",
                },
                {
                    "name": "aten::mm",
                    "ph": "f",
                    "ts": 3,
                    "tid": 1,
                    "pid": "CUDA functions",
                    "id": 3,
                    "cat": "cpu_to_cuda",
                },
                {
                    "name": "aten::mm",
                    "ph": "X",
                    "ts": 3,
                    "dur": 9,
                    "tid": 1,
                    "pid": "CUDA functions",
                    "args": {},
                },
            ]
        ),
    )
    assert [Cat(c) for c in run.cat] == [Cat.CPU_OP, Cat.KERNEL]
    assert run.device.tolist() == [-1, 1]
    assert run.ts.tolist() == [1500, 3000]


@pytest.mark.parametrize(
    ("ts", "base", "ns"),
    [
        ("1672914267773123", None, 1672914267773123000),
        ("1712345678901234.250", None, 1712345678901234250),
        ("1712345678901234.75", None, 1712345678901234750),
        ("5873915763.123", 1712275200000000000, 1712281073915763123),
        ('"1712345678.900"', None, 1712345678900),
        ("0.001", 1743465600000000000, 1743465600000000001),
        ("1e3", None, 1000000),
    ],
)
def test_times_of_all_versions_become_exact_nanoseconds(
    tmp_path: Path, ts: str, base: int | None, ns: int
) -> None:
    text = trace(json.dumps(event("op", 0)).replace('"ts": 0', f'"ts": {ts}'))
    if base is not None:
        text = text.replace('"traceEvents"', f'"baseTimeNanoseconds": {base}, "traceEvents"')
    assert load(tmp_path, text).ts.tolist() == [ns]


def test_the_base_time_counts_wherever_it_stands(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(1), tail='], "baseTimeNanoseconds": 7}'))
    assert run.ts.tolist() == [7]


@pytest.mark.parametrize("dur", ["-1", "-0.001", "null", '"?"', "1.8446744073709552e16", "NaN"])
def test_impossible_durations_are_clamped_and_counted(tmp_path: Path, dur: str) -> None:
    odd = json.dumps(event("odd", 15)).replace('"dur": 5', f'"dur": {dur}')
    run = load(tmp_path, trace(*sound(3), odd))
    assert run.dur.tolist() == [5000, 5000, 0, 5000]
    assert run.damage.clamped == 1
    assert "1 event has no possible duration; it counts as 0" in run.warnings


def test_a_missing_duration_is_clamped_and_counted(tmp_path: Path) -> None:
    odd = event("odd", 15)
    del odd["dur"]
    run = load(tmp_path, trace(*sound(3), json.dumps(odd)))
    assert run.dur.tolist() == [5000, 5000, 0, 5000]
    assert run.damage.clamped == 1


def test_events_without_any_time_do_not_stretch_the_trace(tmp_path: Path) -> None:
    late = [json.dumps(event(f"op{i}", 1.7e15 + i)) for i in range(3)]
    lost = json.dumps(event("lost", 0, 0))
    run = load(tmp_path, trace(lost, *late, lost))
    assert names(run) == ["op0", "op1", "op2"]
    assert run.damage.clamped == 2
    assert run.warnings == ["2 events were left out: neither start nor duration recorded"]


def test_an_event_at_zero_is_kept_where_the_trace_begins_there(tmp_path: Path) -> None:
    assert names(load(tmp_path, trace(json.dumps(event("first", 0, 0)), *sound(3)))) == [
        "op0",
        "first",
        "op1",
        "op2",
    ]


@pytest.mark.parametrize("start", ["", '"ts": null, ', '"ts": 1e300, ', '"ts": "soon", ', '"ts": [1], '])
def test_an_event_without_a_start_is_lost(tmp_path: Path, start: str) -> None:
    odd = json.dumps(event("odd", 15)).replace('"ts": 15, ', start)
    run = load(tmp_path, trace(*sound(2), odd))
    assert names(run) == ["op0", "op1"]
    assert run.damage.lost == 1


def test_overlapping_events_on_one_track_are_all_kept(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        trace(json.dumps(event("a", 0, 10)), json.dumps(event("b", 5, 10)), json.dumps(event("c", 5, 10))),
    )
    assert names(run) == ["a", "b", "c"]


def test_one_launch_of_many_kernels_and_missing_correlations(tmp_path: Path) -> None:
    kernels = [
        json.dumps(event("k", 20 + i, cat="kernel", args={"device": 0, "stream": 7, "correlation": 9}))
        for i in range(3)
    ]
    orphan = json.dumps(
        event("k", 30, cat="kernel", args={"device": 0, "stream": 7, "correlation": 2**64 - 1})
    )
    run = load(
        tmp_path,
        trace(
            json.dumps(event("cudaGraphLaunch", 1, cat="cuda_runtime", args={"correlation": 9})),
            *kernels,
            orphan,
        ),
    )
    assert run.correlation.tolist() == [9, 9, 9, 9, -1]


@pytest.mark.parametrize(
    ("cat", "name", "folded"),
    [
        ("Operator", "aten::mm", Cat.CPU_OP),
        ("Operator", "ProfilerStep#3", Cat.USER_ANNOTATION),
        ("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Cat.USER_ANNOTATION),
        ("Operator", "Optimizer.step#Adam.step", Cat.USER_ANNOTATION),
        ("Runtime", "cudaLaunchKernel", Cat.RUNTIME),
        ("Kernel", "sgemm", Cat.KERNEL),
        ("Memcpy", "Memcpy HtoD (Pageable -> Device)", Cat.MEMCPY),
        ("Memset", "Memset (Device)", Cat.MEMSET),
        ("Python function", "train.py(3): f", Cat.PYTHON),
        ("Trace", "PyTorch Profiler (0)", Cat.SPAN),
        ("cpu_op", "aten::mm", Cat.CPU_OP),
        ("user_annotation", "forward", Cat.USER_ANNOTATION),
        ("python_function", "train.py(3): f", Cat.PYTHON),
        ("cuda_runtime", "hipMemcpyWithStream", Cat.RUNTIME),
        ("cuda_driver", "cuLaunchKernel", Cat.DRIVER),
        ("overhead", "Activity Buffer Request", Cat.OVERHEAD),
        ("gpu_user_annotation", "forward", Cat.GPU_ANNOTATION),
        ("cuda_sync", "Stream Sync", Cat.SYNC),
        ("mtia_runtime", "runFunction", Cat.RUNTIME),
        ("mtia_ccp_events", "pe_exe", Cat.KERNEL),
        ("mtia_ccp_events", "dma_request", Cat.MEMCPY),
        ("xpu_runtime", "zeCommandQueueExecuteCommandLists", Cat.RUNTIME),
        ("xpu_driver", "zeEventCreate", Cat.DRIVER),
        ("hpu_op", "launch", Cat.RUNTIME),
        ("privateuse1_runtime", "LaunchKernel", Cat.RUNTIME),
        ("a_new_category", "x", Cat.OTHER),
    ],
)
def test_categories_of_all_versions_and_vendors(tmp_path: Path, cat: str, name: str, folded: Cat) -> None:
    run = load(tmp_path, trace(json.dumps(event(name, 1, cat=cat))))
    assert [Cat(c) for c in run.cat] == [folded]


def test_a_new_category_is_said(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(2), json.dumps(event("x", 1, cat="a_new_category"))))
    assert run.warnings == ["1 event is of an unknown category (a_new_category) and not analysed"]


@pytest.mark.parametrize(
    ("pid", "tid", "args", "place"),
    [
        (0, "stream 7", {"device": 0, "stream": 7}, (0, 7)),
        (3, 20, {"device": 1, "stream": 13}, (1, 13)),
        (1, "stream 9", {}, (1, 9)),
        ("1", "9", {}, (1, 9)),
        ("", "", {"device": "2", "stream": "5"}, (2, 5)),
        ("Spans", "x", {}, (0, -1)),
    ],
)
def test_device_and_stream_come_from_the_arguments_first(
    tmp_path: Path, pid: Any, tid: Any, args: dict[str, Any], place: tuple[int, int]
) -> None:
    run = load(tmp_path, trace(json.dumps(event("k", 1, cat="kernel", pid=pid, tid=tid, args=args))))
    assert (run.device[0], run.stream[0]) == place


def test_host_rows_have_no_device(tmp_path: Path) -> None:
    """Triton writes a stream pointer into its operator's arguments; ROCm writes streams as text."""
    run = load(
        tmp_path,
        trace(
            json.dumps(event("triton_poi_fused_0", 1, args={"stream": 615352160, "External id": 4})),
            json.dumps(
                event("hipMemcpyWithStream", 2, cat="cuda_runtime", args={"stream": "0x0", "correlation": 3})
            ),
        ),
    )
    assert run.device.tolist() == [-1, -1]
    assert run.stream.tolist() == [-1, -1]
    assert run.external_id.tolist() == [4, -1]
    assert run.correlation.tolist() == [-1, 3]


def test_both_spellings_of_external_id(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        trace(
            json.dumps(event("a", 1, args={"external id": 4})),
            json.dumps(event("b", 2, args={"External id": 5})),
        ),
    )
    assert run.external_id.tolist() == [4, 5]


def test_one_track_written_as_number_and_as_text(tmp_path: Path) -> None:
    label = json.dumps(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "ts": 0, "args": {"name": "thread 2 (python)"}}
    )
    run = load(
        tmp_path, trace(label, json.dumps(event("a", 1, tid=2)), json.dumps(event("b", 2, tid="2", pid="1")))
    )
    assert run.thread.tolist() == [0, 0]
    assert [(t.pid, t.tid, t.label) for t in run.threads] == [("1", "2", "thread 2 (python)")]


def test_memory_marks_of_old_and_new_versions(tmp_path: Path) -> None:
    def mark(ts: int, **args: Any) -> str:
        return json.dumps(
            {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": ts, "s": "t", "args": args}
        )

    run = load(
        tmp_path,
        trace(
            *sound(1),
            mark(9, **{"Device Type": 0, "Device Id": -1, "Bytes": -64}),
            mark(
                3,
                **{
                    "Device Type": 1,
                    "Device Id": 2,
                    "Bytes": 512,
                    "Addr": 2**63 + 8,
                    "Total Allocated": 600,
                    "Total Reserved": 2048,
                },
            ),
        ),
    )
    memory = run.memory
    assert len(run) == 1
    assert run.recorded.memory is True
    assert memory.ts.tolist() == [3000, 9000]
    assert memory.device.tolist() == [2, -1]
    assert memory.bytes.tolist() == [512, -64]
    assert memory.addr.tolist() == [8 - 2**63, -1]
    assert memory.total_allocated.tolist() == [600, -1]
    assert memory.total_reserved.tolist() == [2048, -1]


def test_instants_do_not_stretch_the_trace(tmp_path: Path) -> None:
    end = json.dumps({"ph": "i", "name": "Record Window End", "pid": 1, "tid": 2, "ts": 9e15, "s": "g"})
    assert load(tmp_path, trace(*sound(2), end)).end.max() == 15000


def test_several_event_lists_and_repeated_fields_are_merged(tmp_path: Path) -> None:
    text = trace(
        *sound(2), tail='], "distributedInfo": {"rank": 3}, "traceEvents": [' + ",".join(sound(2, 2))
    )
    run = load(tmp_path, text + '], "distributedInfo": {"world_size": 8}, "schemaVersion": 1}')
    assert names(run) == ["op0", "op1", "op2", "op3"]
    assert run.meta["distributedInfo"] == {"rank": 3, "world_size": 8}
    assert run.warnings == ["2 event lists were merged"]


def test_empty_objects_and_strays_between_events(tmp_path: Path) -> None:
    run = load(tmp_path, trace("{}", *sound(2), "null", "17", *sound(2, 2), "{}"))
    assert names(run) == ["op0", "op1", "op2", "op3"]


def test_a_duplicated_key_inside_an_event(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(1)).replace('"ts": 0', '"ts": 4, "ts": 6'))
    assert run.ts.tolist() == [6000]


def test_arguments_that_look_like_events(tmp_path: Path) -> None:
    nested = {
        "list": [{"name": "x"}, {"ph": "X", "name": "y", "ts": 1, "dur": 1}, {"name": 'z"}, {"ph": "X'}]
    }
    texts = [json.dumps(event(f"op{i}", 10 * i, args=nested)) for i in range(300)]
    run = load(tmp_path, trace(*texts))
    assert names(run) == [f"op{i}" for i in range(300)]
    assert run.args([7]) == [nested]
    assert run.damage.lost == run.damage.repaired == 0


def test_a_trace_with_metadata_only(tmp_path: Path) -> None:
    run = load(tmp_path, trace())
    assert len(run) == len(run.memory) == 0
    assert run.end.tolist() == []
    assert run.args([]) == []


def test_metadata_behind_the_events(tmp_path: Path) -> None:
    properties = [{"name": f"gpu {i}", "id": i} for i in range(3)]
    run = load(
        tmp_path,
        trace(*sound(3), tail=f'], "deviceProperties": {json.dumps(properties)}, "x": {{"name": [1]}}}}'),
    )
    assert len(run) == 3
    assert run.device_names == {0: "gpu 0", 1: "gpu 1", 2: "gpu 2"}
    assert not run.damage.truncated


def test_names_of_hosts_and_users_are_dropped(tmp_path: Path) -> None:
    text = trace(*sound(1)).replace(
        '"traceEvents"', '"host_name": "secret", "username": "me", "trace_id": "7", "traceEvents"'
    )
    run = load(tmp_path, text)
    assert "secret" not in str(run.meta)
    assert "me" not in run.meta.values()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            '[{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1}}]',
            "Horovod",
        ),
        (
            '{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch]"}]}',
            "execution trace",
        ),
        ("[[1, 2], [[0, 1], [2, 3]]]", "export_memory_timeline"),
        ('{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f", "ts": 1, "dur": 1}]}', "VizTracer"),
        ('{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": 1}]}', "another program"),
        ('{"a": 1}', "JSON without trace events"),
        ("[]", "JSON without trace events"),
        ("loss 0.3\n", "neither JSON nor a pickle"),
    ],
)
def test_other_files_are_named_and_refused(tmp_path: Path, content: str, what: str) -> None:
    with pytest.raises(NotACapture) as refusal:
        load(tmp_path, content)
    assert what in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_arguments_nested_too_deeply_to_read(tmp_path: Path) -> None:
    deep = json.dumps(event("deep", 15)).replace(
        '"args": {}', '"args": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    )
    run = load(tmp_path, trace(*sound(2), deep, *sound(2, 2)))
    assert [n for n in names(run) if n != "deep"] == ["op0", "op1", "op2", "op3"]


def test_a_list_that_shows_no_borders_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabytes long text without a second event: given up at the limit, not collected without end."""
    monkeypatch.setattr(kineto_window, "LONGEST", 1 << 21)
    endless = '{"ph": "X", "name": "' + "x" * (1 << 23)
    run = load(tmp_path, trace(endless, *sound(2)))
    assert run.damage.lost >= 1
