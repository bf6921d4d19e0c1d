"""torch.compile(backend="tilegen") where a size moves: one graph and one region for all its values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.decomposition import select_decomp_table
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.compiled import Block, Net, compiled, counted, left, same
from tilegen.backend import masks, sizes
from tilegen.backend.masks import hides_later
from tilegen.backend.region import Region
from tilegen.backend.subgraph import read, text_of
from tilegen.backend.words import KEPT


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)


def called(
    model: nn.Module,
    shapes: Sequence[tuple[int, ...]],
    moves: int,
    tolerance: float = 2e-5,
    **bounds: int,
) -> None:
    """A model compiled once, called with tensors of these shapes, a dimension of which moves."""
    model = model.eval().requires_grad_(False)
    run = compiled(model)
    for shape in shapes:
        x = torch.randn(shape)
        torch._dynamo.mark_dynamic(x, moves, **bounds)
        same(run(x), model(x), tolerance)
    assert counters["frames"]["ok"] == 1


def test_a_batch_that_moves_needs_no_other_graph_and_no_other_region() -> None:
    called(Block(), [(3, 7, 32), (2, 7, 32), (6, 7, 32)], 0)
    assert counted()["regions"] == 1 and not left(), left()


def test_a_sequence_that_moves_needs_no_other_graph_and_no_other_region() -> None:
    called(Block(causal=False), [(2, 7, 32), (2, 9, 32), (2, 2, 32)], 1)
    assert counted()["regions"] == 1 and not left(), left()


def test_a_causal_mask_of_a_sequence_that_moves_is_a_flag() -> None:
    """As models write it, of places alone."""
    called(Block(), [(2, 7, 32), (2, 9, 32), (2, 2, 32)], 1)
    assert counted()["regions"] == 1, left()


class Apart(nn.Module):
    """Attention that torch takes apart into two products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(causal=False).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([SDPBackend.MATH]):
            return self.block(x.bfloat16())


@pytest.mark.parametrize("moves", [0, 1])
def test_attention_taken_apart_is_one_op_whatever_size_moves(moves: int) -> None:
    shapes = [(3, 7, 32), (5, 7, 32)] if moves == 0 else [(2, 7, 32), (2, 9, 32)]
    called(Apart(), shapes, moves, 1e-2)
    assert counted()["regions"] == 1 and "bmm" not in left(), left()


