"""`allocator-setting` and `set-config`: settings of the whole program, made once where it starts."""

from __future__ import annotations

import sys
from itertools import chain, takewhile

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.frameworks.launch_environment import assignments_of
from trace_doctor.fixes.frameworks.launchers import say_what_is_not_checked
from trace_doctor.fixes.literals import source_text
from trace_doctor.fixes.tidy import without_import
from trace_doctor.model.parameters import AllocatorSetting, SetConfig, is_true
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit, insert_after, insert_before, sketched
from trace_doctor.program.place import Place, already, candidate, refusal, started_script
from trace_doctor.program.project import Project
from trace_doctor.program.queries.entry import main_guard
from trace_doctor.program.queries.imports import (
    add_import,
    below_imports,
    bindings,
    end_of_imports,
    last_import,
)
from trace_doctor.program.queries.loops import conditional, enclosing_loop, in_handler, loops, trains
from trace_doctor.program.script import Script, dotted, imported_modules, key_of, literal
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
    """Sets an option of the CUDA caching allocator before torch is imported.

    Never called safe: whether the default lasts, and what else reads it, depends on more than the scripts.
    """
    return say_what_is_not_checked(place, ALLOCATOR_VARIABLES, lambda: _set_allocator(place, params))


def _set_allocator(place: Place, params: AllocatorSetting) -> Change:
    setting = f"{params.key}:{is_true(params.value)}"
    script = started_script(place)
    change = _extend(script, params.key, setting) or _extend_outside(place, params.key, setting)
    if change is not None:
        return change
    _refuse_freeing(place.program)
    first = _first_foreign_import(script)
    if first is None:
        raise NoEdit("unresolved", f"{script.name} imports no torch, so it is not the script that is started")
    docstring_line = (
        first if first is script.module.body[0] and script.module.get_docstring() is not None else None
    )
    if importers := place.program.importers(script):
        raise _of_importers(script, first, importers[0], setting)
    if (other := docstring_line or _other_os(script) or _named_elsewhere(script)) is not None:
        raise refusal(script, other, f"set {setting} before torch is imported")
    name = allocator_variable(place.torch)
    code = f"os.environ.setdefault({source_text(name)}, {source_text(setting)})  # read when torch starts"
    edits = []
    above = _last_import_above(script, first)
    if not _imports_os(script, first):
        if above is None:
            code = f"import os\n\n{code}"
        else:
            edit = add_import(script, above, "import os", "import os")
            late = edit.start > script.line_starts[script.line(first) - 1]
            edits.append(insert_after(script, above.body[-1], "import os", "import os") if late else edit)
        later = [
            (n, a)
            for n in script.all(cst.Import)
            for a in n.names
            if script.parent(script.parent(n) or n) is script.module
        ]
        edits += [e for n, a in later if script.code(a) == "os" for e in without_import(script, n, a)]
    if above is not None and script.line(first) == script.lines(above)[1] + 1:
        code = f"\n{code}"
    edits.append(insert_before(script, first, code, "allocator-setting"))
    return Change(script, tuple(edits), script.line(first))


def _refuse_freeing(program: Project) -> None:
    """Raises NoEdit where each iteration over batches empties the cache itself, whatever the allocator's segments are."""
    all_train = bool(program.scripts_with("backward("))
    for script in program.scripts_with("empty_cache("):
        for call in script.calls("torch.cuda.empty_cache"):
            loop = enclosing_loop(script, call)
            if loop is None or conditional(script, call) or in_handler(script, call):
                continue
            innermost = not any(script.within(inner, loop.body) for inner in loops(script))
            if innermost and (trains(script, loop) or not all_train):
                why = "each iteration returns the memory here, whatever the allocator's setting: take this call away first"
                raise refusal(script, call, why)


