from __future__ import annotations

from pathlib import Path

import pytest
from fix_commands import OF_CAPTURE, SCRIPT, finding

from trace_doctor.model import Fix, Result


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a script and a saved result: three fixes, of which it calls one safe, and one piece of advice."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(SCRIPT)
    fixes = {
        "TD101": Fix(title="Load in workers", kind="patch", codemod="dataloader-args", params={"num_workers": 4}),
        "TD401": Fix(
            title="Expandable segments", kind="patch", safety="unsafe", codemod="allocator-setting",
            params={"key": "expandable_segments", "value": "True"}, verify="look again", risk="Linux only",
        ),
        "TD404": Fix(title="Free gradients", kind="patch", codemod="zero-grad", params={"mode": "add"}),
        "TD405": Fix(title="Keep no graph", kind="advice", safety="display", text="total += loss.item()"),
        "TD501": Fix(title="For Lightning", kind="advice", framework="lightning", text="L.Trainer(benchmark=True)"),
    }  # fmt: skip
    result = Result(findings=[finding(code, fix) for code, fix in fixes.items()], inputs=[OF_CAPTURE])
    (tmp_path / "result.json").write_bytes(result.to_json())
    return tmp_path
