"""The result: one JSON-able object that every reporter, the gate and the fixes are made from.

This module is the contract (schema version 1). The JSON Schema is generated from these types.
Times for people are float microseconds (`_us`), ledgers are integer nanoseconds (`_ns`), memory is bytes,
shares are 0..1. `None` means "not known", never zero.
"""

from trace_doctor.model.captures import Ignored as Ignored
from trace_doctor.model.captures import Input as Input
from trace_doctor.model.captures import Pace as Pace
from trace_doctor.model.captures import Ranks as Ranks
from trace_doctor.model.captures import Recorded as Recorded
from trace_doctor.model.captures import TorchVersion as TorchVersion
from trace_doctor.model.captures import Work as Work
from trace_doctor.model.findings import LOOKED as LOOKED
from trace_doctor.model.findings import MAX_ROWS as MAX_ROWS
from trace_doctor.model.findings import NOT_PATCHED as NOT_PATCHED
from trace_doctor.model.findings import Basis as Basis
from trace_doctor.model.findings import Cell as Cell
from trace_doctor.model.findings import Column as Column
from trace_doctor.model.findings import Confidence as Confidence
from trace_doctor.model.findings import Finding as Finding
from trace_doctor.model.findings import Fix as Fix
from trace_doctor.model.findings import FixKind as FixKind
from trace_doctor.model.findings import HowKnown as HowKnown
from trace_doctor.model.findings import Known as Known
from trace_doctor.model.findings import Location as Location
from trace_doctor.model.findings import Mention as Mention
from trace_doctor.model.findings import Outcome as Outcome
from trace_doctor.model.findings import OutcomeKind as OutcomeKind
from trace_doctor.model.findings import Safety as Safety
from trace_doctor.model.findings import Saving as Saving
from trace_doctor.model.findings import Severity as Severity
from trace_doctor.model.findings import Span as Span
from trace_doctor.model.findings import Suppressed as Suppressed
from trace_doctor.model.findings import Table as Table
from trace_doctor.model.findings import Target as Target
from trace_doctor.model.findings import Unit as Unit
from trace_doctor.model.findings import enough_first as enough_first
from trace_doctor.model.findings import known_together as known_together
from trace_doctor.model.findings import listed as listed
from trace_doctor.model.findings import ranks_text as ranks_text
from trace_doctor.model.gates import Budget as Budget
from trace_doctor.model.gates import Gate as Gate
from trace_doctor.model.ledgers import IDLE_CAUSES as IDLE_CAUSES
from trace_doctor.model.ledgers import MEMORY_CATEGORIES as MEMORY_CATEGORIES
from trace_doctor.model.ledgers import MEMORY_NAMES as MEMORY_NAMES
from trace_doctor.model.ledgers import PART_NAMES as PART_NAMES
from trace_doctor.model.ledgers import CategoryBytes as CategoryBytes
from trace_doctor.model.ledgers import IdleNs as IdleNs
from trace_doctor.model.ledgers import MemoryHeldRow as MemoryHeldRow
from trace_doctor.model.ledgers import MemoryLedgerRow as MemoryLedgerRow
from trace_doctor.model.ledgers import OnDevice as OnDevice
from trace_doctor.model.ledgers import OwnershipRow as OwnershipRow
from trace_doctor.model.ledgers import TimeLedgerRow as TimeLedgerRow
from trace_doctor.model.ledgers import Unowned as Unowned
from trace_doctor.model.ledgers import UnownedBlock as UnownedBlock
from trace_doctor.model.ledgers import unowned as unowned
from trace_doctor.model.pictures import CollectiveRow as CollectiveRow
from trace_doctor.model.pictures import CriticalPath as CriticalPath
from trace_doctor.model.pictures import Gap as Gap
from trace_doctor.model.pictures import KernelRow as KernelRow
from trace_doctor.model.pictures import Lane as Lane
from trace_doctor.model.pictures import MemoryMark as MemoryMark
from trace_doctor.model.pictures import MemorySeries as MemorySeries
from trace_doctor.model.pictures import OperatorRow as OperatorRow
from trace_doctor.model.pictures import PathPart as PathPart
from trace_doctor.model.pictures import Segment as Segment
from trace_doctor.model.pictures import StepRow as StepRow
from trace_doctor.model.pictures import Strip as Strip
from trace_doctor.model.pictures import WhatIf as WhatIf
from trace_doctor.model.results import SCHEMA_VERSION as SCHEMA_VERSION
from trace_doctor.model.results import ReplayQuality as ReplayQuality
from trace_doctor.model.results import Result as Result
from trace_doctor.model.results import SavingUpTo as SavingUpTo
from trace_doctor.model.results import Summary as Summary
from trace_doctor.model.results import Tool as Tool
from trace_doctor.model.schema import json_schema as json_schema