def _last_import_above(script: Script, statement: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The last top-level import (of the standard library) above a statement."""
    above = takewhile(lambda node: node is not statement, script.module.body)
    lines = [node for node in above if isinstance(node, cst.SimpleStatementLine)]
    imports = [line for line in lines if isinstance(line.body[-1], cst.Import | cst.ImportFrom)]
    return imports[-1] if imports else None


def _extend(script: Script, key: str, setting: str) -> Change | None:
    """The script sets the variable itself: adds the option to its text, or refuses where it is no literal."""
    for value, node in _settings(script):
        text = literal(value)
        options = _with(text, key, setting, candidate(script, node)) if isinstance(text, str) else ""
        if not isinstance(value, cst.SimpleString) or not options:
            raise refusal(script, node, f"add {setting} to what this line sets")
        as_it_is = value.raw_value == text
        new = value.prefix + value.quote + options + value.quote if as_it_is else source_text(options)
        edit = Edit(*script.span(value), new, "allocator-setting", setting)
        return Change(script, (edit,), script.line(node))
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
    assignments = assignments_of(place, ALLOCATOR_VARIABLES)
    incomplete = [a for a in assignments if not a.says(setting)]
    if not assignments:
        return None
    if len(incomplete) > 1:
        raise NoEdit(
            "ambiguous", f"{len(incomplete)} places set the allocator", [a.candidate for a in incomplete]
        )
    one = incomplete[0] if incomplete else assignments[0]
    if not incomplete:
        raise NoEdit("already", f"{one.candidate.file}:{one.candidate.line} sets {setting} already")
    if one.text is None or one.end is None:
        raise NoEdit("display", f"add {setting} to what this line sets", [one.candidate])
    new = _with(one.text, key, setting, one.candidate)
    edit = Edit(one.start, one.end, new, "allocator-setting", setting)
    return Change(one.file, (edit,), one.file.line_of(one.start))


def _settings(script: Script) -> list[tuple[cst.BaseExpression, cst.CSTNode]]:
    """(value, statement) of every place that sets an allocator variable."""
    settings: list[tuple[cst.BaseExpression, cst.CSTNode]] = []
    for assign in script.all(cst.Assign):
        keys = [key_of(t.target) for t in assign.targets]
        settings += [(assign.value, assign) for key in keys if key in ALLOCATOR_VARIABLES]
    for call in script.all(cst.Call):
        arguments = [a.value for a in call.args if a.keyword is None]
        method = dotted(call.func) or ""
        sets = method.endswith(("setdefault", "putenv")) and len(arguments) == 2
        if sets and literal(arguments[0]) in ALLOCATOR_VARIABLES:
            settings.append((arguments[1], call))
        elif script.callee(call).endswith("_set_allocator_settings") and arguments:
            settings.append((arguments[0], call))
    elements = script.all(cst.DictElement)
    return settings + [(e.value, e) for e in elements if literal(e.key) in ALLOCATOR_VARIABLES]


def _named_elsewhere(script: Script) -> cst.CSTNode | None:
    """Where the script names the variable in another way than to set it: whether a default would last is not known."""
    texts = (t for t in script.all(cst.SimpleString) if literal(t) in ALLOCATOR_VARIABLES)
    keywords = (
        a for a in script.all(cst.Arg) if a.keyword is not None and a.keyword.value in ALLOCATOR_VARIABLES
    )
    return next(chain(texts, keywords), None)


def _other_os(script: Script) -> cst.CSTNode | None:
    """Where `os` is, or may become, another thing than the module, outside of functions."""
    for use in script.variables("os"):
        parent = script.parent(use)
        is_module = isinstance(parent, cst.ImportAlias | cst.ImportFrom) or (
            isinstance(parent, cst.Attribute) and parent.value is use
        )
        if not is_module and not script.function_of(use):
            return use
    return None


def _first_foreign_import(script: Script) -> cst.CSTNode | None:
    """The first top-level statement that imports something outside the standard library: any of it may load torch."""
    for statement in script.module.body:
        if isinstance(statement, cst.If) and (dotted(statement.test) or "").endswith("TYPE_CHECKING"):
            continue
        modules = [
            m for i in script.imports(statement) if not script.function_of(i) for m in imported_modules(i)
        ]
        if any(module.split(".")[0] not in sys.stdlib_module_names for module in modules):
            return statement
    return None


def _imports_os(script: Script, before: cst.CSTNode) -> bool:
    """Whether `os` is a module-level name above a statement."""
    return any(
        name.split(".")[0] == "os" and full in ("os", "os.path")
        for name, full, node in bindings(script)
        if isinstance(node, cst.Import) and script.line(node) < script.line(before)
    )


@codemod(
    "set-config",
    SetConfig,
    adds="torch _dynamo config capture_scalar_outputs backends cudnn benchmark cuda matmul allow_tf32 True False",
    scope="program",
    words=("torch",),
)
def set_config(place: Place, params: SetConfig) -> Change:
    """Sets a configuration variable of torch after the imports."""
    return configure(started_script(place), place.program, params.name, is_true(params.value))


def configure(script: Script, program: Project, name: str, state: bool) -> Change:
    """Assigns `name = value` at module level, or changes the assignment that is there. Raises NoEdit where another script of
    the program sets it, or what is at odds with it."""
    against, value = _DETERMINISM.get(name, ()), source_text(state)
    words = [n.rpartition(".")[2] for n in (name, *against)]
    others = [s for s in program.scripts_with(*words) if s is not script]
    for other in others:
        for assign in other.all(cst.Assign):
            if name not in (other.qualified(t.target) for t in assign.targets):
                continue
            if other.code(assign.value) == value:
                raise already(other, assign, f"sets {name} already")
            raise refusal(other, assign, f"{name} is set from something else")
    change = _assignment(script, program, name, value)
    with sketched(change):
        for other in (script, *others):
            set_there = [
                a
                for a in other.all(cst.Assign)
                if any(other.qualified(t.target) in against for t in a.targets)
                and literal(a.value) is not False
            ]
            for node in (*other.calls(*against), *set_there):
                raise refusal(other, node, "the script asks for the same results in every run")
    return change


def of_process(script: Script, program: Project, last: cst.SimpleStatementLine, code: str, key: str) -> Edit:
    """A setting below the imports; in `if __name__ == "__main__":` where other files import the script, whose process it is not
    to change. Raises NoEdit where that is not what each process of the program runs."""
    importers = program.importers(script)
    if not importers:
        return below_imports(script, last, code, key)
    guard = main_guard(script)
    if guard is None or any(True for _ in program.scripts_with("spawn", "Process(")):
        raise _of_importers(script, last, importers[0], code)
    below = script.line_starts[
        script.line_of(script.span(guard.test)[1])
    ]  # above a comment on what is first now
    return Edit(below, below, f"{script.indent(guard.body.body[0])}{code}\n", key, code)


def _of_importers(script: Script, node: cst.CSTNode, importer: str, code: str) -> NoEdit:
    why = f"{importer} imports this script, and would get the setting as well: {code} belongs into the script that is started"
    return refusal(script, node, why)


def _assignment(script: Script, program: Project, name: str, value: str) -> Change:
    for assign in script.all(cst.Assign):
        if any(script.qualified(t.target) == name or dotted(t.target) == name for t in assign.targets):
            if script.code(assign.value) == value:
                raise already(script, assign, f"sets {name} already")
            if literal(assign.value) is ...:
                raise refusal(script, assign, f"{name} is set from something else")
            start, end = script.span(assign.value)
            return Change(script, (Edit(start, end, value, f"config:{name}", value),), script.line(assign))
    last = end_of_imports(script)
    if last is None:
        raise NoEdit("unresolved", f"{script.name} imports no torch")
    module = next((m for m in _LAZY_MODULES if name.startswith(m + ".")), "torch")
    edits = [of_process(script, program, last, f"{name} = {value}", f"config:{name}")]
    above = (node for node in script.all(cst.Import) if script.line(node) <= script.line(last))
    if not any(dotted(a.name) == module and a.asname is None for node in above for a in node.names):
        edits.insert(
            0, add_import(script, last_import(script) or last, f"import {module}", f"import {module}")
        )
    return Change(script, tuple(edits), script.line(last))
