"""Where a value of a script comes from: the expressions that a variable, attribute or parameter can hold.

LibCST resolves imports but not receivers, so `self.opt.zero_grad()` is only known to be an optimizer's by following
`self.opt` to the `torch.optim.AdamW(...)` it was assigned. What cannot be followed stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from trace_doctor.program.script import Script, argument, dotted, positional

DATALOADERS = (
    "torch.utils.data.DataLoader",
    "torch.utils.data.dataloader.DataLoader",
    "torchdata.stateful_dataloader.StatefulDataLoader",
    "torch_geometric.loader.DataLoader",
    "monai.data.DataLoader",
)
_OPTIMIZER = re.compile(
    r"(torch\.optim|bitsandbytes\.optim|apex\.optimizers|torch_optimizer|transformers|transformers\.optimization"
    r"|deepspeed\.ops\.\w+)(\.(?!lr_scheduler)\w+)?\.(?:[A-Z]\w*|\*)"
)
_NOT_OPTIMIZER = re.compile(r".*(Config|Model\w*|Trainer|TrainingArguments|Tokenizer\w*|LR|Scheduler)")
_MODULE = re.compile(r"(?!torch\.nn\.\*)(torch\.nn|torchvision\.models|timm|transformers)\..*")
# the value is the first argument in another coat
_WRAPPERS = frozenset([
    "iter", "enumerate", "reversed", "list", "next", "zip", "itertools.islice", "itertools.cycle", "tqdm.tqdm", "tqdm.auto.tqdm",
    "tqdm.rich.tqdm", "tqdm.trange", "rich.progress.track", "torch.compile", "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "apex.parallel.convert_syncbn_model",
])  # fmt: skip
_SAME_OBJECT_METHODS = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "half",
        "bfloat16",
        "float",
        "train",
        "eval",
        "requires_grad_",
        "prepare",
        "__iter__",
    ]
)
_PREPARE = frozenset([
    "prepare", "setup", "setup_dataloaders", "prepare_data_loader", "prepare_optimizer", "prepare_model", "wrap_model",
])  # fmt: skip
_MAX_DEPTH = 12


@dataclass(frozen=True, eq=False)
class Binding:
    value: cst.BaseExpression
    item: int | None = None
    """position in a tuple on the left of the assignment"""
    loop: bool = False
    """bound by iterating over `value`"""


Trail = tuple[Script, cst.BaseExpression, int | None]
"""an expression, the script it stands in, and which item of it is meant"""
Steps = list[tuple[cst.BaseExpression, int | None]]


def walk(start: Trail, step: Callable[[Trail], list[Trail]], depth: int) -> list[Trail]:
    """Where the trails end that lead back from a value, at most `depth` steps away; each once."""
    ends: list[Trail] = []
    visited: set[tuple[int, int | None]] = set()
    open_ = [(start, 0)]
    while open_:
        trail, steps = open_.pop()
        _, node, item = trail
        if (id(node), item) in visited:
            continue
        visited.add((id(node), item))
        nexts = step(trail) if steps < depth else []
        if not nexts:
            ends.append(trail)
        open_ += [(further, steps + 1) for further in reversed(nexts)]
    return ends


class Origins:
    """Assignment tracking for one script. Build once per script and ask `of`, `kind`, `is_a`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._steps: dict[tuple[cst.CSTNode, int | None], Steps | None] = {}
        self._definitions: dict[cst.CSTNode, cst.FunctionDef | cst.ClassDef | None] = {}

    # ------------------------------------------------------------------ bindings

    @cached_property
    def bindings(self) -> dict[tuple[cst.CSTNode, str], list[Binding]]:
        """(scope, dotted name) -> what was assigned to it, in source order."""
        by_scope: dict[tuple[cst.CSTNode, str], list[Binding]] = {}

        def bind(target: cst.BaseExpression, binding: Binding) -> None:
            if isinstance(target, cst.Tuple | cst.List):
                for index, element in enumerate(target.elements):
                    bind(element.value, Binding(binding.value, index, binding.loop))
                return
            name = dotted(target)
            if name is not None:
                by_scope.setdefault((self._scope(target, name), name), []).append(binding)

        all_ = self.script.all
        pairs: list[tuple[cst.BaseExpression, Binding]]
        pairs = [(t.target, Binding(a.value)) for a in all_(cst.Assign) for t in a.targets]
        pairs += [(a.target, Binding(a.value)) for a in all_(cst.AnnAssign) if a.value is not None]
        pairs += [(walrus.target, Binding(walrus.value)) for walrus in all_(cst.NamedExpr)]
        pairs += [(loop.target, Binding(loop.iter, loop=True)) for loop in all_(cst.For)]
        pairs += [(w.asname.name, Binding(w.item)) for w in all_(cst.WithItem) if w.asname is not None]
        for target, binding in pairs:
            bind(target, binding)
        return by_scope

    def _scope(self, node: cst.CSTNode, name: str) -> cst.CSTNode:
        """Attributes of `self` belong to the class, other names to the function (or the module)."""
        function = self.script.function_of(node)
        first, dot, _ = name.partition(".")
        if function is not None and dot and first == first_parameter(function):
            return self.owner(function) or function
        return function or self.script.nearest(node, cst.ClassDef) or self.script.module

    def _look_up(self, node: cst.CSTNode) -> tuple[cst.FunctionDef | None, list[Binding]]:
        """(the function whose parameter a name is where it stands, bindings of the name): one of the two, or neither."""
        if (name := dotted(node)) is None:
            return None, []
        scope = self._scope(node, name)
        while True:
            if (scope, name) in self.bindings:
                return None, self.bindings[scope, name]
            if isinstance(scope, cst.FunctionDef) and name in parameters(scope):
                return scope, []
            if scope is self.script.module:
                return None, []
            scope = self.script.function_of(scope) or self.script.module

    def bindings_of(self, node: cst.CSTNode) -> list[Binding]:
        """Bindings of a name or attribute as seen from where it stands; empty for parameters and unknown names."""
        return self._look_up(node)[1]

    def parameter_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function whose parameter a name is, where nothing rebinds it."""
        return self._look_up(node)[0]

    # ------------------------------------------------------------------ definitions and their callers

    @cached_property
    def definitions(self) -> dict[str, list[cst.FunctionDef | cst.ClassDef]]:
        """Functions, methods and classes of the script by their last name."""
        by_name: dict[str, list[cst.FunctionDef | cst.ClassDef]] = {}
        every: list[cst.FunctionDef | cst.ClassDef]
        every = [*self.script.all(cst.FunctionDef), *self.script.all(cst.ClassDef)]
        for definition in every:
            by_name.setdefault(definition.name.value, []).append(definition)
        return by_name

    def definition(self, func: cst.BaseExpression) -> cst.FunctionDef | cst.ClassDef | None:
        """The function or class of this script that an expression names, when there is exactly one."""
        if func not in self._definitions:
            self._definitions[func] = self._definition(func)
        return self._definitions[func]

    def _definition(self, func: cst.BaseExpression) -> cst.FunctionDef | cst.ClassDef | None:
        if self.script.qualified(func) is not None:
            return None
        if isinstance(func, cst.Name):
            matches = [d for d in self.definitions.get(func.value, []) if self.owner(d) is None]
        elif isinstance(func, cst.Attribute):
            owner = self.class_of(func.value)
            matches = [
                d for d in self.definitions.get(func.attr.value, []) if owner and self.owner(d) is owner
            ]
        else:
            return None
        return matches[0] if len(matches) == 1 else None

    def owner(self, definition: cst.CSTNode) -> cst.ClassDef | None:
        """The class that a method is defined in; None for a function, and for one inside a method."""
        up = self.script.nearest(definition, cst.ClassDef, cst.FunctionDef)
        return up if isinstance(up, cst.ClassDef) else None

    def class_of(self, receiver: cst.BaseExpression) -> cst.ClassDef | None:
        """The class of this script that a receiver is an instance of: `self`, `Trainer(...)`, or a name bound to one."""
        function = self.script.function_of(receiver)
        own = first_parameter(function) if function is not None else None
        if function is not None and own is not None and dotted(receiver) == own:
            return self.owner(function)
        bindings = self.bindings_of(receiver)
        construction = bindings[0].value if len(bindings) == 1 and not bindings[0].loop else receiver
        if not isinstance(construction, cst.Call) or not isinstance(construction.func, cst.Name):
            return None
        classes = [
            d for d in self.definitions.get(construction.func.value, []) if isinstance(d, cst.ClassDef)
        ]
        return classes[0] if len(classes) == 1 else None

    def returns(self, function: cst.FunctionDef) -> list[cst.BaseExpression]:
        """The values of its own `return` statements, not those of functions inside it; a bare `return` has none."""
        return [
            r.value
            for r in self.script.all(cst.Return, within=function)
            if r.value is not None and self.script.function_of(r) is function
        ]

    @cached_property
    def _callers(self) -> dict[cst.CSTNode, list[cst.Call]]:
        calls: dict[cst.CSTNode, list[cst.Call]] = {}
        for call in self.script.all(cst.Call):
            target = self.definition(call.func)
            if isinstance(target, cst.ClassDef):
                target = method_of(target, "__init__")
            if target is not None:
                calls.setdefault(target, []).append(call)
        return calls

    def callers(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Calls of a function in this script."""
        return self._callers.get(function, [])

    def _arguments_for(self, function: cst.FunctionDef, name: str) -> list[cst.BaseExpression]:
        """What the callers in this script pass for a parameter."""
        arguments = [self.argument_for(function, name, call) for call in self.callers(function)]
        return [value for value in arguments if value is not None]

    def argument_for(self, function: cst.FunctionDef, name: str, call: cst.Call) -> cst.BaseExpression | None:
        """What a call passes for a parameter of a function of this script, which may be its default; None where it
        cannot be seen."""
        names = parameters(function)
        position = names.index(name) - (self.owner(function) is not None)
        arg = argument(call, name, position)
        if arg is not None:
            return arg.value
        return None if any(a.star for a in call.args) else default_of(function, name)

    # ------------------------------------------------------------------ origins

    def of(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """The expressions a value can come from: constructions, literals, or the unresolved expression itself.

        Follows names, `self` attributes, parameters to their callers, functions to what they return, and wrappers
        (`enumerate`, `tqdm`, `torch.compile`, `.to(device)`, `accelerator.prepare`) to what they wrap.
        """
        ends = walk((self.script, node, None), self._step, _MAX_DEPTH)
        return list({id(value): value for _, value, _ in ends}.values())

    def _step(self, trail: Trail) -> list[Trail]:
        return [(self.script, value, item) for value, item in self.step(*trail[1:]) or ()]

    def step(self, node: cst.BaseExpression, item: int | None) -> Steps | None:
        """One step back: the expressions this one takes its value from, or None where the trail ends."""
        if (node, item) not in self._steps:
            self._steps[node, item] = self._one_step(node, item)
        return self._steps[node, item]

    def _one_step(self, node: cst.BaseExpression, item: int | None) -> Steps | None:
        if isinstance(node, cst.Name | cst.Attribute):
            return self._step_name(node, item)
        if isinstance(node, cst.Tuple) and item is not None and item < len(node.elements):
            return [(node.elements[item].value, None)]
        if isinstance(node, cst.IfExp):
            return [(node.body, item), (node.orelse, item)]
        if isinstance(node, cst.Await):
            return [(node.expression, item)]
        if isinstance(node, cst.Call):
            return self._step_call(node, item)
        return None

    def _step_name(self, node: cst.Name | cst.Attribute, item: int | None) -> Steps | None:
        function, bindings = self._look_up(node)
        steps = [(b.value, b.item if b.item is not None else item) for b in bindings if not b.loop]
        arguments = self._arguments_for(function, dotted(node) or "") if function is not None else []
        return steps + [(value, item) for value in arguments] or None

    def _step_call(self, call: cst.Call, item: int | None) -> Steps | None:
        arguments = positional(call)
        if self.script.callee(call) in _WRAPPERS and arguments:
            return [(arguments[0], None)]
        if isinstance(call.func, cst.Attribute):
            method = call.func.attr.value
            if method in _PREPARE and arguments:
                return [(arguments[item or 0], None)] if (item or 0) < len(arguments) else None
            if method in _SAME_OBJECT_METHODS:
                return [(call.func.value, None)]
        target = self.definition(call.func)
        if isinstance(target, cst.FunctionDef):
            return [(value, item) for value in self.returns(target)] or None
        return None

    # ------------------------------------------------------------------ kinds

    def is_dataloader(self, node: cst.BaseExpression) -> bool:
        """Whether an origin constructs a DataLoader (or a subclass defined in this script)."""
        return self._constructs(node, lambda name: name in DATALOADERS)

    def is_optimizer(self, node: cst.BaseExpression) -> bool:
        """Whether it constructs one, of torch's or of a class of this script; False for a name of one, and a scheduler."""
        return self._constructs(
            node, lambda name: bool(_OPTIMIZER.fullmatch(name)) and not _NOT_OPTIMIZER.fullmatch(name)
        )

    def is_model(self, node: cst.BaseExpression) -> bool:
        """Whether it constructs an nn.Module, of torch's or of a class of this script; False for a name that holds one."""
        return self._constructs(node, lambda name: bool(_MODULE.fullmatch(name)))

    def constructed_class(self, node: cst.BaseExpression) -> cst.ClassDef | None:
        """The class of this script whose construction is the one call that a value can come from."""
        constructions = [o for o in self.of(node) if isinstance(o, cst.Call)]
        owner = self.definition(constructions[0].func) if len(constructions) == 1 else None
        return owner if isinstance(owner, cst.ClassDef) else None

    def all_are(self, node: cst.BaseExpression, test: Callable[[cst.BaseExpression], bool]) -> bool:
        """Whether every origin of a value satisfies a test."""
        origins = self.of(node)
        return bool(origins) and all(test(o) for o in origins)

    def _constructs(self, node: cst.BaseExpression, test: Callable[[str], bool]) -> bool:
        if not isinstance(node, cst.Call):
            return False
        name = self.script.callee(node)
        if name:
            return test(name)
        target = self.definition(node.func)
        return isinstance(target, cst.ClassDef) and any(test(b) for b in self.bases(target))

    def bases(self, owner: cst.ClassDef) -> set[str]:
        """Qualified names of the imported classes that a class of this script descends from."""
        names: set[str] = set()
        open_, visited = [owner], {owner.name.value}
        while open_:
            for base in open_.pop().bases:
                name = self.script.qualified(base.value)
                local = self.definition(base.value)
                if name is not None:
                    names.add(name)
                elif isinstance(local, cst.ClassDef) and local.name.value not in visited:
                    visited.add(local.name.value)
                    open_.append(local)
        return names


def dataflow_of(script: Script) -> Origins:
    """Assignment tracking of a script, made once and kept with it."""
    if not isinstance(script.tracking, Origins):
        script.tracking = Origins(script)
    return script.tracking


def _params(function: cst.FunctionDef) -> list[cst.Param]:
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def parameters(function: cst.FunctionDef) -> list[str]:
    """Names in the order of the signature, `self` included, without `*args` and `**kwargs`."""
    return [p.name.value for p in _params(function)]


def default_of(function: cst.FunctionDef, name: str) -> cst.BaseExpression | None:
    """None for a parameter without a default, and for a name that is no parameter."""
    return next((p.default for p in _params(function) if p.name.value == name), None)


def first_parameter(function: cst.FunctionDef) -> str | None:
    """None for a function without parameters."""
    names = parameters(function)
    return names[0] if names else None


def method_of(owner: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    """None where the class's own body defines no such method."""
    body = owner.body.body if isinstance(owner.body, cst.IndentedBlock) else []
    return next((s for s in body if isinstance(s, cst.FunctionDef) and s.name.value == name), None)