class Padded(nn.Module):
    """Attention whose first keys some sequences do not have."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.block, self.apart = Block(causal=False), apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = (x[..., 0] > -0.5)[:, None, None].expand(-1, 1, x.shape[1], -1)
        with sdpa_kernel([SDPBackend.MATH if self.apart else SDPBackend.FLASH_ATTENTION]):
            return self.block(x, torch.where(seen, 0.0, -1e4))


@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("apart", [True, False])
def test_a_mask_that_is_computed_is_right_whatever_size_moves(moves: int, apart: bool) -> None:
    called(Padded(apart), [(3, 7, 32), (5, 7, 32)] if moves == 0 else [(2, 7, 32), (2, 9, 32)], moves, 1e-4)
    assert counted()["regions"] >= 1, left()


Places = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MASKS: dict[str, tuple[Places, bool | None]] = {
    "causal": (lambda q, k: k <= q, True),
    "strictly, one ahead": (lambda q, k: k < q + 1, True),
    "of one sequence of all": (lambda q, k: (k <= q) & ((q != q).cumsum(0) == (k != k).cumsum(1)), True),
    "nothing hidden": (lambda q, k: (k <= q) | (k > q), False),
    "a window": (lambda q, k: (k <= q) & (q - k < 7), None),
    "a window in floats": (lambda q, k: (k <= q) & ((q - k).float() < 99.0), None),
    "a window by a tensor": (lambda q, k: (k <= q) & (q - k < torch.full((), 99)), None),
    "a product of places": (lambda q, k: (k <= q) & (k * q < k + 99), None),
    "only its first keys": (lambda q, k: (k <= q) & (k < 40), None),
    "keys beyond, which few places do not show": (lambda q, k: k <= q + torch.arange(30, 31), None),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_a_size_that_moves_are_known_by_places_alone(name: str) -> None:
    """None: what few places show is not so of all, or not looked at."""
    places, causal = MASKS[name]

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(x.shape[0])
            return torch.where(places(at[:, None], at[None]), 0.0, -math.inf)

    graph = moving(Masked(), torch.randn(9, 2), 0)
    (mask,) = next(n for n in graph.nodes if n.op == "output").args[0]
    assert hides_later(mask) is causal


def test_images_whose_number_moves_need_no_other_graph() -> None:
    called(Net(), [(3, 3, 12, 12), (5, 3, 12, 12), (2, 3, 12, 12)], 0, 1e-4)
    assert counted()["regions"] >= 1, left()


def test_images_of_another_height_are_inductors() -> None:
    called(Net(), [(2, 3, 12, 12), (2, 3, 16, 12)], 2, 1e-4)
    assert "their batch alone may move" in left()


def test_a_size_above_the_largest_known_compiles_the_region_anew(caplog: pytest.LogCaptureFixture) -> None:
    """Not the graph: that one has no largest size."""
    with caplog.at_level(logging.INFO, logger="tilegen"):
        called(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), [(3, 8), (9, 8), (70, 8), (9, 8)], 0)
    grown = [r.getMessage() for r in caplog.records if "compiled anew" in r.getMessage()]
    assert grown == [
        "a region for sizes up to 8 is compiled anew for 9",
        "a region for sizes up to 16 is compiled anew for 70",
    ]


def test_a_bound_of_the_size_is_the_regions(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tilegen"):
        called(nn.Linear(8, 8), [(3, 8), (33, 8)], 0, min=2, max=33)
    assert not any("compiled anew" in r.getMessage() for r in caplog.records)


def test_a_second_shape_makes_the_size_move_and_the_region_stays() -> None:
    """As torch.compile does by itself; one graph of one size, one of all."""
    model = Block(causal=False).eval().requires_grad_(False)
    run = compiled(model)
    for batch in (2, 3, 5, 9):
        x = torch.randn(batch, 7, 32)
        same(run(x), model(x))
    assert counters["frames"]["ok"] == 2 and counted()["regions"] == 2, left()


def test_where_two_sizes_move_results_are_eagers() -> None:
    model = Block(causal=False).eval().requires_grad_(False)
    run = compiled(model, dynamic=True)
    for shape in ((2, 7, 32), (3, 9, 32)):
        x = torch.randn(shape)
        same(run(x), model(x))
    assert "of a tensor moves, beside" in left()


def test_gradients_of_a_size_that_moves_are_eagers() -> None:
    model = Block(causal=False)
    run = compiled(model)
    for batch in (3, 5):
        x = torch.randn(batch, 7, 32)
        torch._dynamo.mark_dynamic(x, 0)
        mine, theirs = (torch.autograd.grad(f(x).square().sum(), [*model.parameters()]) for f in (run, model))
        for a, b in zip(mine, theirs, strict=True):
            assert (a - b).norm() < 1e-4 * b.norm().clamp_min(0.1)  # that of a key's bias is 0
    assert counters["frames"]["ok"] == 1 and counted()["regions"] >= 1, left()


class Placed(nn.Module):
    """Rows of a table as long as the input is: no weight that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.layer = nn.Parameter(torch.randn(20, 8)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.silu(self.layer(x + self.places[: x.shape[0]]))
        return y, torch.cat((y, y[:1])).T


def test_rows_of_a_table_as_many_as_there_are_stay_right() -> None:
    called(Placed(), [(5, 8), (9, 8)], 0)
    assert counted()["regions"] >= 1, left()


ALONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "some": lambda x: x[1:],
    "up to where another ends": lambda x: x[: x.shape[0]] + 1,
    "all but one": lambda x: x[:-1] * 2,
    "first": lambda x: F.silu(x[0]),
    "last": lambda x: F.silu(x[-1]),
    "every second": lambda x: F.silu(x[::2]),
    "in twos": lambda x: [F.silu(part) for part in x.split(2)],
    "in halves": lambda x: [F.silu(part) for part in x.chunk(2)],
    "one by one": lambda x: F.silu(torch.stack(x.unbind(0)[:2])),
    "padded": lambda x: F.silu(F.pad(x, (0, 0, 0, 0, 1, 2))),
    "padded behind": lambda x: F.silu(F.pad(x, (0, 2))),
    "padded beside": lambda x: F.silu(F.pad(x, (1, 2))),
    "again": lambda x: F.silu(torch.cat((x, x))),
    "side by side": lambda x: F.silu(torch.cat((x, x), -1)),
    "turned": lambda x: F.silu(x.flip(0)),
    "mean": lambda x: F.silu(x.mean(0)),
    "sum of all": lambda x: F.silu(x).sum((0, 1)),
    "softmax": lambda x: x.softmax(0),
    "maximum": lambda x: F.silu(x).amax(0),
    "columns": lambda x: F.silu(x.transpose(0, 2)),
    "as one row": lambda x: F.silu(x.reshape(1, -1)),
    "product with itself": lambda x: x[:, 0] @ x[:, 0].T,
    "products": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "repeated": lambda x: F.silu(x.repeat_interleave(2, 0)),
    "outer": lambda x: F.silu(x[:, None] + x[None]),
    "beside a number of them": lambda x: F.silu(x) / x.shape[0],
    "as many zeros": lambda x: F.silu(x) + torch.zeros(x.shape[0], 1, 1),
    "places": lambda x: F.silu(x * torch.arange(x.shape[0]).float()[:, None, None]),
    "normed": lambda x: F.layer_norm(x, (8,)),
    "a norm along it": lambda x: F.layer_norm(x.movedim(0, -1), (x.shape[0],)),
}


