"""How much memory each device has, and which devices have come close to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.out_of_memory import Failure, OutOfMemory

ADVICE = "a trace of the same run (it names the device and its memory), or the setting device-memory with the bytes"


class DeviceMemory(Evidence, frozen=True):
    """Bytes of the devices, as far as a file or the user says, and what failed on them. Never refuses."""

    sizes: Mapping[int, int]
    """from the user, else from the trace's device properties, else free and reserved bytes at a failed allocation"""
    failures: Mapping[int, Failure]
    """of a snapshot: the last failed allocation of each device that has one"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        failed = facts.get(OutOfMemory)
        failures = {f.device.device: f for f in failed.failures} if failed is not None else {}
        sizes = {d: size for d, f in failures.items() if (size := f.device_bytes) is not None}
        run, snapshot = facts.capture.run, facts.capture.snapshot
        if run is not None:
            known = [p for p in run.device_properties if p.get("totalGlobalMem")]
            sizes |= {p["id"]: p["totalGlobalMem"] for p in known if "id" in p}
        if facts.options.device_bytes is not None:
            devices = {*sizes, *(snapshot.devices if snapshot is not None else ())}
            if run is not None:
                devices |= {int(d) for d in run.memory.device if d >= 0}
            sizes = dict.fromkeys(sorted(devices), facts.options.device_bytes)
        return cls(sizes, failures)

    def moment(self, device: DeviceBlocks) -> int:
        """Where memory was tightest: at the failed allocation, else at the peak."""
        failure = self.failures.get(device.device)
        return device.history.peak if failure is None else failure.moment

    def pressed(self, device: DeviceBlocks, share: float) -> bool:
        """Whether this device is short of memory: an allocation failed, or the peak is this share of its size."""
        size = self.sizes.get(device.device)
        return device.device in self.failures or (
            size is not None and device.history.peak_bytes >= share * size
        )

    def tightest(self, devices: tuple[DeviceBlocks, ...], share: float) -> list[DeviceBlocks]:
        """The devices to speak of: those that are short of memory, else the one with the highest peak."""
        pressed = [d for d in devices if self.pressed(d, share)]
        return pressed or [max(devices, key=lambda d: d.history.peak_bytes)]
