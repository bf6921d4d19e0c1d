"""An epilogue's expression as C++: functions whose names C++ has already go by others, and numbers beside
operands are floats, as e0 * 0.5 would be a product of doubles."""

from __future__ import annotations

import ast
from typing import Any

TAKEN = frozenset({"tanh", "exp", "log", "sqrt", "rsqrt", "abs"})


def to_cpp(expression: str, prefix: str) -> str:
    """The expression with `prefix` before the names that are taken; as it is where nothing changes."""
    tree = ast.parse(expression, mode="eval")
    changed = ast.unparse(_Cpp(prefix).visit(tree))
    return expression if changed == ast.unparse(ast.parse(expression, mode="eval")) else changed


class _Cpp(ast.NodeTransformer):
    def __init__(self, prefix: str):
        self.prefix = prefix

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        assert isinstance(node.func, ast.Name)
        if node.func.id in TAKEN:
            node.func = ast.Name(self.prefix + node.func.id)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        node.left, node.right = (self._float(side) for side in (node.left, node.right))
        return self.generic_visit(node)

    def _float(self, side: ast.expr) -> ast.expr:
        match side:
            case ast.Constant(value=float(value)):
                return ast.Name(f"{value!r}f")
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float(value))):
                return ast.UnaryOp(ast.USub(), ast.Name(f"{value!r}f"))
        return side
