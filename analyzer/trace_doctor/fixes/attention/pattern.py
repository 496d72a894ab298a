"""Attention as scripts write it out: product, scale, mask, softmax, dropout, product, over several statements.

Followed backwards from the last product through names that nothing else reads, so that nobody misses the scores that
the fused call never makes. What is not one of the known forms ends in a refusal, never in a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.attention.mask import (
    MINUS_INFINITY,
    boolean_mask,
    callee_of,
    fill_of,
    flat,
    is_last_size,
    is_number,
    is_triangle,
    size_under_root,
)
from trace_doctor.fixes.attention.matmuls import (
    OPERATORS,
    Attention,
    Kind,
    Layer,
    Operand,
    changes,
    product,
    reads,
    scores,
)
from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.place import refusal
from trace_doctor.program.queries.loops import binds, names_in
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
        self.operands: list[tuple[cst.BaseExpression, int]] = []
        """what is evaluated at the last product, and the index of the line that evaluated it before"""

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
        if len(values) == 1 and self.is_module(node, "Softmax", lambda dim: dim in _LAST):
            return Layer("softmax", node), values[0]
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
            finite = self.is_finite(values[2], node)
            return Layer("fill", node, values[0], keeps=True, finite=finite), values[1]
        if value is None:
            return None
        match method, values:
            case "masked_fill" | "masked_fill_", [mask, fill]:
                return Layer("fill", node, mask, finite=self.is_finite(fill, node)), value
            case "mul" | "div" | "add", [operand]:
                return Layer(_METHODS[method], node, operand), value
            case ("to", [like]) if (dotted(like) or "").endswith(".dtype"):
                return Layer("cast", node), value
            case "type_as" | "float", [] | [_]:
                return Layer("cast", node), value
        return None

    def is_finite(self, fill: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Whether masked scores are a large negative number, not minus infinity; raises NoEdit for what leaves weights."""
        fills = fill_of(self.script, fill)
        if fills is None:
            raise self.refuse("masked scores are not so low that their weights are zero", node)
        return fills != MINUS_INFINITY

    def is_dropout(self, call: cst.Call) -> bool:
        """Whether it is the function or a module's call; of a module only where all it can be are nn.Dropout."""
        functional = self.script.callee(call) == "torch.nn.functional.dropout"
        return functional or (len(call.args) == 1 and self.is_module(call, "Dropout"))

    def is_module(self, call: cst.Call, name: str, dim: Callable[[object], bool] = lambda dim: True) -> bool:
        """Whether all that can be called are modules of torch.nn of a name, with such a first argument."""

        def test(origin: cst.BaseExpression) -> bool:
            if not isinstance(origin, cst.Call) or self.script.callee(origin) != f"torch.nn.{name}":
                return False
            given = argument(origin, "dim", 0)
            return dim(None if given is None else literal(given.value))

        return dataflow_of(self.script).all_are(call.func, test)

    # ------------------------------------------------------------------ following names

    def change(self, name: str, before: int) -> tuple[int, cst.BaseSmallStatement, bool] | None:
        """(index, statement, whether under a condition) of the last statement of the block that changes a name; None if
        it is no simple one."""
        for index in range(before - 1, -1, -1):
            line = self.block.body[index]
            branch = line.body.body if isinstance(line, cst.If) and line.orelse is None else [line]
            inside = [part for part in branch if binds(self.script, part, name)]
            statement = _single(inside)
            if statement is not None and changes(statement) == name:
                return index, statement, isinstance(line, cst.If)
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
    ) -> tuple[list[tuple[Layer, int]], tuple[Operand, Operand], int]:
        """All operations from the weights down to the product of query and key, outermost first; and each one's line."""
        layers: list[tuple[Layer, int]] = []
        at = self.at
        for _ in range(24):
            if (pair := scores(self.script, node)) is not None:
                return layers, pair, at
            step = self.layer(node, at)
            if step is not None:
                layers.append((step[0], at))
                node = step[1]
                continue
            if not isinstance(node, cst.Name):
                break
            place = self.change(node.value, at)
            if place is None:
                break
            self.intermediates.append(node.value)
            at, statement, conditional = place
            self.first = min(self.first, at)
            self.match.drop.append(statement)
            node = self.behind(node, statement, conditional, at, layers)
        raise self.refuse(f"{self.script.code(node)} is no known form of attention scores", node)

    def behind(
        self,
        name: cst.Name,
        statement: cst.BaseSmallStatement,
        conditional: bool,
        at: int,
        layers: list[tuple[Layer, int]],
    ) -> cst.BaseExpression:
        """What a statement made a name from; an operation in place or under a condition is added to `layers`."""
        if isinstance(statement, cst.Assign) and not conditional:
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
        if conditional and layer.kind not in ("fill", "add"):
            raise self.refuse("the scores are changed under a condition", statement)
        layers.append((replace(layer, statement=statement) if conditional else layer, at))
        return inner

    # ------------------------------------------------------------------ judging

    def read(self, weights: cst.BaseExpression, value: Operand, swapped: bool) -> Attention:
        """The attention that ends in this product; raises NoEdit where a part of it is not provably the same."""
        layers, (query, key), begin = self.layers(weights)
        kinds = [layer.kind for layer, _ in layers]
        if kinds.count("softmax") != 1:
            raise self.refuse("there is not exactly one softmax", self.match.matmul)
        softmax = kinds.index("softmax")
        for layer, at in layers[:softmax]:
            if layer.kind not in ("dropout", "cast"):
                raise self.refuse("the weights are changed between softmax and matmul", layer.node)
            if layer.kind == "dropout":
                self.set_dropout(layer, at)
        factors: list[tuple[Kind, cst.BaseExpression, int]] = []
        for index, (layer, at) in enumerate(layers[softmax + 1 :]):
            if layer.kind in ("fill", "add"):
                self.set_mask(layer, at, scaled_later=bool(factors))
            elif layer.operand and layer.statement is None:
                factors.append((layer.kind, layer.operand, at))
            elif layer.kind != "cast" or index:
                raise self.refuse("this comes before the softmax in no known form of attention", layer.node)
        node = query.node
        if isinstance(node, cst.BinaryOperation) and node.lpar and isinstance(node.operator, cst.Multiply):
            factors.append(("multiply", node.right, begin))
            query = replace(query, node=node.left)
        self.set_scale(factors, query.node, key.node)
        self.match.query, self.match.key = self.operand(query, begin), self.operand(key, begin)
        self.match.value, self.match.swapped = self.operand(value, self.at), swapped
        self.check_query(query)
        self.check_reads()
        self.check_moved()
        return self.match

    def keep(self, node: cst.BaseExpression, at: int) -> str:
        """The text of an expression that line `at` evaluated and the last product evaluates now."""
        self.operands.append((node, at))
        return flat(self.script, node)

    def operand(self, operand: Operand, at: int) -> str:
        """The text of a query, key or value with heads before tokens."""
        text = self.keep(operand.node, at)
        if not operand.swapped:
            return text
        return f"{f'({text})' if isinstance(operand.node, cst.BinaryOperation) else text}.transpose(1, 2)"

    def check_query(self, query: Operand) -> None:
        """A mask under a condition changes the query where it stands, so the query needs a name that nothing reads later."""
        if self.match.condition is None or self.match.no_key is None:
            return
        script, end = self.script, self.script.span(self.match.condition)[1]
        name = query.node.value if isinstance(query.node, cst.Name) and not query.swapped else ""
        later = any(script.span(n)[0] >= end for n in reads(script, name, self.function))
        if (
            not name
            or later
            or any(name in names_in(script, o) for o, _ in self.operands if o is not query.node)
        ):
            raise self.refuse(
                "the query has no name of its own, which a mask under a condition changes", query.node
            )

    def set_dropout(self, layer: Layer, at: int) -> None:
        """`dropout_p` has no `training` beside it, so 0 has to be passed in evaluation."""
        call, script = layer.node, self.script
        assert isinstance(call, cst.Call)
        if self.match.dropout is not None:
            raise self.refuse("there are two dropouts", call)
        if script.callee(call) != "torch.nn.functional.dropout":
            module = self.keep(call.func, at)
            self.match.dropout = f"{module}.p if {module}.training else 0.0"
            return
        p, training = argument(call, "p", 1), argument(call, "training", 2)
        chance = "0.5" if p is None else self.keep(p.value, at)
        if p is not None and isinstance(p.value, cst.IfExp):
            chance = f"({chance})"
        if training is not None and literal(training.value) is not True:
            chance = f"{chance} if {self.keep(training.value, at)} else 0.0"
        self.match.dropout = chance

    def set_mask(self, layer: Layer, at: int, *, scaled_later: bool) -> None:
        """`scaled_later`: a factor is applied to what the mask was applied to; raises NoEdit for a second mask."""
        if self.match.mask is not None or self.match.causal:
            raise self.refuse("there are two masks", layer.node)
        assert layer.operand is not None
        mask, condition = flat(self.script, layer.operand), layer.statement
        if layer.kind == "add":
            if scaled_later:
                raise self.refuse("the mask is scaled together with the scores", layer.node)
            causal = is_triangle(self.script, layer.operand, lower=False, additive=True)
            condition = None if condition is not None and self.is_unless_none(condition, mask) else condition
        else:
            mask, no_key, causal = boolean_mask(self.script, layer.operand, keeps=layer.keeps)
            self.match.no_key = no_key if layer.finite and not causal else None
        self.match.causal = causal and condition is None
        self.match.mask = None if self.match.causal else mask
        self.match.condition = condition
        if condition is None:
            self.operands.append((layer.operand, at))

    def is_unless_none(self, statement: cst.BaseSmallStatement, mask: str) -> bool:
        """Whether a statement is all that `if mask is not None:` has: the mask itself is the argument then."""
        block = self.script.nearest(statement, cst.IndentedBlock)
        condition = self.script.parent(block) if block is not None and len(block.body) == 1 else None
        return isinstance(condition, cst.If) and flat(self.script, condition.test) == f"{mask} is not None"

    def set_scale(
        self,
        factors: list[tuple[Kind, cst.BaseExpression, int]],
        query: cst.BaseExpression,
        key: cst.BaseExpression,
    ) -> None:
        """Without factors 1.0, for 1/sqrt(last size) the default; raises NoEdit for more than one factor, and for what may
        be a tensor."""
        if not factors:
            self.match.scale = "1.0"
            return
        if len(factors) > 1:
            raise self.refuse("the scores are scaled more than once", factors[0][1])
        kind, factor, at = factors[0]
        size = size_under_root(self.script, factor, inverse=kind == "multiply")
        if size is not None and is_last_size(self.script, size, query, key):
            return
        if not is_number(self.script, factor):
            raise self.refuse("the scale may be a tensor, and the fused call takes a number", factor)
        text = self.keep(factor, at)
        simple = isinstance(factor, cst.Name | cst.Attribute | cst.Call | cst.Float | cst.Integer)
        self.match.scale = text if kind == "multiply" else f"1 / {text if simple else f'({text})'}"

    def check_reads(self) -> None:
        """Nothing but the chain reads an intermediate result."""
        script = self.script
        begin, end = script.span(self.block.body[self.first])[0], script.span(self.block.body[self.at])[1]
        operands = {n for node, _ in self.operands for n in names_in(script, node)}
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
        """No statement gives an operand another value between where it was evaluated and the last product."""
        for node, at in self.operands:
            names = names_in(self.script, node)
            for line in self.block.body[at : self.at]:
                if _single([line]) in self.match.drop:
                    continue
                if any(binds(self.script, line, n) for n in names):
                    raise self.refuse("an operand gets another value between the matmuls", line)


def _single(lines: Sequence[cst.CSTNode]) -> cst.BaseSmallStatement | None:
    """The small statement that stands alone on the only line there is."""
    line = lines[0] if len(lines) == 1 else None
    return line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
