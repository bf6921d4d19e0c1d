"""Arguments that do not fit a MultiLaunchKernel: refused in the program's words, before anything is
launched."""

from __future__ import annotations

import pytest
import torch
from test_launches import PROGRAMS, compiled, stream  # noqa: F401

from tilegen.errors import ArgumentError
from tilegen.runtime.data import random_arguments


def test_arguments() -> None:
    program = PROGRAMS["mlp"]()
    found, (x, w1, w2) = compiled(program), random_arguments(program)
    for given, message in (
        ((x, w1), "mlp takes 3 tensors"),
        ((x, w1, w2.float()), "'w2': expected dtype bfloat16"),
        ((x[:1], w1, w2), "'x': expected shape"),
        ((x, w1, w2.mT.contiguous().mT), "contiguous"),
    ):
        with pytest.raises(ArgumentError, match=message):
            found(*given)
    with pytest.raises(ArgumentError, match="shares memory with 'x'"):
        found(x, w1, w2, out=x)
    with pytest.raises(ArgumentError, match="mlp has 1 outputs, 2 were given"):
        found(x, w1, w2, out=(torch.empty_like(x), torch.empty_like(x)))
    with pytest.raises(ArgumentError, match="'h' is not an argument of mlp"):
        found.prepare(h=x)
    with pytest.raises(ArgumentError, match="mlp, prepared, takes 1 tensors"):
        found.prepare(w1=w1, w2=w2)(x, w1, w2)
    assert all(launch.calls == 0 for launch in found._launches)  # type: ignore[attr-defined]
