"""`deepspeed-zero`: how far DeepSpeed shares the model's state among the ranks, and what of it stays on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.frameworks.accelerate import launch_config
from trace_doctor.fixes.frameworks.deepspeed import Config, change, find_config, no_edit
from trace_doctor.fixes.frameworks.documents import Document
from trace_doctor.fixes.frameworks.launchers import say_what_is_not_checked
from trace_doctor.model.parameters import DeepSpeedZero
from trace_doctor.program.edits import Candidate, Change, NoEdit
from trace_doctor.program.place import Place

_HOST = {"device": "cpu", "pin_memory": True}
_OFFLOADED = ("cpu", "nvme")


@codemod(
    "deepspeed-zero",
    DeepSpeedZero,
    adds="zero_optimization stage offload_optimizer offload_param device cpu pin_memory true True "
    "deepspeed_config zero_stage offload_optimizer_device offload_param_device",
    scope="call",
    words=("deepspeed", "DeepSpeed", "Trainer", "Accelerator"),
    elsewhere=True,
)
def deepspeed_zero(place: Place, params: DeepSpeedZero) -> Change:
    """Raises the ZeRO stage of DeepSpeed's configuration, and keeps optimizer state or parameters on the host.

    params: `stage` (1: optimizer state, 2: gradients too, 3: parameters too), `offload_optimizer`, `offload_param`.
    """
    names = ("zero_optimization", "zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE")
    return say_what_is_not_checked(place, names, lambda: _set_stage(place, params))


def _set_stage(place: Place, params: DeepSpeedZero) -> Change:
    stage = params.stage
    config = find_config(place)
    if config is None:
        settings = launch_config(place)
        if settings is not None and settings.find("deepspeed_config", "zero_stage") is not None:
            return _in_settings(settings, stage, params)
        raise NoEdit("unresolved", "the program has no configuration of DeepSpeed")
    now = config.value("zero_optimization", "stage")
    if now is not None and not isinstance(now, int):
        here = config.candidate("zero_optimization", "stage")
        raise no_edit("the stage of ZeRO is not set to a number", here)
    now = now or 0
    last = max(now, stage)
    if last > 1 and place.program.scripts_with("PipelineModule"):
        raise no_edit("pipeline parallelism takes ZeRO up to stage 1")
    values: dict[str, Any] = {"stage": last} if last != now else {}
    for name in ("offload_optimizer", "offload_param"):
        if getattr(params, name) and config.value("zero_optimization", name, "device") not in _OFFLOADED:
            values[name] = dict(_HOST)
    if config.value("zero_optimization", "offload_param", "device") in _OFFLOADED:
        _refuse_woken(values, config.candidate("zero_optimization", "offload_param"))
    _refuse(place, config, last, now, values)
    notes = (_SHARDS,) if values.get("stage") == 3 else ()
    return change(config, {"zero_optimization": values} if values else {}, *notes)


def _refuse_woken(values: Mapping[str, Any], where: Candidate) -> None:
    """A section that lower stages ignore."""
    if 3 in (values.get("stage"), values.get("zero_stage")):
        why = "the configuration offloads parameters, which only stage 3 does: every step would wait for them"
        raise no_edit(why, where)


def _refuse(place: Place, config: Config, stage: int, now: int, values: Mapping[str, Any]) -> None:
    """What raises when DeepSpeed starts."""
    here = config.candidate("zero_optimization")
    if "offload_optimizer" in values and not stage:
        raise no_edit("offloading needs ZeRO stage 1 or higher", here)
    if "offload_param" in values and stage < 3:
        raise no_edit("only ZeRO stage 3 offloads parameters", here)
    by_hand = any(
        "deepspeed.initialize" in s.text for s in place.program.scripts_with("deepspeed.initialize")
    )
    if not by_hand or not values or isinstance(config.value("optimizer", "type"), str):
        return
    makes = "the script makes the optimizer:"
    if "offload_optimizer" in values:
        other = 'deepspeed.ops.adam.DeepSpeedCPUAdam, or "optimizer" of the configuration'
        raise no_edit(f"{makes} with offloading it is {other}", here)
    if not now:
        others = 'others with "zero_allow_untested_optimizer": true'
        raise no_edit(f"{makes} ZeRO takes Adam, AdamW and Adagrad, {others}", here)


_SHARDS = "with stage 3 checkpoints hold shards: stage3_gather_16bit_weights_on_model_save gathers them"


def _in_settings(settings: Document, stage: int, params: DeepSpeedZero) -> Change:
    """The few of DeepSpeed's settings that Accelerate's own configuration has."""
    now = settings.value("deepspeed_config", "zero_stage")
    last = max(now, stage) if isinstance(now, int) else stage
    values: dict[str, Any] = {"zero_stage": last} if last else {}
    for name in ("offload_optimizer", "offload_param"):
        key = f"{name}_device"
        if getattr(params, name) and settings.value("deepspeed_config", key) not in _OFFLOADED:
            values[key] = "cpu"
    if last != now and settings.value("deepspeed_config", "offload_param_device") in _OFFLOADED:
        _refuse_woken(values, settings.candidate("deepspeed_config", "offload_param_device"))
    if "offload_param_device" in values and last < 3:
        raise NoEdit("display", "only ZeRO stage 3 offloads parameters", framework="accelerate")
    return change(settings, {"deepspeed_config": values})
