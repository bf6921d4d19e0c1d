"""Entries of the table of torch's operators."""

from __future__ import annotations

import inspect

import pytest
import torch

from tilegen.nn.aten import TABLE

OPERATORS = [op for op in TABLE if isinstance(op, torch._ops.OpOverload)]


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_an_entry_takes_what_its_operator_takes(operator: torch._ops.OpOverload) -> None:
    """By position, or by name where the operator asks for that; what no spec says it can then refuse."""
    arguments = operator._schema.arguments
    plain = [a for a in arguments if not a.kwarg_only]
    named = {a.name: a for a in arguments if a.kwarg_only}
    signature = inspect.signature(TABLE[operator])
    signature.bind(None, *plain, **named)
    signature.bind(None, *(a for a in plain if not a.has_default_value()))
