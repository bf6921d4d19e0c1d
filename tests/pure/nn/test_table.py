"""Entries of the table of torch's operators."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tilegen.nn.aten import TABLE
from tilegen.nn.table import Entry

OPERATORS = [op for op in TABLE if isinstance(op, torch._ops.OpOverload)]


def takes(entry: Entry, *given: Any, **named: Any) -> bool:
    try:
        inspect.signature(entry).bind(None, *given, **named)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_an_entry_takes_what_its_operator_takes(operator: torch._ops.OpOverload) -> None:
    """By position, or by name where the operator asks for that; what no spec says it can then refuse."""
    arguments = operator._schema.arguments
    plain = [a for a in arguments if not a.kwarg_only]
    named = {a.name: a for a in arguments if a.kwarg_only}
    assert takes(TABLE[operator], *plain, **named)
    assert takes(TABLE[operator], *(a for a in plain if not a.has_default_value()))
