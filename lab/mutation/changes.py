"""The mutants of a file: every change of one expression or statement that a test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
TALK = {"log", "logger", "_log", "_logger", "logging", "warnings"}
"""What is said is not what is done: calls of these are left alone."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change: the text between two places of a file, and what stands there instead."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    kind: str
    text: str

    def apply(self, source: str) -> str:
        """The file's text with this change. Columns count bytes, as Python's own do."""
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.line - 1]) + lines[self.line - 1][: self.column]
        after = lines[self.end_line - 1][self.end_column :] + b"".join(lines[self.end_line :])
        return (before + self.text.encode() + after).decode()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """Every mutant of one file, in the order of its lines."""
    source = (root / file).read_text()
    found = {
        Mutant(file, node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, kind, text)
        for node, kind, text in _changes(ast.parse(source))
    }
    return sorted(mutant for mutant in found if mutant.apply(source) != source)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    for node in _interesting(tree):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                turned = ast.Compare(left=left, ops=[TURNED[type(op)]()], comparators=[right])
                yield node, "comparison turned", f"({ast.unparse(turned)})"
            case ast.BoolOp(op=op, values=values):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield node, "and for or", f"({ast.unparse(ast.BoolOp(op=other, values=values))})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield node, "not left out", f"({ast.unparse(operand)})"
            case ast.Constant(value=bool() as value):
                yield node, "truth turned", str(not value)
            case ast.Constant(value=int() as number):
                yield node, "number changed", str(number + 1)
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield node, "nothing returned", "return None"
            case ast.Raise():
                yield node, "error not raised", "pass"
            case ast.Expr(value=value) if not isinstance(value, ast.Constant) and not _talks(value):
                yield node, "statement left out", "pass"
            case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield node, "assignment left out", "pass"
            case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.BoolOp):
                if not (isinstance(test, ast.UnaryOp) or _is_none(test) or isinstance(test, ast.Constant)):
                    yield test, "condition turned", f"(not {ast.unparse(test)})"
            case _:
                pass


def _interesting(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that says what is done: no annotation, no decorator, no branch for a type checker."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_comment"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_idle(child):
                continue
            yield child
            if not (isinstance(child, ast.Raise) or (isinstance(child, ast.Expr) and _talks(child.value))):
                yield from _interesting(child)


def _is_idle(node: ast.AST) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.JoinedStr() | ast.AnnAssign(value=None):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case _:
            return False


def _talks(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in TALK
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name))):
            return name in TALK
        case _:
            return False


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
