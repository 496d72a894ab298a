"""Names that the packets of one writer refer to by number (`InternedData`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trace_doctor.loaders.pftrace import wire
from trace_doctor.loaders.pftrace.wire import Value, fields, signed, text, unsigned

_TABLES = {1: "categories", 2: "names", 3: "arguments", 24: "specifications", 29: "strings", 1000: "kernels"}
_COUNTERS = 47
_DEMANGLED = 3
_PER_NAME = 200
_REMEMBERED, _SHORT = 1 << 13, 1 << 9
_OF_TORCH = {
    "categories": frozenset({"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"}),
    "specifications": frozenset({"Kernel", "Memcpy", "Memset", "Annotation"}),
}


class Names:
    """Tables of number -> name. `size` is about what they take, in bytes; `is_torch`: they hold what only torch writes."""

    MOST = 256 << 20

    def __init__(self) -> None:
        self.size = 0
        self.is_torch = False
        self._tables: dict[str, dict[int, str]] = {table: {} for table in _TABLES.values()}
        self._counters: dict[int, tuple[int, dict[int, str]]] = {}
        self._arguments: dict[bytes, tuple[str, Any]] = {}

    def add(self, data: bytes) -> None:
        """More names. Raises Malformed."""
        self._arguments.clear()
        for number, value in fields(data):
            if number in _TABLES:
                self._name(_TABLES[number], wire.message(value))
            elif number == _COUNTERS:
                self._counter(wire.message(value))
            if self.size > self.MOST:
                return
        cpu, gpu = (
            set(self._tables[t].values()) if len(self._tables[t]) < 1000 else set() for t in _OF_TORCH
        )
        self.is_torch |= bool(cpu & _OF_TORCH["categories"]) or gpu >= _OF_TORCH["specifications"]

    def of(self, table: str, number: Value) -> str:
        """The name with that number; "" for one that is not explained."""
        return self._tables[table].get(unsigned(number), "")

    def argument(self, data: bytes, read: Callable[[bytes, Names], tuple[str, Any]]) -> tuple[str, Any]:
        """`read` of an argument, of which most have been there before; not to be changed."""
        known = self._arguments.get(data)
        if known is None:
            if len(self._arguments) >= _REMEMBERED:
                self._arguments.clear()
            known = read(data, self)
            if len(data) <= _SHORT:
                self._arguments[data] = known
        return known

    def counters(self, number: Value) -> tuple[int, dict[int, str]] | None:
        """The GPU of a set of counters, and the name of each by its number."""
        return self._counters.get(unsigned(number))

    def _name(self, table: str, entry: bytes) -> None:
        number, name = 0, ""
        for key, value in fields(entry):
            if key == 1:
                number = unsigned(value)
            elif key == 2 or (key == _DEMANGLED and table == "kernels"):
                name = text(value)
        self._tables[table][number] = name
        self.size += len(name) + _PER_NAME

    def _counter(self, entry: bytes) -> None:
        number = gpu = 0
        names: dict[int, str] = {}
        for key, value in fields(entry):
            if key == 1:
                number = unsigned(value)
            elif key == 3:
                gpu = signed(value)
            elif key == 2:
                for inner, spec in fields(wire.message(value)):
                    if inner == 1:
                        known = dict(fields(wire.message(spec)))
                        names[unsigned(known.get(1, 0))] = text(known.get(2, b""))
        self._counters[number] = gpu, names
        self.size += sum(map(len, names.values())) + _PER_NAME * (1 + len(names))
