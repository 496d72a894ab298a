"""Broken files as real profilers and killed jobs wrote them: what can be read is read, the rest is counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from handwritten import HEAD, event, load, names, sound, trace

from trace_doctor.errors import DamagedCapture, NotACapture
from trace_doctor.loaders.kineto import document, window

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
    assert run.device_properties == [{"id": 0, "name": "V100"}]


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


@pytest.mark.parametrize(
    ("between", "lost"),
    [("", 0), (";", 0), ("\0" * 99, 0), (', "ph', 0), ("],", 0), (',{"ph": "X", "cat": "cpu_op", ', 1),
     (',{"ph": "X", "cat": "cpu_op", "name": "half", "args": {"x": [', 1), (',{"args": {"x": 1}},', 1)],
    ids=["nothing", "another sign", "zeros", "a piece", "a bracket", "a beginning", "a nested one", "an end"],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True], ids=["phase first", "name first"])
def test_damage_between_events_hides_neither(tmp_path: Path, between: str, lost: int, named: bool) -> None:
    """What one event lost at its end costs only itself, though no border leads to the next one."""
    texts = (
        sound(40)
        if not named
        else [json.dumps({"name": f"op{i}"} | event("", 10 * i) | {"name": f"op{i}"}) for i in range(40)]
    )
    run = load(tmp_path, trace(*texts[:20]).removesuffix("]}") + between + ",\n".join(texts[20:]) + "]}")
    assert names(run) == [f"op{i}" for i in range(40)]
    assert (run.damage.lost, run.damage.truncated) == (lost, False)


@pytest.mark.parametrize("odd", ['"ph{"":', "\0\0\0\0\0", '"pi":', '"p'])
def test_an_event_without_its_phase_is_counted(tmp_path: Path, odd: str) -> None:
    damaged = json.dumps(event("op1", 10)).replace('"ph":', odd)
    assert damaged != json.dumps(event("op1", 10))
    run = load(tmp_path, trace(*sound(1), damaged, *sound(4, 2)))
    assert names(run) == ["op0", "op2", "op3", "op4", "op5"]
    assert run.warnings == ["1 event could not be read"]


@pytest.mark.parametrize("between", ["", "\n", "\0"])
def test_files_one_behind_the_other(tmp_path: Path, between: str) -> None:
    """A handler that appends, a disk block that was never written: list or document first, nothing is lost."""
    document, bare = trace(*sound(3)), "[" + ",".join(sound(3, 3)) + "]"
    for whole in (document + between + bare, bare + between + document):
        run = load(tmp_path, whole)
        assert names(run) == [f"op{i}" for i in range(6)]
        assert run.damage.lost == 0 and not run.damage.truncated


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


_LIST = "[" + ",".join(sound(3)) + "]"
_HIDING = {
    "a gzip member": gzip.compress(trace(*sound(9)).encode()),
    "a ZIP archive": b"PK\x03\x04" + bytes(range(256)) * 20,
    "garbage": np.random.default_rng(0).bytes(600_000),
    "JSON without events": b'\n{"a": [1, 2]}',
    "padding, then a gzip member": bytes(3 << 20) + gzip.compress(trace(*sound(9)).encode()),
}


@pytest.mark.parametrize("hiding", _HIDING)
@pytest.mark.parametrize("tail", ["]}", '], "traceName": "a.json"}'])
@pytest.mark.parametrize("packed", [False, True])
def test_what_stands_behind_the_end_is_damage(tmp_path: Path, hiding: str, tail: str, packed: bool) -> None:
    """It may be another capture, of which nothing is read."""
    content = trace(*sound(3), tail=tail).encode() + _HIDING[hiding]
    run = load(tmp_path, gzip.compress(content) if packed else content)
    assert names(run) == ["op0", "op1", "op2"]
    assert run.damage.trailing or run.damage.truncated
    assert run.warnings


def test_bytes_behind_the_end_are_counted_without_padding(tmp_path: Path) -> None:
    text = trace(*sound(3), tail='], "traceName": "a.json"}')
    run = load(tmp_path, text + "\n\0\0" + "PK" * 5000)
    assert (run.damage.trailing, run.damage.truncated) == (10_000, False)
    assert run.warnings == [
        "10,000 bytes after the end of the trace could not be read, and may hold another capture"
    ]


@pytest.mark.parametrize("text", [trace(*sound(3)), _LIST])
@pytest.mark.parametrize("padding", [b"\n", b" \r\n\t", bytes(5000), b"\n" + bytes(2 << 20), b"]}"])
def test_padding_and_brackets_behind_the_end_are_no_damage(tmp_path: Path, text: str, padding: bytes) -> None:
    run = load(tmp_path, text.encode() + padding)
    assert (len(run), run.warnings, run.damage.trailing, run.damage.truncated) == (3, [], 0, False)


@pytest.mark.parametrize("log", ["INFO: {rank 0} writes [1/2]\n", "[2026-01-01] INFO\n[W124] 7\n"])
@pytest.mark.parametrize("text", [trace(*sound(3)), _LIST])
def test_lines_of_a_log_before_the_begin_are_no_events(tmp_path: Path, log: str, text: str) -> None:
    run = load(tmp_path, log + text)
    assert (len(run), run.damage.leading, run.damage.lost) == (3, len(log), 0)
    assert run.warnings == [f"{len(log)} bytes before the begin of the trace are not part of it"]


def test_a_damaged_begin_is_no_log(tmp_path: Path) -> None:
    run = load(tmp_path, trace(*sound(3)).replace("{", "x", 1).replace("[", "[\n", 1))
    assert (len(run), run.damage.leading, run.damage.lost) == (3, 0, 1)


def test_garbage_between_two_documents_is_damage(tmp_path: Path) -> None:
    text = trace(*sound(2), tail='], "traceName": "a.json"}')
    assert load(tmp_path, text + "\n" + trace(*sound(2, 2))).damage.trailing == 0
    run = load(tmp_path, text + "PK" * 50 + trace(*sound(2, 2)))
    assert len(run) == 4
    assert run.damage.trailing >= 100


def test_more_fields_than_are_read_are_damage(tmp_path: Path) -> None:
    fields = ",".join(f'"x{i}": 1' for i in range(document.MOST_FIELDS + 5))
    run = load(tmp_path, trace(*sound(2), tail="], " + fields + ', "traceEvents": [' + sound(1)[0] + "]}"))
    assert run.damage.truncated
    assert run.warnings == [
        "the file has more than 2,000 fields alongside its events; all complete events were read"
    ]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\0" * 4096, gzip.compress(b"", mtime=0)])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DamagedCapture, match=r"^trace\.json: .*(empty|blank)"):
        load(tmp_path, content)


def test_a_trace_cut_before_its_first_event(tmp_path: Path) -> None:
    with pytest.raises(DamagedCapture, match="ends before its first event"):
        load(tmp_path, '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "na')


# -- odd layouts -------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(window.Window, "LONGEST", 1 << 21)
    endless = '{"ph": "X", "name": "' + "x" * (1 << 23)
    run = load(tmp_path, trace(endless, *sound(2)))
    assert run.damage.lost >= 1


# -- the beginning -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [b"x", b"", b"\0\0{", b"\xff{", b"x,y,{"])
def test_a_damaged_beginning_costs_no_event_and_no_field(tmp_path: Path, start: bytes) -> None:
    whole = HEAD.replace('"deviceProperties": []', '"deviceProperties": [{"id": 0, "name": "V100"}]')
    run = load(tmp_path, start + (whole + ",".join(sound(20)) + "]}").encode()[1:])
    assert names(run) == [f"op{i}" for i in range(20)]
    assert run.device_names == {0: "V100"}
    assert run.warnings == ["1 event could not be read"]


@pytest.mark.parametrize("start", ["", "x", " x "])
def test_a_list_without_its_bracket(tmp_path: Path, start: str) -> None:
    assert names(load(tmp_path, start + ",".join(sound(20)) + "]")) == [f"op{i}" for i in range(20)]
