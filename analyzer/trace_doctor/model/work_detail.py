"""All kernels and operators of one capture, with what launched them: what a page's tables are searched in."""

from __future__ import annotations

from msgspec import Struct, field

from trace_doctor.model.quantities import Amount, Count, Share, Us


class Origin(Struct, frozen=True, kw_only=True):
    """What most of the time of a kernel, or of an operator, comes from."""

    name: str
    """an operator, or a line of the script"""
    share: Share
    """of that time"""


class KernelDetail(Struct, frozen=True, kw_only=True):
    """One kernel of one device in the analyzed window."""

    device: int
    name: str
    kind: str
    """compute | comm | copy"""
    count: Count
    total_us: Us
    share: Amount
    """of the device's compute time; 0 for what does not compute"""
    tensor_cores: bool | None = None
    """None where the name does not say"""
    dtype: str = ""
    """of what it multiplies or works on, from its name, else from its operator's inputs; "" where neither says"""
    operator: Origin | None = None
    site: Origin | None = None


class OperatorDetail(Struct, frozen=True, kw_only=True):
    """One operator or runtime call of the training loop's and autograd's threads."""

    name: str
    kind: str
    """operator | runtime"""
    count: Count
    self_us: Us
    share: Share
    """of the self time of all of them"""
    step_us: Us | None = None
    """mean over the steady steps; None without steps"""
    site: Origin | None = None


class WorkDetail(Struct, frozen=True, kw_only=True):
    """The longest first; `of_kernels` and `of_operators` say how many there are where some are left out."""

    kernels: list[KernelDetail] = field(default_factory=list)
    of_kernels: Count = 0
    operators: list[OperatorDetail] = field(default_factory=list)
    of_operators: Count = 0
