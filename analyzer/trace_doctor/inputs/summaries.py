"""What is kept of capture groups between analyses: which of them an analysis takes from a store, and what it adds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trace_doctor.errors import DamagedCapture, TraceDoctorError, UsageError
from trace_doctor.evidence.packed import UnusableSummary
from trace_doctor.inputs.group_examination import GroupExamination, Request
from trace_doctor.inputs.group_format import decode
from trace_doctor.inputs.groups import CaptureGroup
from trace_doctor.inputs.remote import Remote, is_url, shown
from trace_doctor.inputs.store import Shard, ShardDone, ShardGroup, Store, asked_of, discovered, key_of
from trace_doctor.loaders.discover import CaptureFile, Discovery
from trace_doctor.loaders.discover import Ignored as IgnoredFile
from trace_doctor.rule import Rule

log = logging.getLogger("trace_doctor")


def lost(group: CaptureGroup, error: TraceDoctorError) -> GroupExamination:
    """A group of which nothing is known."""
    return GroupExamination((), (), tuple((f.display, error) for f in group.own or group.files))


@dataclass
class Summaries:
    """The store of an analysis that reads captures: what it holds is not read again."""

    store: Store
    shard: Shard | None = None
    """None: all groups, of which a result is made at once"""
    remote: Remote | None = None
    own: Sequence[CaptureGroup] = ()
    """the groups of the shard"""
    _keys: dict[str, str] = field(default_factory=dict)
    _lost: dict[str, str] = field(default_factory=dict)
    _asked: str = ""
    _discovered: str = ""
    _total: int = 0

    def total(self, groups: Sequence[CaptureGroup]) -> int:
        """How many groups there are in all shards."""
        return len(groups)

    def begin(self, request: Request, groups: Sequence[CaptureGroup]) -> None:
        """What is asked, and of which groups. Raises UsageError where the store cannot be made."""
        self.store.make()
        if self.shard is not None:
            self.store.forget_done(self.shard)
        self._asked, self._discovered, self._total = asked_of(request), discovered(groups), len(groups)
        self.own = [group for group in groups if self.shard is None or self.shard.holds(group)]
        self._keys = {group.name: key_of(group, self._asked, self.remote) for group in self.own}
        self._lost = {}

    def known(self, group: CaptureGroup, rules: Sequence[Rule]) -> GroupExamination | None:
        """What the store holds of a group; None where it has to be read."""
        if (data := self.store.read(self._keys[group.name])) is None:
            return None
        try:
            return decode(data, rules)
        except UnusableSummary as why:
            log.info("%s: its summary is made anew: %s", group.name, why)
            return None

    def note(self, group: CaptureGroup, outcome: bytes | TraceDoctorError) -> None:
        """Keeps what a group came to. One whose process ended is not kept: it is tried again."""
        if isinstance(outcome, TraceDoctorError):
            self._lost[group.name] = str(outcome).removeprefix(f"{group.name}: ")
        else:
            self.store.write(self._keys[group.name], outcome)

    def changed(self, group: CaptureGroup) -> bool:
        """Whether its files are others than those that were examined, or gone."""
        return key_of(group, self._asked, self.remote) != self._keys[group.name]

    def finish(self, discovery: Discovery, paths: Sequence[str | Path]) -> ShardDone:
        """Says that the shard is whole."""
        assert self.shard is not None
        place = self.remote.to_share if self.remote is not None else Path
        groups = (
            ShardGroup(
                g.name,
                tuple(_moved(f, place) for f in g.files),
                self._keys[g.name],
                self._lost.get(g.name, ""),
            )
            for g in self.own
        )
        done = ShardDone(
            shard=self.shard,
            asked=self._asked,
            discovered=self._discovered,
            total=self._total,
            paths=tuple(shown(p) if isinstance(p, str) and is_url(p) else str(p) for p in paths),
            groups=tuple(groups),
            ignored=discovery.ignored,
            recordings=tuple((str(place(folder)), name) for folder, name in discovery.recordings),
        )
        self.store.write_done(done)
        return done


class MergedShards(Summaries):
    """The store of a merge, which reads no capture for its summary: what a shard did not keep is lost. Raises UsageError for a
    store without all shards, where `allow_partial` is not set."""

    def __init__(self, store: Store, *, allow_partial: bool) -> None:
        super().__init__(store)
        self.shards = store.done()
        self._names = {group.name: group for done in self.shards for group in done.groups}
        count = self.shards[0].shard.of
        self.missing = sorted(set(range(count)) - {done.shard.number for done in self.shards})
        if self.missing and not allow_partial:
            raise UsageError(
                f"{store.folder}: {len(self.missing)} of {count} shards not done: {_numbers(self.missing)}; "
                "run them, or set --allow-partial"
            )
        if len({done.discovered for done in self.shards}) > 1 and not allow_partial:
            raise UsageError(f"{store.folder}: the shards did not find the same captures; run them again")

    @property
    def discovery(self) -> Discovery:
        """What the shards found, and which of them are missing."""
        parts = [done.discovery for done in self.shards]
        count = self.shards[0].shard.of
        missing = [
            IgnoredFile(f"shard {number} of {count}", "not done: its captures were not read", unread=True)
            for number in self.missing
        ]
        place = self.remote.shared if self.remote is not None else Path
        return Discovery(
            tuple({f.path: _moved(f, place) for part in parts for f in part.found}.values()),
            (*dict.fromkeys(i for part in parts for i in part.ignored), *missing),
            tuple(dict.fromkeys((place(folder), name) for part in parts for folder, name in part.recordings)),
        )

    def total(self, groups: Sequence[CaptureGroup]) -> int:
        """Of the shards that are missing too."""
        return max(done.total for done in self.shards)

    def begin(self, request: Request, groups: Sequence[CaptureGroup]) -> None:
        """Raises UsageError where the shards were asked for something else."""
        self._asked = asked_of(request)
        if any(done.asked != self._asked for done in self.shards):
            raise UsageError(
                f"{self.store.folder}: its shards have other rules or options, or another version of trace-doctor"
            )
        self.own = list(groups)
        self._keys = {name: group.key for name, group in self._names.items()}

    def known(self, group: CaptureGroup, rules: Sequence[Rule]) -> GroupExamination:
        """What the store holds of a group, or why it holds nothing."""
        listed = self._names.get(group.name)
        if listed is None or listed.lost:
            return lost(group, DamagedCapture(f"{group.name}: {listed.lost if listed else 'of no shard'}"))
        if (data := self.store.read(listed.key)) is None:
            return lost(group, DamagedCapture(f"{group.name}: its summary is not in the store"))
        try:
            return decode(data, rules)
        except UnusableSummary as why:
            return lost(group, DamagedCapture(f"{group.name}: its summary cannot be read: {why}"))


def _moved(file: CaptureFile, place: Callable[[Path], Path]) -> CaptureFile:
    """The file with its paths as `place` has them."""
    return replace(file, path=place(file.path), recording=file.recording and place(file.recording))


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