@pytest.mark.parametrize("name", ALONG)
def test_what_is_done_along_a_size_that_moves_is_eagers(name: str) -> None:
    class Along(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return ALONG[name](x)

    model, run = Along(), compiled(Along())
    for size in (4, 7, 12):
        x = torch.randn(size, 6, 8)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        same(run(x), model(x))


# --- its words ----------------------------------------------------------------------------------------------


def moving(model: nn.Module, x: torch.Tensor, axis: int) -> torch.fx.Graph:
    """The graph of a model, whose size along an axis of its input moves."""
    shape = {axis: torch.export.Dim("n", min=3)}
    exported = torch.export.export(model, (x,), dynamic_shapes=(shape,))
    kept = {op: how for op, how in select_decomp_table().items() if op not in KEPT}
    return exported.run_decompositions(kept).graph


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(torch.cat((x.flatten(0, 1), x[0])))


def test_a_text_says_sizes_by_what_moves() -> None:
    """What is read has the same sizes, in the words of another symbol."""
    graph = moving(Twice(), torch.randn(3, 4, 8), 0)
    found = sizes.moving(graph)
    assert found is not None and found.hint == 3 and found.most == 8
    nodes = [n for n in graph.nodes if n.op == "call_function" and not sizes.is_size(n)]
    inputs = {n: False for n in graph.nodes if n.op == "placeholder"}
    back = read(text_of(nodes, inputs, nodes[-1:], found))
    assert back.dim is not None and back.dim.most == 8 and back.dim.name == sizes.NAME
    (result,) = next(n for n in back.graph.nodes if n.op == "output").args[0]
    rows, columns = result.meta["val"].shape
    (moves,) = rows.node.expr.free_symbols
    assert rows.node.expr == 4 * moves + 4 and columns == 8


def test_what_depends_on_the_value_of_the_size_is_refused() -> None:
    """A comparison that one value answers for all."""
    mode, size = sizes.read_anew(64)
    assert not sizes.asked(mode)
    assert size >= 2 and not sizes.asked(mode)  # which is so for all
    assert size == 64 and sizes.asked(mode)


def test_no_region_holds_a_size_that_is_not_linear() -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x[::2])

    class Halved(nn.Module):
        forward = staticmethod(halved)

    graph = moving(Halved(), torch.randn(7, 8), 0)
    found = sizes.moving(graph)
    told = [sizes.reason(n, found) for n in graph.nodes if n.op == "call_function"]
    assert any("of a tensor moves" in why for why in told)
    called(Halved(), [(7, 8), (12, 8), (3, 8)], 0)


