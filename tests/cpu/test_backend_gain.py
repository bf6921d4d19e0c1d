"""What a region gains on an H200 by the model; nothing runs on one."""

from __future__ import annotations

import pytest
import torch

import tilegen as tg
from tilegen.arch.machine import H200
from tilegen.backend import gain
from tilegen.errors import FormError
from tilegen.targets.select import to_write


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "gpu_machine", lambda: H200)
    monkeypatch.setattr(gain, "place", lambda _: to_write("sm_90a", "h200")[0])


@tg.spec
def layer(M=512, N=2048, K=64, dtype="bfloat16"):
    """A product that is worth a launch of its own, and norms that Inductor is faster at."""
    x, w = tg.input("x", (M, K), dtype), tg.weight("w", (N, K), dtype)
    g = tg.weight("g", (N,), dtype)
    y = tg.linear(x, w, name="y")
    for n in range(6):
        y = tg.rms_norm(y, g, name=f"n{n}")
    return y


def test_where_a_region_does_not_pay_all_that_is_behind_is_a_loser() -> None:
    program, cuda = layer(), torch.device("cuda")
    paid = gain.gain(program, cuda, 0.0)
    assert not paid.losers and paid.ratio < 1
    found = gain.gain(program, cuda, 1.02)
    assert set(found.losers) == {f"n{n}" for n in range(6)}


@tg.spec
def odd_heads(S=64, D=36, dtype="bfloat16"):
    q = tg.input("q", (1, S, 4 * D), dtype)
    return tg.attention(tg.relu(q, name="r"), q, q, heads=4, name="a"), tg.silu(q, name="s")


def test_an_op_without_a_form_is_named() -> None:
    with pytest.raises(FormError) as caught:
        gain.gain(odd_heads(), torch.device("cuda"), 1.02)
    assert caught.value.ops == ("a",)
