"""Programs of many linears on a GPU: in one launch, whose linears share their code, and in parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tilegen.kernels import compiled
from tilegen.kernels.launches import MultiLaunchKernel
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]


@tg.spec
def net(M=64, N=40, widths=(256, 320, 72, 1000), dtype="bfloat16"):
    """Linears of several widths; some with a bias, some with an earlier result added."""
    x, before, made = tg.input("x", (M, widths[-1]), dtype), widths[-1], dict[int, Any]()
    for n in range(N):
        wide = widths[n % len(widths)]
        y = tg.linear(x, tg.weight(f"w{n}", (wide, before), dtype), name=f"l{n}")
        if n % 3 == 0:
            y = tg.add(y, tg.weight(f"b{n}", (wide,), dtype), name=f"z{n}")
        elif wide in made and n % 2:
            y = tg.add(y, made[wide], name=f"r{n}")
        x, before = tg.silu(y, name=f"h{n}"), wide
        made[wide] = x
    return x


@pytest.mark.parametrize("M", [1, 17, 64, 200, 1000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_linears_that_share_their_code_give_the_program(M: int, dtype: str) -> None:
    program = net(M=M, dtype=dtype)
    kernel = tg.compile(program, "cuda", lowering="persistent")
    assert "tg_member_of_" in kernel.source
    given = random_arguments(program, 0, "cuda")
    wanted = tg.reference(program, *given)
    weights = {t.name: a for t, a in zip(program.arguments, given, strict=True) if t.role == "weight"}
    for y in (kernel(*given), kernel.prepare(**weights)(given[0])):
        assert float((y.float() - wanted).norm() / wanted.norm()) < 0.03
    kernel.check()


@pytest.mark.parametrize("M", [16, 300])
def test_more_than_a_launch_takes_are_parts(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the ops are not launched alone: one of them may have no launch of its own."""
    monkeypatch.setattr(compiled, "settled_lowering", lambda *given: ("persistent", False))
    program = net(M=M, N=130, widths=(128, 192))
    kernel = tg.compile(program, "cuda")
    assert isinstance(kernel, MultiLaunchKernel) and len(kernel.plans) == 2 and kernel.proof.ok
    given = random_arguments(program, 0, "cuda")
    weights = {t.name: a for t, a in zip(program.arguments, given, strict=True) if t.role == "weight"}
    bound = kernel.prepare(**weights)
    wanted = [kernel(*given), bound(given[0])]
    for y in wanted:
        assert not y.isnan().any()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bound(given[0])
    graph.replay()
    assert torch.equal(y, wanted[1])
    kernel.check()
