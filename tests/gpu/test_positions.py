"""A position that leaves no room in a cache: nothing is written outside of it, and the next call says which
tensor, which value, which limit."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.ops import CACHED, PASSED, cached
from tilegen.errors import ArgumentError
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient"),
]
GUARD = 4096  # elements around a cache
ROWS = [
    Case("appends that turn rows", cached, {"roped": True, "S": 3}, {"appends": "awaited"}),
    *CACHED,
    *PASSED,
]


def guarded(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(A tensor of ones between guards, the whole)"""
    whole = torch.ones(like.numel() + 2 * GUARD, dtype=like.dtype, device="cuda")
    return whole[GUARD:-GUARD].view(like.shape), whole


@pytest.mark.parametrize("beyond", [1, 63, 1 << 20, -1, -(1 << 30)])
@pytest.mark.parametrize("case", ROWS, ids=lambda c: c.name)
def test_nothing_is_written_outside(case: Case, beyond: int) -> None:
    program = case.program
    kernel = tg.compile(program, "cuda", lowering="persistent", **case.options)
    names = [t.name for t in program.arguments]
    arguments = [a.cuda() for a in random_arguments(program)]
    wholes = []
    for n, t in enumerate(program.arguments):
        if t.role == "state":
            arguments[n], whole = guarded(arguments[n])
            wholes.append(whole)
    pos = arguments[names.index("pos")]
    most = int(pos[0])
    pos.fill_(most + beyond if beyond > 0 else beyond)
    kernel(*arguments)
    torch.cuda.synchronize()
    assert all(bool((whole == 1).all()) for whole in wholes), "an append wrote without room"
    words = (
        rf"'pos' is {int(pos[0])}: .* needs 0 ≤ position ≤ {most} \(.* rows in a cache of"
        rf" {case.sizes.get('S_max', 300)}\)"
    )
    pos.fill_(most)
    with pytest.raises(ArgumentError, match=words):
        kernel(*arguments)
    kernel(*arguments)  # said once
    kernel.check()  # type: ignore[attr-defined]
    assert not all(bool((whole == 1).all()) for whole in wholes)
