"""torch.compile(backend="tilegen"): operators with arguments that no spec says are left with a reason by
what they are, and their results are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, programs, same

ONES = torch.ones(8, 8)
HALF_TOO = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def in_one_region(model: Callable[..., torch.Tensor], *given: torch.Tensor) -> None:
    """A region holds all of a model, whose results are eager's."""
    tolerance = 2e-5 if given[0].dtype is torch.float32 else 1e-2
    same(compiled(model)(*given), model(*given), tolerance)
    assert counted()["regions"] == 1 and not left(), left()


LEFT: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a division by zero": (lambda x: 1 / ((F.relu(x) + 1) / 0.0) + x, "a division by zero"),
    "a norm by what is computed": (
        lambda x: F.layer_norm(x, (8,), x[0] * 2, x[1]),
        "a weight that the model",
    ),
    "a sum of parts": (lambda x: torch.addmm(x, x, ONES, beta=0.5, alpha=2), "beta = 0.5 and alpha = 2"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_no_spec_says_is_left(name: str) -> None:
    model, reason = LEFT[name]
    x = torch.randn(4, 8)
    same(compiled(model)(x), model(x))
    assert reason in left()


def test_a_number_that_is_taken_out_of_a_tensor() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.silu(x) + x[0, 0]

    x = torch.randn(4, 8)
    same(compiled(model)(x), model(x))


def test_a_piece_may_begin_before_the_first_place() -> None:
    """As that of a window that is wider than its input."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return F.silu(x[:, -10:])

    x = torch.randn(4, 8)
    same(compiled(model)(x), model(x))
    assert counted()["regions"] == 1, left()


def spelled(x: torch.Tensor, y: torch.Tensor, shape: tuple[int, ...], by: float = 4.0) -> torch.Tensor:
    q, k = x.view(8, 7, 16), y.view(8, 7, 16)
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) / by).softmax(-1), k).view(shape)


@pytest.mark.parametrize(
    ("keys", "shape", "by"),
    [
        ((4, 2, 7, 16), (2, 4, 7, 16), 4.0),  # batches and heads of keys are others
        ((2, 4, 7, 16), (8, 7, 1, 16), 4.0),  # rows are laid out as in (B, S, h, D)
        ((2, 4, 7, 16), (2, 4, 7, 16), 0.0),
    ],
)
def test_products_that_are_no_attention_stay_spelled_out(
    keys: tuple[int, ...], shape: tuple[int, ...], by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = programs(monkeypatch)
    x, y = torch.randn(2, 4, 7, 16), torch.randn(keys)
    found, wanted = compiled(spelled)(x, y, shape, by), spelled(x, y, shape, by)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert regions and "attention" not in [c.kind for p in regions for c in p.calls]


def test_what_reads_an_input_that_no_spec_has_is_left_alone() -> None:
    """A number, and five dimensions: the rest of the region stays one."""

    def model(x: torch.Tensor, by: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.silu(x) * by + y.flatten(1))

    given = torch.randn(4, 24), torch.randn(()), torch.randn(4, 3, 2, 2, 2)
    same(compiled(model)(*given), model(*given))
    assert counted()["regions"] == 2 and "given ()" in left() and "given (4, 3, 2, 2, 2)" not in left()


CLAMPS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: F.silu(x).clamp(min=0.1) * 2,
    lambda x: F.silu(x).clamp(max=0.1) * 2,
    lambda x: torch.clamp_min(F.silu(x), 0) * 2,
    lambda x: torch.clamp_max(F.silu(x), 0) + 1,
]


@HALF_TOO
@pytest.mark.parametrize("model", CLAMPS, ids=["min", "max", "clamp_min", "clamp_max"])
def test_a_clamp_of_one_end(model: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    """A NaN stays."""
    x = torch.randn(5, 17, dtype=dtype)
    in_one_region(model, x)
    x[1, 2] = torch.nan
    assert compiled(model)(x).isnan().sum() == 1


GELUS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    lambda x: (1 + torch.erf(math.sqrt(0.5) * x)) * (0.5 * x),
]


@HALF_TOO
@pytest.mark.parametrize("gelu", GELUS, ids=["divided", "times"])
def test_gelu_is_known_where_it_is_spelled_out(
    gelu: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    in_one_region(lambda x: gelu(F.silu(x)) * 2, torch.randn(5, 17, dtype=dtype))


def test_erf_of_other_things_is_left() -> None:
    """By another factor it is no gelu; what another reads stays too."""
    x = torch.randn(5, 17)
    for model in (
        lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.5)),
        lambda x: (e := torch.erf(x / math.sqrt(2.0))) + x * 0.5 * (1.0 + e),
    ):
        same(compiled(model)(x), model(x))
        assert "aten.erf.default has no word" in left()


CHOICES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "greater": lambda x, y: torch.where(F.silu(x) > 0.1, x, 0),
    "less": lambda x, y: (x + y).masked_fill(x < 0, -1e9),
    "at most": lambda x, y: torch.where(x <= y, F.silu(x), y),
    "at least": lambda x, y: torch.where(x >= y, 1.0, F.silu(y)),
    "equal": lambda x, y: torch.where(F.relu(x) == 0, y, x),
    "not equal": lambda x, y: torch.where(F.relu(x) != F.relu(y), x, y),
    "between two numbers": lambda x, y: torch.where(x + y > 0.0, x.new_ones(()), x.new_zeros(())),
    "a number of another type": lambda x, y: torch.where(x > torch.full((), 0.1), F.silu(x), y),
    "by a column": lambda x, y: torch.where(y[:, :1] > 0, F.silu(x), y),
    "of what is turned": lambda x, y: torch.where(x.view(17, 5).T > 0, F.silu(x), y),
}


@HALF_TOO
@pytest.mark.parametrize("name", CHOICES)
def test_what_a_comparison_chooses(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(5, 17, dtype=dtype), torch.randn(5, 17, dtype=dtype)
    x[1, 2], x[3, 4], y[0, 1], y[3, 4] = y[1, 2], torch.nan, torch.nan, torch.nan
    x[0, 3] = 0.1  # as it is rounded, not more than 0.1
    model = CHOICES[name]
    found, wanted = compiled(model)(x, y), model(x, y)
    assert counted()["regions"] == 1 and not left(), left()
    least = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=least, atol=least, equal_nan=True)


def test_a_comparison_that_is_read_otherwise_is_left() -> None:
    """So is one of whole numbers, and one in float32 of two bytes."""
    models: dict[str, Callable[[torch.Tensor], Any]] = {
        "a tensor of torch.bool": lambda x: (y := F.silu(x) > 0, torch.where(y, x, 1.0)),
        "aten.lt.Scalar of whole numbers": lambda x: torch.where((x * 8).long() < 3, F.silu(x), 0.0),
        "aten.gt.Scalar computes in float32": lambda x: torch.where(x.float() > 0.1, F.silu(x), 0.0),
        "aten.where.self computes in float32": lambda x: (torch.where(x > 0, 0.1, 0.3) * 3).bfloat16(),
    }
    x = torch.randn(5, 17, dtype=torch.bfloat16)
    x[0, 3] = 0.1
    for reason, model in models.items():
        same(compiled(model)(x), model(x), 1e-2)
        assert reason in left()


@HALF_TOO
@pytest.mark.parametrize(
    ("c", "n", "how"),
    [
        (16, 24, {"kernel_size": 10, "stride": 5, "bias": False}),
        (16, 24, {"kernel_size": 3, "padding": 1, "dilation": 2}),
        (16, 16, {"kernel_size": 8, "padding": 4, "groups": 4}),
        (3, 5, {"kernel_size": 1}),
        (1, 7, {"kernel_size": 4, "stride": 2}),
    ],
)
def test_convolutions_over_one_dimension(c: int, n: int, how: dict[str, Any], dtype: torch.dtype) -> None:
    """Before it and behind it what lies otherwise: rows of tokens, and a convolution again."""
    first, norm = nn.Conv1d(c, n, **how).to(dtype), nn.LayerNorm(n).to(dtype)
    second = nn.Conv1d(n, 8, 3, padding=1).to(dtype)

    def model(x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(first(x.transpose(1, 2)))
        return second(norm(h.transpose(1, 2)).transpose(1, 2) + h)

    with torch.no_grad():
        in_one_region(model, torch.randn(2, 37, c, dtype=dtype))


def test_a_norm_of_batches_goes_into_a_convolution_over_one_dimension() -> None:
    model = nn.Sequential(nn.Conv1d(8, 16, 3, bias=False), nn.BatchNorm1d(16), nn.ReLU()).eval()
    nn.init.uniform_(model[1].running_mean)
    with torch.no_grad():
        in_one_region(model, torch.randn(2, 8, 19))


@HALF_TOO
@pytest.mark.parametrize("groups", [4, 16])
def test_a_norm_of_groups_over_one_dimension(groups: int, dtype: torch.dtype) -> None:
    """As behind the first convolution of a model of sounds."""
    model = nn.Sequential(nn.Conv1d(1, 16, 10, stride=5, bias=False), nn.GroupNorm(groups, 16), nn.GELU())
    with torch.no_grad():
        in_one_region(model.to(dtype), torch.randn(2, 1, 99, dtype=dtype))


ROWS = torch.randn(4, 7, 16, generator=torch.Generator().manual_seed(5))
PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows by turned rows": lambda x: torch.bmm(F.relu(x), F.silu(x).transpose(1, 2)),
    "turned rows by rows": lambda x: torch.bmm(F.relu(x).transpose(1, 2), F.silu(x)),
    "by a weight of each batch": lambda x: torch.bmm(F.relu(x), torch.eye(16, 5).to(x).expand(4, 16, 5)),
    "of no batches": lambda x: F.relu(x[0]) @ F.silu(x[1]).t(),
    "of heads, which are copied": lambda x: (
        F.relu(x).view(4, 7, 2, 8).transpose(1, 2) @ F.silu(x).view(4, 7, 2, 8).permute(0, 2, 3, 1)
    ),
    "of one copied and one as it lies": lambda x: torch.bmm(F.relu(x)[:, :, :8], F.silu(x)[:, :7, 8:].mT),
    "added to what is scaled": lambda x: torch.baddbmm(
        F.relu(x)[..., :7], F.relu(x), F.silu(x).mT, beta=0.5, alpha=2.0
    ),
}


@HALF_TOO
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_two_activations(name: str, dtype: torch.dtype) -> None:
    in_one_region(PRODUCTS[name], ROWS.to(dtype))


def test_a_cast_of_a_view_of_what_is_given_is_left() -> None:
    """A region would take it in float32, beside bfloat16."""
    given = torch.randn(2, 16, 7)

    def model(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return F.relu(x) + F.silu(x) * given.mT.to(x.dtype)

    x = ROWS[:2].bfloat16()
    same(compiled(model)(x, given), model(x, given), 1e-2)
    assert counted()["regions"] == 1 and counted()["ops"] == 4, left()


PADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of no places": lambda x: F.relu(F.pad(F.relu(x), (0, 0, 0, 0))),
    "rows and columns": lambda x: F.pad(F.relu(x), (1, 2, 3, 0)),
    "zeros behind columns": lambda x: F.silu(F.pad(F.relu(x), (0, 3))),
    "zeros behind rows": lambda x: F.silu(F.pad(F.relu(x), (0, 0, 0, 2))),
    "zeros behind columns of rows": lambda x: F.pad(F.relu(x).mT, (0, 1)) + 1,
    "fewer places than none": lambda x: F.pad(F.relu(x), (1, -2, -3, 1), value=2.0),
    "images": lambda x: F.conv2d(F.pad(F.relu(x[None]), (1, 1, 0, 1)), torch.ones(4, 4, 3, 3) / 36),
}


@pytest.mark.parametrize("name", PADDED)
def test_pads(name: str) -> None:
    in_one_region(PADDED[name], ROWS)


def test_a_pad_of_no_rows_is_eagers() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.relu(F.pad(F.relu(x), (0, 2)))

    x = torch.randn(0, 4)
    assert compiled(model)(x).shape == model(x).shape


BY_ELEMENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "hardsigmoid": lambda x: F.hardsigmoid(4 * F.relu(x) - 3) * x,
    "roots": lambda x: (x.abs() + 1).pow(-0.5) + x.abs().pow(0.5) + x.pow(4) + (x.abs() + 1).pow(-1),
    "a product added": lambda x: torch.addcmul(F.relu(x), x, torch.sigmoid(x), value=0.5),
    "a product with weights added": lambda x: torch.addcmul(
        torch.arange(16.0).to(x), F.relu(x), torch.eye(16).sum(0).to(x)
    ),
}


@HALF_TOO
@pytest.mark.parametrize("name", BY_ELEMENTS)
def test_elements(name: str, dtype: torch.dtype) -> None:
    in_one_region(BY_ELEMENTS[name], ROWS.to(dtype))


@pytest.mark.parametrize("width", [16, 7], ids=["columns", "rows"])
def test_a_norm_of_batches_of_rows(width: int) -> None:
    norm = nn.BatchNorm1d(width).eval().requires_grad_(False)
    nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)
    x = ROWS.flatten(0, 1) if width == 16 else ROWS
    in_one_region(lambda x: F.relu(norm(F.relu(x))), x)


def test_linears_of_the_pixels_of_an_image() -> None:
    """Keys and values of pixels that a convolution has made, as in SegFormer: no rows to merge them over."""
    conv, norm = nn.Conv2d(3, 16, 2, stride=2), nn.LayerNorm(16)
    k, v = nn.Linear(16, 16), nn.Linear(16, 16)

    def model(x: torch.Tensor) -> torch.Tensor:
        pixels = norm(conv(x).permute(0, 2, 3, 1))
        return F.silu(k(pixels)) * v(pixels)

    with torch.no_grad():
        in_one_region(model, torch.randn(2, 3, 8, 8))


@HALF_TOO
@pytest.mark.parametrize("over", [-1, 1, (0, 2)], ids=str)
def test_lengths_of_vectors(over: Any, dtype: torch.dtype) -> None:
    """As F.normalize has them, and the response of ConvNeXt V2."""

    def model(x: torch.Tensor) -> torch.Tensor:
        x = F.silu(x)
        return x / torch.linalg.vector_norm(x, dim=over, keepdim=True).clamp_min(1e-12)

    in_one_region(model, ROWS.to(dtype))


@pytest.mark.parametrize("order", [1, 3, torch.inf])
def test_norms_of_other_orders_are_left(order: float) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.silu(torch.linalg.vector_norm(F.silu(x), order, dim=-1, keepdim=True))

    same(compiled(model)(ROWS), model(ROWS))


class Centred(nn.Module):
    """As Cohere has its norm: without a bias, in float32."""

    def __init__(self, by: int = 2) -> None:
        super().__init__()
        self.by, self.w = by, nn.Parameter(torch.linspace(0.5, 2, 16), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype, x = x.dtype, F.silu(x).float()
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(self.by).mean(-1, keepdim=True)
        return F.silu((self.w.float() * ((x - mean) * torch.rsqrt(spread + 1e-5))).to(dtype))


@HALF_TOO
def test_a_layer_norm_is_known_where_it_is_spelled_out(dtype: torch.dtype) -> None:
    in_one_region(Centred().to(dtype), ROWS.to(dtype))


def test_another_power_is_no_layer_norm() -> None:
    x = ROWS.abs()
    same(compiled(Centred(4))(x), Centred(4)(x))


POOLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "of windows that fit": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), ""),
    "of windows that fit beside padding": (lambda x: F.max_pool2d(x, 2, 2, 1, ceil_mode=True), ""),
    "of means that fit": (lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), ""),
    "of a window that hangs over": (lambda x: F.max_pool2d(x, 2, ceil_mode=True), "hangs over"),
    "of parts": (lambda x: F.adaptive_avg_pool2d(x[..., :8, :6], (4, 2)), ""),
    "of parts of several sizes": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), "expected parts of one size"),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    pool, reason = POOLS[name]
    w, x = torch.nn.Parameter(torch.randn(8, 8, 1, 1), requires_grad=False), torch.randn(2, 8, 9, 9)
    same(compiled(lambda x: pool(F.conv2d(x, w)) * 2)(x), pool(F.conv2d(x, w)) * 2)
    assert reason in left() and bool(reason) == bool(left()), left()
    same(compiled(lambda x: pool(F.relu(F.conv2d(x, w))))(x), pool(F.relu(F.conv2d(x, w))))


def test_attention_whose_values_have_another_size_is_products_and_a_softmax() -> None:
    """As LeViT's, which no attention of a spec is."""

    def model(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.split((8, 8, 16), -1)
        return F.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v

    in_one_region(model, torch.randn(2, 3, 10, 32))
