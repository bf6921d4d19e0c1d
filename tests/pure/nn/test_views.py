"""A view of a tensor of a spec says where the elements of a model's tensor lie: held against torch's own."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilegen as tg
from tilegen.errors import SpecError
from tilegen.frontend.value import Value, building
from tilegen.nn.views import View


def columns_of(value: Value, whole: torch.Tensor) -> torch.Tensor:
    lo, hi = value.columns or (0, whole.shape[-1])
    return whole[..., lo:hi]


def seen(view: View, whole: torch.Tensor) -> torch.Tensor:
    """The elements of the tensor that the view stands on, as its layout has them."""
    source = columns_of(view.value, whole)
    pieces, order, shape = view.layout()
    return source if pieces is None else source.reshape(pieces).permute(order).reshape(shape)


@st.composite
def shapes_of(draw: Any, n: int) -> list[int]:
    """A shape of n elements."""
    sizes = []
    while n > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
        sizes.append(size)
        n //= size
    return [*sizes, n] if n > 1 or not sizes else sizes


def step(draw: Any, view: View, a: torch.Tensor) -> tuple[View, torch.Tensor]:
    """One of the things that models do, on both."""
    at = draw(st.integers(0, a.dim() - 1))
    match draw(st.sampled_from(["reshape", "permute", "unsqueeze", "squeeze", "slice", "select"])):
        case "reshape":
            shape = draw(shapes_of(a.numel()))
            if draw(st.booleans()):
                shape[draw(st.integers(0, len(shape) - 1))] = -1
            return view.reshaped(shape), a.reshape(shape)
        case "permute":
            order = draw(st.permutations(range(a.dim())))
            return view.permuted(order), a.permute(order)
        case "unsqueeze":
            return view.unsqueezed(at), a.unsqueeze(at)
        case "squeeze":
            return view.squeezed([at]), a.squeeze(at)
        case "slice":
            lo = draw(st.integers(0, a.shape[at] - 1))
            hi = draw(st.integers(lo + 1, a.shape[at]))
            return view.sliced(at, lo, hi), a.narrow(at, lo, hi - lo)
        case _:
            n = draw(st.integers(0, a.shape[at] - 1))
            return view.sliced(at, n, n + 1).squeezed([at]), a.select(at, n)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_its_elements_are_torchs(data: Any) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4))
    whole = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    with building("any"):
        view, a = View.of(tg.input("x", tuple(sizes), "float32")), whole
        for _ in range(data.draw(st.integers(1, 6))):
            if not a.dim():
                break
            try:
                view, a = step(data.draw, view, a)
            except SpecError:
                break  # what it cannot say it refuses
            assert tuple(view.shape) == tuple(a.shape)
            assert torch.equal(seen(view, whole), a)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rows_are_those_of_the_tensor_in_some_order(data: Any) -> None:
    """Where it says that it is rows, its last dimension runs through the columns of the tensor in order."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=4))
    whole = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    with building("any"):
        view, a = View.of(tg.input("x", tuple(sizes), "float32")), whole
        for _ in range(data.draw(st.integers(0, 5))):
            try:
                view, a = step(data.draw, view, a) if a.dim() else (view, a)
            except SpecError:
                break
        value = view.rows() if a.dim() else None
        if value is not None:
            rows = columns_of(value, whole).flatten(0, -2)
            assert sorted(rows.tolist()) == sorted(a.reshape(-1, a.shape[-1]).tolist())


def test_heads_of_a_tensor_are_seen_through_transposes() -> None:
    with building("any"):
        x = tg.input("x", (2, 5, 96), "float32")
        qkv = View.of(x).reshaped((2, 5, 3, 4, 8)).permuted((2, 0, 3, 1, 4))
        q = qkv.sliced(0, 1, 2).squeezed([0])
        found = q.heads()
        assert found is not None and (found[0].columns, found[1]) == ((32, 64), 4)
        assert View.of(x).reshaped((2, 5, 8, 12)).heads() is None
        assert View.of(x).reshaped((2, 5, 8, 12)).transposed(1, 2).heads() == (x, 8)


def test_what_moves_is_cut_nowhere() -> None:
    with building("any"):
        b = tg.dim("B", max=9)
        view = View.of(tg.input("x", (b, 5, 32), "float32"))
        assert view.reshaped((-1, 32)).shape == (5 * b, 32)
        assert view.reshaped((b, -1, 4, 8)).transposed(1, 2).heads() == (view.value, 4)
        assert view.reshaped((5 * b, 32)).reshaped((b, 5, -1)).is_(view)
