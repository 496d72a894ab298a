"""`allocator-setting` and `set-config`: settings of the whole program, made once where it starts."""

from __future__ import annotations

import sys

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.frameworks.launch_environment import assigned
from trace_doctor.fixes.nodes import written
from trace_doctor.model.parameters import AllocatorSetting, SetConfig, is_true
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit, insert_after, insert_before
from trace_doctor.program.place import Place, candidate, only, refusal
from trace_doctor.program.queries.imports import below_imports, last_import
from trace_doctor.program.script import Script, dotted, imported_modules, literal
from trace_doctor.program.versions import allocator_variable

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_DETERMINISM = {
    "torch.backends.cudnn.benchmark": (
        "torch.backends.cudnn.deterministic",
        "torch.use_deterministic_algorithms",
    )
}
"""what is at odds with a setting"""
_LAZY_MODULES = ("torch._dynamo", "torch._inductor", "torch._functorch")


@codemod(
    "allocator-setting",
    AllocatorSetting,
    adds="os environ setdefault PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF expandable_segments True False",
    scope="program",
    words=("torch",),
)
def allocator_setting(place: Place, params: AllocatorSetting) -> Change:
    """Sets an option of the CUDA caching allocator before torch is imported."""
    setting = f"{params.key}:{is_true(params.value)}"
    script, _ = only(
        [(s, s.module) for s in place.scripts], "can be the script that is started", "no script found"
    )
    if (done := _extend(script, params.key, setting)) is not None:
        return done
    if (done := _extend_outside(place, params.key, setting)) is not None:
        return done
    first = _first_foreign_import(script)
    if first is None:
        raise NoEdit("unresolved", f"{script.name} imports no torch, so it is not the script that is started")
    name = allocator_variable(place.torch)
    code = f"os.environ.setdefault({written(name)}, {written(setting)})  # read when torch starts"
    edits = []
    above = _last_import_above(script, first)
    if not _imports_os(script, first):
        if above is None:
            code = f"import os\n\n{code}"
        else:
            edits.append(insert_after(script, above.body[-1], "import os", "import os"))
    if above is not None and script.line(first) == script.lines(above)[1] + 1:
        code = f"\n{code}"
    edits.append(insert_before(script, first, code, "allocator-setting"))
    return Change(script, tuple(edits), script.line(first), "safe")


