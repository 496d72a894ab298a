"""Attention as scripts write it out: product, scale, mask, softmax, dropout, product, over several statements.

Followed backwards from the last product through names that nothing else reads, so that nobody misses the scores that
the fused call never makes. What is not one of the known forms ends in a refusal, never in a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.attention.mask import (
    additive_mask,
    boolean_mask,
    callee_of,
    flat,
    is_last_size,
    is_minus_infinity,
    size_under_root,
)
from trace_doctor.fixes.attention.matmuls import (
    OPERATORS,
    Attention,
    Kind,
    Layer,
    binds,
    changes,
    product,
    reads,
    scores,
)
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.place import refusal
from trace_doctor.program.queries.loops import names_in
from trace_doctor.program.script import Script, argument, assigned_names, dotted, literal

_LAST = (-1, 3)
_METHODS: dict[str, Kind] = {"mul": "multiply", "div": "divide", "add": "add"}


def find_attention(script: Script, function: cst.FunctionDef) -> list[Attention]:
    """Attention in a function. Raises NoEdit where something is like it, but not provably the same."""
    matches = []
    for kind in (cst.BinaryOperation, cst.Call):
        for node in script.all(kind, within=function):
            pair = product(script, node)
            if pair is None or script.function_of(node) is not function:
                continue
            chain = _Chain(script, node, function)
            if chain.leads(pair[0], chain.at, softmax=True):
                matches.append(chain.read(*pair))
    return matches


class _Chain:
    """Reads one attention backwards from its last product."""

    def __init__(self, script: Script, matmul: cst.BaseExpression, function: cst.FunctionDef) -> None:
        self.script, self.function = script, function
        self.match = Attention(matmul)
        statement = script.statement_of(matmul)
        assert statement is not None
        self.block, self.at = script.block_of(statement)
        self.first = self.at
        self.intermediates: list[str] = []
        """intermediate names"""
        self.operands: list[cst.BaseExpression] = []

    def refuse(self, why: str, node: cst.CSTNode) -> NoEdit:
        """The reason at a node, to be raised."""
        return refusal(self.script, node, why)

    # ------------------------------------------------------------------ one operation

    def layer(self, node: cst.BaseExpression, at: int) -> tuple[Layer, cst.BaseExpression] | None:
        """The outermost operation of an expression, and what it is applied to."""
        script = self.script
        if isinstance(node, cst.BinaryOperation):
            kind = OPERATORS.get(type(node.operator))
            sides = [(node.left, node.right)] + [(node.right, node.left)] * (kind != "divide")
            for side, operand in sides if kind else []:
                if self.leads(side, at):
                    return Layer(kind or "add", node, operand), side
            return None
        if not isinstance(node, cst.Call):
            return None
        name, method, value = callee_of(script, node)
        values = [a.value for a in node.args]
        if name in ("torch.softmax", "torch.nn.functional.softmax") or method == "softmax":
            inner = value or next(iter(values), None)
            dim, dtype = argument(node, "dim", 1 if value is None else 0), argument(node, "dtype")
            if inner is None or dim is None or literal(dim.value) not in _LAST:
                return None
            if dtype is not None and script.qualified(dtype.value) not in ("torch.float32", "torch.float"):
                return None
            return Layer("softmax", node), inner
        if self.is_dropout(node) and values:
            return Layer("dropout", node), values[0]
        if name == "torch.where" and len(values) == 3:
            return Layer("fill", node, self.fill_mask(values[0], values[2], node), keeps=True), values[1]
        if value is None:
            return None
        match method, values:
            case "masked_fill" | "masked_fill_", [mask, fill]:
                return Layer("fill", node, self.fill_mask(mask, fill, node)), value
            case "mul" | "div" | "add", [operand]:
                return Layer(_METHODS[method], node, operand), value
            case ("to", [like]) if (dotted(like) or "").endswith(".dtype"):
                return Layer("cast", node), value
            case "type_as" | "float", [] | [_]:
                return Layer("cast", node), value
        return None

    def fill_mask(
        self, mask: cst.BaseExpression, fill: cst.BaseExpression, node: cst.CSTNode
    ) -> cst.BaseExpression:
        """`mask`, where what it fills in is minus infinity; raises NoEdit for any other number."""
        if not is_minus_infinity(self.script, fill):
            why = "masked scores are not minus infinity, so rows that are masked entirely would come out differently"
            raise self.refuse(why, node)
        return mask

    def is_dropout(self, call: cst.Call) -> bool:
        """Whether it is the function or a module's call; of a module only where all it can be are nn.Dropout."""
        if self.script.callee(call) == "torch.nn.functional.dropout":
            return True
        all_are, name = dataflow_of(self.script).all_are, "torch.nn.Dropout"
        return len(call.args) == 1 and all_are(call.func, lambda o: self.script.callee(o) == name)

    # ------------------------------------------------------------------ following names

    def change(self, name: str, before: int) -> tuple[int, cst.BaseSmallStatement, cst.If | None] | None:
        """(index, statement, condition) of the last statement of the block that changes a name; None if it is no
        simple one."""
        for index in range(before - 1, -1, -1):
            line = self.block.body[index]
            condition = line if isinstance(line, cst.If) else None
            statement = _single(condition.body.body if condition is not None else [line])
            if statement is not None and changes(statement) == name:
                return index, statement, condition
            if binds(self.script, line, name):
                return None
        return None

    def leads(self, node: cst.BaseExpression, at: int, *, softmax: bool = False, depth: int = 0) -> bool:
        """Whether an expression is a chain that starts at scores (with `softmax`: weights), without judging it."""
        if depth > 12:
            return False
        if not softmax and scores(self.script, node) is not None:
            return True
        try:
            step = self.layer(node, at) if not isinstance(node, cst.BinaryOperation) else None
        except NoEdit:
            return True
        inner: list[tuple[cst.BaseExpression, int]] = []
        if step is not None:
            if softmax and step[0].kind == "softmax":
                return True
            inner = [(step[1], at)]
        elif isinstance(node, cst.BinaryOperation) and type(node.operator) in OPERATORS:
            inner = [(node.left, at), (node.right, at)]
        elif isinstance(node, cst.Name) and (place := self.change(node.value, at)) is not None:
            inner = [(place[1].value if isinstance(place[1], cst.Assign) else node, place[0])]
        return any(self.leads(n, before, softmax=softmax, depth=depth + 1) for n, before in inner)

    def layers(
        self, node: cst.BaseExpression
    ) -> tuple[list[Layer], tuple[cst.BaseExpression, cst.BaseExpression]]:
        """All operations from the weights down to the product of query and key, outermost first."""
        layers: list[Layer] = []
        at = self.at
        for _ in range(24):
            if (pair := scores(self.script, node)) is not None:
                return layers, pair
            step = self.layer(node, at)
            if step is not None:
                layers.append(step[0])
                node = step[1]
                continue
            if not isinstance(node, cst.Name):
                break
            place = self.change(node.value, at)
            if place is None:
                break
            self.intermediates.append(node.value)
            at, statement, condition = place
            self.first = min(self.first, at)
            self.match.drop.append(condition or statement)
            node = self.behind(node, statement, condition, at, layers)
        raise self.refuse(f"{self.script.code(node)} is no known form of attention scores", node)

    def behind(
        self,
        name: cst.Name,
        statement: cst.BaseSmallStatement,
        condition: cst.If | None,
        at: int,
        layers: list[Layer],
    ) -> cst.BaseExpression:
        """What a statement made a name from; an operation in place or under a condition is added to `layers`."""
        if isinstance(statement, cst.Assign) and condition is None:
            return statement.value
        step: tuple[Layer, cst.BaseExpression] | None = None
        if isinstance(statement, cst.AugAssign):
            kind = OPERATORS.get(type(statement.operator))
            step = (Layer(kind, statement, statement.value), statement.target) if kind else None
        elif isinstance(statement, cst.Assign | cst.Expr):
            step = self.layer(statement.value, at)
        if step is None or dotted(step[1]) != name.value:
            raise self.refuse("the scores are changed in a way that attention does not know", statement)
        layer, inner = step
        layers.append(layer if condition is None else replace(layer, unless_none=self.guard_of(condition)))
        return inner

    def guard_of(self, condition: cst.If) -> str:
        """`mask` of `if mask is not None:` without another branch."""
        test = condition.test
        if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 and condition.orelse is None:
            against = test.comparisons[0]
            name = dotted(test.left)
            if isinstance(against.operator, cst.IsNot) and literal(against.comparator) is None and name:
                return name
        raise self.refuse("the scores are changed under a condition", condition)

    # ------------------------------------------------------------------ judging

    def read(self, weights: cst.BaseExpression, value: cst.BaseExpression) -> Attention:
        """The attention that ends in this product; raises NoEdit where a part of it is not provably the same."""
        layers, (query, key) = self.layers(weights)
        kinds = [layer.kind for layer in layers]
        if kinds.count("softmax") != 1:
            raise self.refuse("there is not exactly one softmax", self.match.matmul)
        softmax = kinds.index("softmax")
        for layer in layers[:softmax]:
            if layer.kind not in ("dropout", "cast"):
                raise self.refuse("the weights are changed between softmax and matmul", layer.node)
            if layer.kind == "dropout":
                self.set_dropout(layer)
        factors: list[tuple[Kind, cst.BaseExpression]] = []
        for index, layer in enumerate(layers[softmax + 1 :]):
            if layer.kind in ("fill", "add"):
                self.set_mask(layer, scaled_later=bool(factors))
            elif layer.operand and layer.unless_none is None:
                factors.append((layer.kind, layer.operand))
            elif layer.kind != "cast" or index:
                raise self.refuse("this comes before the softmax in no known form of attention", layer.node)
        if isinstance(query, cst.BinaryOperation) and query.lpar and isinstance(query.operator, cst.Multiply):
            factors.append(("multiply", query.right))
            query = query.left
        self.set_scale(factors, query, key)
        self.match.query, self.match.key, self.match.value = map(self.keep, (query, key, value))
        self.check_reads()
        self.check_moved()
        return self.match

    def keep(self, node: cst.BaseExpression) -> str:
        """The text of an operand, which is now evaluated at the last product."""
        self.operands.append(node)
        return flat(self.script, node)

    def set_dropout(self, layer: Layer) -> None:
        """`dropout_p` has no `training` beside it, so 0 has to be passed in evaluation."""
        call, script = layer.node, self.script
        assert isinstance(call, cst.Call)
        if self.match.dropout is not None:
            raise self.refuse("there are two dropouts", call)
        if script.callee(call) != "torch.nn.functional.dropout":
            module = self.keep(call.func)
            self.match.dropout = f"{module}.p if {module}.training else 0.0"
            return
        p, training = argument(call, "p", 1), argument(call, "training", 2)
        chance = "0.5" if p is None else self.keep(p.value)
        if p is not None and isinstance(p.value, cst.IfExp):
            chance = f"({chance})"
        if training is not None and literal(training.value) is not True:
            chance = f"{chance} if {self.keep(training.value)} else 0.0"
        self.match.dropout = chance

    def set_mask(self, layer: Layer, *, scaled_later: bool) -> None:
        """`scaled_later`: a factor is applied to what the mask was applied to; raises NoEdit for a second mask."""
        if self.match.mask is not None or self.match.causal:
            raise self.refuse("there are two masks", layer.node)
        assert layer.operand is not None
        self.operands.append(layer.operand)
        if layer.kind == "add":
            if scaled_later:
                raise self.refuse("the mask is scaled together with the scores", layer.node)
            mask, causal = additive_mask(self.script, layer.operand)
        elif layer.keeps:
            mask, causal = flat(self.script, layer.operand), False
        else:
            mask, causal = boolean_mask(self.script, layer.operand)
        if layer.unless_none is not None:
            if causal:
                raise self.refuse("a causal mask is applied under a condition", layer.node)
            mask = mask if mask == layer.unless_none else f"None if {layer.unless_none} is None else {mask}"
        self.match.mask, self.match.causal = mask, causal

    def set_scale(
        self,
        factors: list[tuple[Kind, cst.BaseExpression]],
        query: cst.BaseExpression,
        key: cst.BaseExpression,
    ) -> None:
        """Without factors 1.0, for 1/sqrt(last size) the default; raises NoEdit for more than one factor."""
        if not factors:
            self.match.scale = "1.0"
            return
        if len(factors) > 1:
            raise self.refuse("the scores are scaled more than once", factors[0][1])
        kind, factor = factors[0]
        size = size_under_root(self.script, factor, inverse=kind == "multiply")
        if size is not None and is_last_size(self.script, size, query, key):
            return
        text = self.keep(factor)
        simple = isinstance(factor, cst.Name | cst.Attribute | cst.Call | cst.Float | cst.Integer)
        self.match.scale = text if kind == "multiply" else f"1 / {text if simple else f'({text})'}"

    def check_reads(self) -> None:
        """Nothing but the chain reads an intermediate result."""
        script = self.script
        begin, end = script.span(self.block.body[self.first])[0], script.span(self.block.body[self.at])[1]
        operands = {n for node in self.operands for n in names_in(script, node)}
        for name in dict.fromkeys(self.intermediates):
            everywhere = reads(script, name, self.function)
            if name in operands:
                raise self.refuse(f"{name} is scores and operand at once", self.match.matmul)
            rebound = name in assigned_names(script.statement_of(self.match.matmul))
            inside = [n for n in everywhere if begin <= script.span(n)[0] < end]
            after = [n for n in everywhere if script.span(n)[0] >= end]
            by_chain = sum(len(reads(script, name, line)) for line in (*self.match.drop, self.match.matmul))
            if len(inside) != by_chain or (after and not rebound):
                why = f"{name} is read elsewhere as well, and the fused call does not make it"
                raise self.refuse(why, self.match.matmul)

    def check_moved(self) -> None:
        """No statement in between gives an operand another value."""
        names = {n for node in self.operands for n in names_in(self.script, node)}
        for line in self.block.body[self.first : self.at]:
            goes = line in self.match.drop or _single([line]) in self.match.drop
            if not goes and any(binds(self.script, line, n) for n in names):
                raise self.refuse("an operand gets another value between the matmuls", line)


def _single(lines: Sequence[cst.CSTNode]) -> cst.BaseSmallStatement | None:
    """The small statement that stands alone on the only line there is."""
    line = lines[0] if len(lines) == 1 else None
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
