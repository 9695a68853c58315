"""Mutants of a Python file: small wrong changes of its text, each of which a test should notice.

The operators, by the word that a record shows:

comparison: `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `is not`, `in` and `not in` swapped
constant:   an integer 1 higher, an integer 1 lower, a float 1.0 higher
arithmetic: `+` and `-`, `<<` and `>>`, `&` and `|`, `*` and `//` swapped; `/` and `**` become `*`,
            `%` becomes `//`, `^` becomes `&`; the same in assignments with an operator
logic:      `and` and `or` swapped
negation:   `not x` and `-x` become `x`
extremum:   `min` and `max`, `any` and `all`, `floor` and `ceil` and their kin swapped
truth:      `True` and `False` swapped
slice:      a lower or an upper bound left out
removal:    a call that stands alone, an assignment to an attribute or an item, an assignment with
            an operator, `raise`, `break`, `continue` or `del` becomes `pass`
return:     `return x` gives False, 0 or 0.0 where the function is declared so, else None

Left out, since no test should tell: docstrings, annotations, decorators, assertions (`assert` and
`zip(strict=...)`), what an exception, a warning or a progress note says, f-strings (of which Python
3.11 does not know where their parts stand), `__repr__`, `__str__`, `extra_repr`, the names in
`isinstance`, and code under `if TYPE_CHECKING`. Text constants are not changed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
PAIRS = ("min max", "any all", "floor ceil", "amin amax", "minimum maximum", "argmin argmax")
EXTREMA = {a: b for pair in PAIRS for a, b in (pair.split(), reversed(pair.split()))}
DEFAULTS = {"bool": "False", "int": "0", "float": "0.0"}
SHOWN = {"__repr__", "__str__", "extra_repr"}  # functions that only show something


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    span: bytes of the source that `text` replaces. lines: first and last of the statement (of a
    compound one: of its head). at_import: it runs when the module is imported. before, after: the
    lines that change. occurrence: counts equal changes of one function.
    """

    file: str
    function: str
    operator: str
    before: str
    after: str
    line: int
    lines: tuple[int, int]
    at_import: bool
    span: tuple[int, int]
    text: str
    occurrence: int = 0

    @property
    def key(self) -> str:
        """A name that outlives changes elsewhere in the file."""
        parts = (self.file, self.function, self.operator, self.before, self.after)
        return " | ".join((*parts, str(self.occurrence)))

    def order(self, seed: int) -> str:
        """Sorts mutants at random, but each by its key: a change of one moves no other."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()

    def applied(self, source: bytes) -> bytes:
        """The mutated file."""
        start, end = self.span
        return source[:start] + self.text.encode() + source[end:]

    def differs(self, source: bytes) -> bool:
        """Whether the mutated file is Python that computes something else than the source."""
        try:
            changed = compile(self.applied(source), self.file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return _meaning(changed) != _meaning(compile(source, self.file, "exec", dont_inherit=True))


def _meaning(code: CodeType) -> tuple[object, ...]:
    """What a code object computes, whatever its lines are."""
    constants = tuple(
        _meaning(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts
    )
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_code, constants, names, code.co_exceptiontable, code.co_flags


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in its order. Some may not differ from it: `Mutant.differs` tells."""
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for mutant in _Visitor(file, source).mutants():
        seen[mutant.key] += 1
        found.append(replace(mutant, occurrence=seen[mutant.key] - 1))
    return found


