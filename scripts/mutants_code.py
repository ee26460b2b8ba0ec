"""The mutants of a module: small changes of its code, one at a time, that a test should notice."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Args:
        path: the module, relative to the project.
        first: the number of the first line that changes.
        last: that of the last one.
        source: the whole module after the change.
        diff: the change, as lines that begin with `-` and `+`.
        at_import: whether the change runs when the module is imported, and not in a function.
    """

    path: str
    first: int
    last: int
    source: str
    diff: tuple[str, ...]
    at_import: bool


def mutants(root: Path, path: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    source = (root / path).read_text()
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, FUNCTIONS)]  # outer ones first
    for node, changed in _changes(tree):
        first, last = node.lineno, node.end_lineno or node.lineno
        # Columns count bytes.
        head = lines[first - 1].encode()[: node.col_offset].decode()
        tail = lines[last - 1].encode()[node.end_col_offset :].decode()
        after = f"{head}{changed}{tail}".splitlines(keepends=True)
        around = [each for each in functions if each.lineno <= first and last <= (each.end_lineno or 0)]
        # What is around it need not be parsed again, for each of hundreds of mutants.
        start, end = (around[-1].lineno, around[-1].end_lineno) if around else (1, len(lines))
        try:
            ast.parse(
                "".join(
                    [
                        "if True:\n" if lines[start - 1][0] == " " else "",
                        *lines[start - 1 : first - 1],
                        *after,
                        *lines[last:end],
                    ]
                )
            )
        except SyntaxError:  # such as a parenthesis where none may be
            continue
        diff = [line.rstrip() for line in unified_diff(lines[first - 1 : last], after, n=0)]
        shown = tuple(line for line in diff if line[:3] not in ("---", "+++") and not line.startswith("@@"))
        at_import = not any(each.body[0].lineno <= first for each in around)
        yield Mutant(path, first, last, "".join([*lines[: first - 1], *after, *lines[last:]]), shown, at_import)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Yield each node that can change, and what takes its place."""
    for node in _reached(tree):
        if isinstance(node, ast.stmt):
            yield from ((node, changed) for changed in _statements(node))
        elif isinstance(node, ast.expr):
            yield from ((node, f"({ast.unparse(changed)})") for changed in _expressions(node))


def _reached(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, docstrings, decorators or overloads.

    Nor parts of formatted strings, whose places Python 3.11 does not know, nor what says that something always holds:
    `assert_never` and the `strict=` of `zip`, which no test can see gone.
    """
    for field, value in ast.iter_fields(node):
        if field == "keywords" and _called(node) == "zip":
            continue
        if field in ("annotation", "returns", "decorator_list", "bases", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, FUNCTIONS) and any("overload" in ast.dump(each) for each in child.decorator_list):
                continue
            if isinstance(child, ast.Expr) and (
                isinstance(child.value, ast.Constant) or _called(child.value) == "assert_never"
            ):
                continue
            yield child
            yield from _reached(child)


def _called(node: ast.AST) -> str:
    """Return the name of the function that is called; empty where that has none."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _statements(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Raise():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=compared):
            yield ast.Compare(left, [COMPARED[type(op)]()], compared)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
            yield from values  # one of the conditions alone
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if value + 1 != value else value * 2)  # 1e21 has no next
        case ast.Call(func=func, args=arguments, keywords=named) if named and _called(node) != "zip":
            for index in range(len(named)):
                yield ast.Call(func, arguments, named[:index] + named[index + 1 :])