def test_results_of_a_region_have_sizes_of_what_it_is_given() -> None:
    layer: Any = nn.Linear(8, 6)
    graph = moving(layer, torch.randn(3, 4, 8), 0)
    found = sizes.moving(graph)
    nodes = [n for n in graph.nodes if n.op == "call_function" and not sizes.is_size(n)]
    weights = {n: True for n in graph.nodes if n.op == "placeholder" and n.meta["val"].dim() < 3}
    given = {**weights, **{n: False for n in graph.nodes if n.op == "placeholder" and n not in weights}}
    text = text_of(nodes, given, nodes[-1:], found)
    values = [*layer.parameters(), torch.randn(5, 4, 8)]
    made = torch.ops.tilegen.region(text, [v.detach() for v in values])
    same(made[0].reshape(5, 4, 6), layer(values[-1]))
    assert Region.of(text).shapes(values) == [tuple(made[0].shape)]


def causal(s: int) -> torch.Tensor:
    return torch.arange(s)[None] <= torch.arange(s)[:, None]


def apart(s: int) -> torch.Tensor:
    return torch.arange(s)[:, None] - torch.arange(s)[None]


KNOWS_MORE: dict[str, Callable[[int], torch.Tensor]] = {
    "a window, its width a float tensor": lambda s: causal(s) & (apart(s).float() < torch.tensor(8.0)),
    "a window, its width filled in": lambda s: causal(s) & (apart(s).float() < torch.full((), 8.0)),
    "a window, its width a sum": lambda s: causal(s) & (apart(s) < torch.ones((), dtype=torch.int) * 4 + 4),
    "a prefix, joined": lambda s: causal(s) | torch.cat([torch.ones(10), torch.zeros(s)])[:s].bool()[None],
    "a prefix, padded": lambda s: causal(s) | (F.pad(torch.ones(10), (0, s))[:s] > 0)[None],
    "the last rows": lambda s: torch.tril(torch.ones(64, 64, dtype=torch.bool))[64 - s :, :s],
    "a prefix that few sizes have": lambda s: (
        causal(s) | torch.cat([torch.ones(10), torch.zeros(s - 10)]).bool()[None]
    ),
}


@pytest.mark.parametrize("name", KNOWS_MORE)
def test_a_mask_that_knows_numbers_is_looked_at_beyond_them(name: str) -> None:
    """At lengths of up to six places it would be causal attention's."""

    class Masked(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q * 1.5, q, q, attn_mask=KNOWS_MORE[name](q.shape[2]))

    called(Masked(), [(2, 2, 16, 16), (2, 2, 24, 16), (2, 2, 40, 16)], 2, min=12, max=63)
    counted()


def test_a_mask_of_many_places_for_a_batch_that_moves_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that it knows are those of places, 600; a batch beyond them would be 400 million elements."""
    seen, usual = [], masks._hides_later

    def noted(mask: Any, at: Any) -> bool | None:
        seen.append(max(at.values()))
        return usual(mask, at)

    monkeypatch.setattr(masks, "_hides_later", noted)

    class Masked(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            mask = causal(600)[None, None].expand(q.shape[0], 1, 600, 600)
            return F.scaled_dot_product_attention(q * 1.5, q, q, attn_mask=mask)

    called(Masked(), [(2, 2, 600, 16), (3, 2, 600, 16)], 0)
    assert seen and max(seen) < 600 and counted()["regions"] == 1, left()


@pytest.mark.parametrize("shape", [(1,), ()], ids=str)
def test_a_weight_of_one_number_beside_columns_that_move(shape: tuple[int, ...]) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.full(shape, 1.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) * self.by

    called(Scaled(), [(3, 8), (3, 12)], 1)
    counted()


@pytest.mark.parametrize("shape", [(0, 8), (0, 3, 8), (3, 0, 8)], ids=str)
def test_no_rows_give_none(shape: tuple[int, ...]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).requires_grad_(False), torch.empty(shape)
    same(compiled(model)(x), model(x))
    counted()