class _Visitor:
    """Walks a file, knowing the function and the statement that it is in."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0, *(m.end() for m in re.finditer(b"\n", source))]  # of every line
        self.function: list[str] = []
        self.lines = (1, 1)
        self.at_import = True
        self.returns = ""

    def mutants(self) -> Iterator[Mutant]:
        """Every mutant of the file."""
        for statement in ast.parse(self.source).body:
            yield from self._statement(statement)

    # --- where things stand -------------------------------------------------------------------

    def _offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        start = self._offset(node.lineno, node.col_offset)
        return start, self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _change(self, operator: str, span: tuple[int, int], text: str) -> Mutant:
        """The mutant in which `text` stands in place of a span of the source."""
        start, end = span
        first = self.source.rfind(b"\n", 0, start) + 1
        last = self.source.find(b"\n", end)
        last = len(self.source) if last < 0 else last
        before = self.source[first:last].decode()
        after = (self.source[first:start] + text.encode() + self.source[end:last]).decode()
        return Mutant(
            self.file,
            ".".join(self.function) or "module",
            operator,
            " ".join(before.split()),
            " ".join(after.split()),
            self.source.count(b"\n", 0, start) + 1,
            self.lines,
            self.at_import,
            span,
            text,
        )

    def _between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int] | None:
        """Where an operator stands between its operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(pattern.encode(), self.source[start:end])
        return None if found is None else (start + found.start(), start + found.end())

    # --- statements ---------------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._definition(node)
            return
        if isinstance(node, ast.ClassDef):
            self.function.append(node.name)
            for inner in _without_docstring(node.body):
                yield from self._statement(inner)
            self.function.pop()
            return
        if _left_out(node):
            return
        body = getattr(node, "body", getattr(node, "cases", None))
        self.lines = (node.lineno, node.end_lineno or node.lineno)
        if body:
            first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
            self.lines = (node.lineno, max(node.lineno, first.lineno - 1))
        if isinstance(node, ast.Raise):
            yield self._change("removal", self._span(node), "pass")
            return
        if _removable(node):
            yield self._change("removal", self._span(node), "pass")
        if isinstance(node, ast.Return) and node.value is not None:
            default = DEFAULTS.get(self.returns, "None")
            if self._text(node.value) != default:
                yield self._change("return", self._span(node.value), default)
        if isinstance(node, ast.AugAssign):
            yield from self._augmented(node)
        if isinstance(node, ast.AnnAssign):
            yield from self._children(node.value)
            return
        yield from self._children(node)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        if node.name in SHOWN:
            return
        outer = self.lines, self.at_import, self.returns
        self.function.append(node.name)
        self.lines = (node.lineno, max(node.lineno, node.body[0].lineno - 1))
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from self._expression(default)
        self.at_import = False
        self.returns = "" if node.returns is None else self._text(node.returns)
        for inner in _without_docstring(node.body):
            yield from self._statement(inner)
        self.function.pop()
        self.lines, self.at_import, self.returns = outer

    def _augmented(self, node: ast.AugAssign) -> Iterator[Mutant]:
        sign, other = ARITHMETIC.get(type(node.op), ("", ""))
        place = self._between(node.target, node.value, re.escape(sign + "="))
        if sign and place is not None and not _is_text(node.value):
            yield self._change("arithmetic", place, other + "=")

    def _children(self, node: ast.AST | None) -> Iterator[Mutant]:
        """Mutants of the parts of a node, statements and expressions."""
        if node is None:
            return
        if isinstance(node, ast.expr):
            yield from self._expression(node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                held = self.lines
                yield from self._statement(child)
                self.lines = held
            else:
                yield from self._children(child)

    # --- expressions --------------------------------------------------------------------------

    def _expression(self, node: ast.expr) -> Iterator[Mutant]:
        match node:
            case ast.JoinedStr():
                return
            case ast.Constant():
                yield from self._constant(node)
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for op, left, right in zip(node.ops, operands[:-1], operands[1:], strict=True):
                    pattern, other = COMPARISONS[type(op)]
                    if (place := self._between(left, right, pattern)) is not None:
                        yield self._change("comparison", place, other)
            case ast.BinOp() if type(node.op) in ARITHMETIC and not self._of_types(node):
                sign, other = ARITHMETIC[type(node.op)]
                place = self._between(node.left, node.right, re.escape(sign))
                if place is not None and not (_is_text(node.left) or _is_text(node.right)):
                    yield self._change("arithmetic", place, other)
            case ast.BoolOp():
                word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values[:-1], node.values[1:], strict=True):
                    if (place := self._between(left, right, rf"\b{word}\b")) is not None:
                        yield self._change("logic", place, other)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                if not isinstance(operand, ast.Constant):
                    yield self._change("negation", self._span(node), f"({self._text(operand)})")
            case ast.Subscript(slice=ast.Slice() as bounds):
                for bound in (bounds.lower, bounds.upper):
                    if bound is not None:
                        yield self._change("slice", self._span(bound), "")
            case ast.Call():
                yield from self._call(node)
                return
        yield from self._inside(node)

    def _inside(self, node: ast.expr) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    yield from self._expression(part)
            elif isinstance(child, ast.keyword):
                yield from self._expression(child.value)
            elif isinstance(child, ast.arguments):  # of a lambda
                for default in (*child.defaults, *child.kw_defaults):
                    yield from self._children(default)

    def _constant(self, node: ast.Constant) -> Iterator[Mutant]:
        span = self._span(node)
        if isinstance(node.value, bool):
            yield self._change("truth", span, str(not node.value))
        elif isinstance(node.value, int):
            yield self._change("constant", span, str(node.value + 1))
            lower = str(node.value - 1)
            yield self._change("constant", span, lower if node.value else f"({lower})")
        elif isinstance(node.value, float) and abs(node.value) < 1e15:
            yield self._change("constant", span, repr(node.value + 1.0))

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        called = self._text(node.func)
        name = called.rpartition(".")[2]
        if called.startswith(("warnings.", "progress.note", "progress.stage", "progress.track")):
            return
        if name in ("TypeVar", "cast", "NewType"):
            return
        if name in EXTREMA and isinstance(node.func, ast.Name | ast.Attribute):
            end = self._span(node.func)[1]
            yield self._change("extremum", (end - len(name), end), EXTREMA[name])
        if isinstance(node.func, ast.Attribute):
            yield from self._expression(node.func.value)
        arguments = node.args[:1] if name in ("isinstance", "issubclass") else node.args
        for argument in arguments:
            yield from self._expression(argument)
        for keyword in node.keywords:
            if not (name == "zip" and keyword.arg == "strict"):
                yield from self._expression(keyword.value)

    def _of_types(self, node: ast.BinOp) -> bool:
        """Whether this is a union of types: `A | B` where a module or a class is defined."""
        return isinstance(node.op, ast.BitOr) and self.at_import


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    documented = isinstance(first, ast.Expr) and _is_text(first.value)
    return body[1:] if documented else body


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr)


def _left_out(node: ast.stmt) -> bool:
    """Imports, assertions, bare texts, and what runs for type checkers or as a script only."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Expr):
        return _is_text(node.value) or isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        words = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        return bool(words & {"TYPE_CHECKING", "__name__"})
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    )


def _removable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    return isinstance(node, ast.AugAssign | ast.Break | ast.Continue | ast.Delete)