def _last_import_above(script: Script, statement: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The last top-level import (of the standard library) above a statement."""
    found = None
    for node in script.module.body:
        if node is statement:
            break
        if isinstance(node, cst.SimpleStatementLine) and isinstance(
            node.body[-1], cst.Import | cst.ImportFrom
        ):
            found = node
    return found


def _extend(script: Script, key: str, setting: str) -> Change | None:
    """The script sets the variable itself: adds the option to its text, or refuses where it is no literal."""
    for value, node in _settings(script):
        text = literal(value)
        if not isinstance(text, str):
            raise refusal(script, node, f"add {setting} to what this line sets")
        options = _with(text, key, setting, candidate(script, node))
        if not isinstance(value, cst.SimpleString):
            raise refusal(script, node, f"add {setting} to what this line sets")
        as_it_is = value.raw_value == text
        new = value.prefix + value.quote + options + value.quote if as_it_is else written(options)
        start, end = script.span(value)
        return Change(
            script, (Edit(start, end, new, "allocator-setting", setting),), script.line(node), "safe"
        )
    return None


def _with(text: str, key: str, setting: str, where: Candidate) -> str:
    """The options with one more. Raises NoEdit where it is among them, or has another value."""
    options = [option.strip() for option in text.split(",") if option.strip()]
    if setting in (o.replace(" ", "") for o in options):
        raise NoEdit("already", f"{where.file}:{where.line} sets {setting} already")
    if any(o.split(":")[0].strip() == key for o in options):
        raise NoEdit("display", f"{key} is set to another value on purpose", [where])
    return ",".join([*options, setting])


def _extend_outside(place: Place, key: str, setting: str) -> Change | None:
    """What starts the script sets the variable: a default in the script would do nothing."""
    found = assigned(place, ALLOCATOR_VARIABLES)
    lacking = [a for a in found if setting not in a.text.replace(" ", "").split(",")]
    if not found:
        return None
    if len(lacking) > 1:
        raise NoEdit("ambiguous", f"{len(lacking)} places set the allocator", [a.candidate for a in lacking])
    one = lacking[0] if lacking else found[0]
    if one.dynamic:
        raise NoEdit("display", f"add {setting} to what this line sets", [one.candidate])
    new = _with(one.text, key, setting, one.candidate)
    edit = Edit(one.start, one.end, new, "allocator-setting", setting)
    return Change(one.file, (edit,), one.file.line_of(one.start), "safe")


def _settings(script: Script) -> list[tuple[cst.BaseExpression, cst.CSTNode]]:
    """(value, statement) of every place that sets an allocator variable."""
    found: list[tuple[cst.BaseExpression, cst.CSTNode]] = []
    for assign in script.all(cst.Assign):
        for target in assign.targets:
            if isinstance(target.target, cst.Subscript) and _names_variable(target.target.slice[0].slice):
                found.append((assign.value, assign))
    for call in script.all(cst.Call):
        positional = [a.value for a in call.args if a.keyword is None]
        method = dotted(call.func) or ""
        if method.endswith(("setdefault", "putenv")) and len(positional) == 2 and _is_variable(positional[0]):
            found.append((positional[1], call))
        elif (script.callee(call) or "").endswith("_set_allocator_settings") and positional:
            found.append((positional[0], call))
    for element in script.all(cst.DictElement):
        if _is_variable(element.key):
            found.append((element.value, element))
    return found


def _names_variable(index: cst.BaseSlice) -> bool:
    return isinstance(index, cst.Index) and _is_variable(index.value)


def _is_variable(node: cst.BaseExpression) -> bool:
    return literal(node) in ALLOCATOR_VARIABLES


def _first_foreign_import(script: Script) -> cst.CSTNode | None:
    """The first top-level statement that imports something outside the standard library: any of it may load torch."""
    for statement in script.module.body:
        if _is_type_checking(statement):
            continue
        for node in script.imports(statement):
            if script.function_of(node) is None and not all(map(_standard, imported_modules(node))):
                return statement
    return None


def _is_type_checking(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.If) and (dotted(statement.test) or "").endswith("TYPE_CHECKING")


def _standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def _imports_os(script: Script, before: cst.CSTNode) -> bool:
    """Whether `os` is a module-level name above a statement."""
    for node in script.all(cst.Import):
        top = isinstance(script.parent(script.parent(node) or node), cst.Module)
        if not top or script.line(node) >= script.line(before):
            continue
        for alias in node.names:
            bound = alias.asname.name if alias.asname else alias.name
            if dotted(alias.name) in ("os", "os.path") and (dotted(bound) or "").split(".")[0] == "os":
                return True
    return False


@codemod(
    "set-config",
    SetConfig,
    adds="torch _dynamo config capture_scalar_outputs backends cudnn benchmark cuda matmul allow_tf32 True False",
    scope="program",
    words=("torch",),
)
def set_config(place: Place, params: SetConfig) -> Change:
    """Sets a configuration variable of torch after the imports."""
    script, _ = only(
        [(s, s.module) for s in place.scripts], "can be the script that is started", "no script found"
    )
    return configure(script, params.name, is_true(params.value))


def configure(script: Script, name: str, wanted: bool) -> Change:
    """Assigns `name = value` at module level, or changes the assignment that is there."""
    against, value = _DETERMINISM.get(name, ()), written(wanted)
    set_here = [
        a
        for a in script.all(cst.Assign)
        if any(script.qualified(t.target) in against for t in a.targets) and literal(a.value) is not False
    ]
    for node in (*script.calls(*against), *set_here):
        raise refusal(script, node, "the script asks for the same results in every run")
    for assign in script.all(cst.Assign):
        if any(script.qualified(t.target) == name or dotted(t.target) == name for t in assign.targets):
            where = f"{script.name}:{script.line(assign)}"
            if script.code(assign.value) == value:
                raise NoEdit("already", f"{where} sets {name} already")
            if literal(assign.value) is ...:
                raise refusal(script, assign, f"{name} is set from something else")
            start, end = script.span(assign.value)
            return Change(script, (Edit(start, end, value, f"config:{name}", value),), script.line(assign))
    last = last_import(script)
    if last is None:
        raise NoEdit("unresolved", f"{script.name} imports no torch")
    module = next((m for m in _LAZY_MODULES if name.startswith(m + ".")), "torch")
    code = f"{name} = {value}"
    if not _imports(script, module, last):
        code = f"import {module}\n\n{code}"
    edit = below_imports(script, last, code, f"config:{name}")
    return Change(script, (edit,), script.line(last))


def _imports(script: Script, module: str, last: cst.CSTNode) -> bool:
    """Whether `import module` stands at module level, so that `module.x` is a name."""
    for node in script.all(cst.Import):
        if script.line(node) > script.line(last):
            continue
        if any(dotted(alias.name) == module and alias.asname is None for alias in node.names):
            return True
    return False
