"""cublasLt's part without the library: which call is taken, with which shape; its struct has the size that
the header gives it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilegen.bench import cublaslt
from tilegen.bench.cublaslt import Shape, fastest, linear
from tilegen.errors import TargetError
from tilegen.runtime import timing


def test_the_result_of_the_heuristics_is_96_bytes() -> None:
    assert (
        ctypes.sizeof(cublaslt._Result) == 96
        and cublaslt._Result.workspace.offset == 64
        and cublaslt._Result.state.offset == 72
    )


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the calls take, in turn."""
    times = [3.0, 1.0, 2.0]
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    monkeypatch.setattr(timing, "event_seconds", lambda run, count: (run(), times.pop(0))[1])
    return times


def recorded(log: list[tuple[str, int]], name: str) -> Callable[..., Any]:
    def call(x: torch.Tensor, w: torch.Tensor, bias: Any) -> torch.Tensor:
        log.append((name, w.data_ptr()))
        return x

    return call


def test_the_fastest_over_rotated_weights_is_taken(seconds: list[float]) -> None:
    log: list[tuple[str, int]] = []
    x, w = torch.randn(4, 8), torch.randn(8, 16).t()
    chosen = fastest([recorded(log, name) for name in "abc"], x, w, None)
    chosen(x, w, None)
    assert log[-1] == ("b", w.data_ptr()) and not seconds
    assert len({address for name, address in log[:-1] if name == "a"}) == timing.SETS[1]


def test_an_algorithm_that_fails_is_passed_over(seconds: list[float]) -> None:
    def refuses(*_: Any) -> torch.Tensor:
        raise TargetError("cublasLt: status 15")

    x = torch.randn(4, 8)
    assert fastest([refuses, kept := lambda x, w, bias: x], x, x, None) is kept
    with pytest.raises(TargetError, match="refuses every algorithm"):
        fastest([refuses], x, x, None)


def test_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of columns keeps its row pitch; leading dimensions are rows."""
    asked: list[Shape] = []

    class Tuned:
        def best(self, shape: Shape, x: Any, w: Any, bias: Any) -> Any:
            asked.append(shape)
            return lambda x, w, bias: x @ w.t()

    monkeypatch.setattr(cublaslt, "_tuned", Tuned)
    x, w = torch.randn(6, 40)[:, 8:24], torch.randn(5, 16)
    assert torch.equal(linear(x, w, None, ""), x @ w.t())
    assert linear(torch.randn(2, 3, 16), w, torch.zeros(5), "relu").shape == (2, 3, 5)
    assert asked == [
        Shape(6, 5, 16, 40, 16, torch.float32, torch.float32, "", False),
        Shape(6, 5, 16, 16, 16, torch.float32, torch.float32, "relu", True),
    ]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "99.0")
    cublaslt.library.cache_clear()
    with pytest.raises(TargetError, match="libcublasLt.so.99 cannot be loaded"):
        cublaslt.library()
