"""Ops of the names of torch's mean what torch's do, and their plans are proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilegen as tg

M, N = 5, 12
IMAGE = (2, 7, 9, 6)


@dataclass(frozen=True)
class Word:
    """A word of tilegen and torch's on tensors of these shapes; below: the first is of whole numbers below
    it."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((M, N),)
    below: int = 0

    def given(self) -> list[torch.Tensor]:
        torch.manual_seed(0)
        drawn = [torch.randn(shape) for shape in self.shapes]
        if self.below:
            drawn[0] = torch.randint(self.below, self.shapes[0], dtype=torch.int32)
        return drawn

    def program(self) -> Any:
        def made() -> Any:
            types = ["int32" if n == 0 and self.below else "float32" for n in range(len(self.shapes))]
            return self.ours(
                *(tg.input(f"x{n}", s, t) for n, (s, t) in enumerate(zip(self.shapes, types, strict=True)))
            )

        return tg.spec(made)()


def first(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """torch's op on channels first, ours being last."""
    return lambda x, *rest: of(x.permute(0, 3, 1, 2), *rest).permute(0, 2, 3, 1)


def attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    cap: float,
    prefix: int = 0,
    slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Two heads, causal, in float64: a query sees keys within `window` - 1 of its own, and the first ones."""
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    scores = cap * (scores / cap).tanh() if cap else scores
    ahead = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - (k.shape[2] - q.shape[2])
    scores = scores if slopes is None else scores + slopes[:, None, None] * ahead
    seen = (ahead <= 0) & (ahead > -window) | (torch.arange(k.shape[2]) < prefix)
    y = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return y.transpose(1, 2).flatten(2)


def padded(lengths: torch.Tensor, *heads: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """Two heads of sequences of these lengths, by torch's own attention."""
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in heads)
    seen = (torch.arange(k.shape[2]) < lengths[:, None])[:, None, None]
    if causal:
        seen = seen & torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    y = F.scaled_dot_product_attention(q, k, v, seen)
    return y.masked_fill(~seen.any(-1, keepdim=True), 0.0).transpose(1, 2).flatten(2)


def blocked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two heads, each element of BLOCKS for two queries and three keys, by torch's own attention."""
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k, v))
    seen = torch.kron(torch.tensor(BLOCKS), torch.ones(2, 3)).bool()[: q.shape[2], : k.shape[2]]
    y = F.scaled_dot_product_attention(q, k, v, seen)
    return y.masked_fill(~seen.any(-1, keepdim=True), 0.0).transpose(1, 2).flatten(2)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    heads = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*heads, bias).transpose(1, 2).flatten(2)


BLOCKS = [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
SLICED = ((3, 5, 7),)
HEADS = ((2, 5, 8), (2, 7, 8), (2, 7, 8))
WORDS = {
    "attention, lengths": Word(
        lambda n, q, k, v: tg.attention(q, k, v, heads=2, lengths=n), padded, ((2,), *HEADS), 8
    ),
    "attention, causal, lengths": Word(
        lambda n, q, k, v: tg.attention(q, k, v, heads=2, causal=True, lengths=n),
        lambda *given: padded(*given, causal=True),
        ((6,), *((6, *shape[1:]) for shape in HEADS)),
        8,
    ),
    "attention, a prefix": Word(
        lambda q, k, v: tg.attention(q, k, v, heads=2, causal=True, prefix=4),
        lambda q, k, v: attended(q, k, v, 99, 0.0, prefix=4),
        HEADS,
    ),
    "attention, slopes": Word(
        lambda q, k, v, m: tg.attention(q, k, v, heads=2, causal=True, alibi=m),
        lambda q, k, v, m: attended(q, k, v, 99, 0.0, slopes=m),
        (*HEADS, (2,)),
    ),
    "attention, slopes, capped, a window": Word(
        lambda q, k, v, m: tg.attention(q, k, v, heads=2, causal=True, alibi=m, softcap=0.7, window=3),
        lambda q, k, v, m: attended(q, k, v, 3, 0.7, slopes=m),
        (*HEADS, (2,)),
    ),
    **{
        f"attention, a bias {tuple(shape)}": Word(
            lambda q, k, v, m: tg.attention(q, k, v, heads=2, bias=m), biased, (*HEADS, shape)
        )
        for shape in ((2, 2, 5, 7), (1, 2, 5, 7), (2, 1, 1, 7), (1, 1, 5, 7), (5, 7), (2, 1, 7))
    },
    "attention, a block mask": Word(
        lambda q, k, v: tg.attention(q, k, v, heads=2, block_mask=BLOCKS, block_size=(2, 3)), blocked, HEADS
    ),
    "attention, a window": Word(
        lambda q, k, v: tg.attention(q, k, v, heads=2, causal=True, window=3),
        lambda q, k, v: attended(q, k, v, 3, 0.0),
        HEADS,
    ),
    "attention, capped": Word(
        lambda q, k, v: tg.attention(q, k, v, heads=2, causal=True, softcap=0.7),
        lambda q, k, v: attended(q, k, v, 99, 0.7),
        HEADS,
    ),
    "attention, a window, capped": Word(
        lambda q, k, v: tg.attention(q, k, v, heads=2, causal=True, window=2, softcap=2.0),
        lambda q, k, v: attended(q, k, v, 2, 2.0),
        HEADS,
    ),
    "sum": Word(tg.sum, lambda x: x.sum(-1, keepdim=True)),
    "mean": Word(tg.mean, lambda x: x.mean(-1, keepdim=True), ((2, 3, 4, N),)),
    "max": Word(tg.max, lambda x: x.amax(-1, keepdim=True)),
    "min": Word(tg.min, lambda x: x.amin(-1, keepdim=True)),
    "logsumexp": Word(tg.logsumexp, lambda x: x.logsumexp(-1, keepdim=True), ((2, 3, N),)),
    "a column beside rows": Word(lambda x, c: (c - x) / c, lambda x, c: (c - x) / c, ((M, N), (M, 1))),
    "a column of an image": Word(lambda x, c: tg.upsample(x * c, 1), torch.mul, (IMAGE, (*IMAGE[:3], 1))),
    "@": Word(lambda x, w: x @ w, torch.matmul, ((2, M, N), (N, 3))),
    "x[..., a:b]": Word(
        lambda x: tg.exp(x[..., 3:-2]) + x[:, 4:11], lambda x: x[..., 3:-2].exp() + x[:, 4:11]
    ),
    "numbers of each image": Word(
        lambda x, v: tg.pointwise("e1 - e0 * e1", tg.max_pool2d(x, 1), v),
        lambda x, v: v[:, None, None] - x * v[:, None, None],
        (IMAGE, (IMAGE[0], IMAGE[-1])),
    ),
    "cat": Word(
        lambda x, y: tg.cat([x, y, x[:, :3]]), lambda x, y: torch.cat([x, y, x[:, :3]], -1), ((M, N), (M, 7))
    ),
    "pad": Word(lambda x: tg.exp(tg.pad(x[:, 1:], 5)), lambda x: F.pad(x[:, 1:], (0, 5)).exp(), ((M, N),)),
    "cat of images": Word(
        lambda x, y: tg.max_pool2d(tg.cat([x, y]), 2),
        lambda x, y: first(lambda z: F.max_pool2d(z, 2))(torch.cat([x, y], -1)),
        (IMAGE, (*IMAGE[:3], 5)),
    ),
    "permute": Word(
        lambda x: tg.exp(tg.permute(x, (2, -3, 1))) + x.permute((2, 0, 1)),
        lambda x: x.permute(2, 0, 1).exp() + x.permute(2, 0, 1),
        ((2, 5, 7),),
    ),
    "permute of images": Word(
        lambda x: tg.max_pool2d(tg.max_pool2d(x, 1).permute((0, 3, 1, 2)), 2),
        lambda x: first(lambda z: F.max_pool2d(z, 2))(x.permute(0, 3, 1, 2)),
        (IMAGE,),
    ),
    "transpose of columns": Word(
        lambda x: tg.transpose(x[..., 3:8], 0, 1), lambda x: x[:, 3:8].mT, ((M, N),)
    ),
    "reshape": Word(
        lambda x: tg.reshape(x, (-1, 4))[30:] + x[..., 4:8].reshape((15, -1)),
        lambda x: x.reshape(-1, 4)[30:] + x[..., 4:8].reshape(15, 4),
        ((3, 5, 12),),
    ),
    "narrow": Word(
        lambda x: tg.narrow(x, 0, 1, 3) + tg.narrow(x[2:], -1, 0, N),
        lambda x: x[1:4] + x[2:],
    ),
    **{
        f"x[{text}]": Word(
            lambda x, text=text: tg.exp(eval(f"x[{text}]")),
            lambda x, text=text: eval(f"x[{text}]").exp(),
            SLICED,
        )
        for text in (":, 1:", "..., -1, :", "1:, ::2, 3:", "0, ..., ::3", "1", ":, 2, ..., 1:4", "-2:-1")
    },
    "embedding": Word(tg.embedding, F.embedding, ((2, 3, 4), (11, N)), below=11),
    "topk, its values": Word(lambda x: tg.topk(x, 5)[0], lambda x: x.topk(5).values, ((2, 3, N),)),
    "topk, its columns": Word(lambda x: tg.topk(x, N)[1], lambda x: x.topk(N).indices),
    "argmax": Word(tg.argmax, lambda x: x.argmax(-1, keepdim=True), ((2, 3, 4, N),)),
    "take_along": Word(
        lambda ids, x: tg.take_along(x, ids),
        lambda ids, x: x.take_along_dim(ids.long(), -1),
        ((M, 17), (M, N)),
        below=N,
    ),
    "group_norm": Word(
        lambda x, w, b: tg.group_norm(x, 3, w, b, eps=0.1),
        first(lambda x, w, b: F.group_norm(x, 3, w, b, eps=0.1)),
        (IMAGE, IMAGE[-1:], IMAGE[-1:]),
    ),
    "upsample": Word(
        lambda x: tg.upsample(x, (2, 3)), first(lambda x: F.interpolate(x, scale_factor=(2, 3))), (IMAGE,)
    ),
    "conv2d, depthwise": Word(
        lambda x, w: tg.conv2d(x, w, stride=(2, 1), padding=1, groups=IMAGE[-1]),
        first(lambda x, w: F.conv2d(x, w.permute(0, 3, 1, 2), None, (2, 1), 1, groups=IMAGE[-1])),
        (IMAGE, (IMAGE[-1], 3, 2, 1)),
    ),
    "conv2d in groups": Word(
        lambda x, w: tg.conv2d(x, w, padding=2, dilation=2, groups=3),
        first(lambda x, w: F.conv2d(x, w.permute(0, 3, 1, 2), None, 1, 2, 2, 3)),
        (IMAGE, (15, 3, 3, IMAGE[-1] // 3)),
    ),
    "conv_transpose2d": Word(
        lambda x, w, b: tg.conv_transpose2d(x, w, b, stride=2, padding=1),
        first(lambda x, w, b: F.conv_transpose2d(x, w.permute(3, 0, 1, 2), b, 2, 1)),
        (IMAGE, (5, 4, 4, IMAGE[-1]), (5,)),
    ),
    "conv_transpose2d, dilated, a line more": Word(
        lambda x, w: tg.conv_transpose2d(
            x, w, stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(3, 2)
        ),
        first(
            lambda x, w: F.conv_transpose2d(x, w.permute(3, 0, 1, 2), None, (2, 3), (1, 0), (1, 2), 1, (3, 2))
        ),
        (IMAGE, (5, 2, 3, IMAGE[-1])),
    ),
    "avg_pool2d": Word(
        lambda x: tg.avg_pool2d(x, (3, 2), stride=2, padding=(1, 0)),
        first(lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0))),
        (IMAGE,),
    ),
    "avg_pool2d, padding not counted": Word(
        lambda x: tg.avg_pool2d(x, 3, padding=1, count_include_pad=False),
        first(lambda x: F.avg_pool2d(x, 3, 3, 1, count_include_pad=False)),
        (IMAGE,),
    ),
}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_means_what_torchs_means(word: str) -> None:
    w = WORDS[word]
    found = tg.reference(w.program(), *w.given())
    assert isinstance(found, torch.Tensor)
    wanted = w.theirs(*(x if x.dtype is torch.int32 else x.double() for x in w.given()))
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("word", WORDS)
def test_its_plan_is_proved_and_comes_back_from_json(word: str) -> None:
    plan = tg.plan(WORDS[word].program(), "h200", target="interpret")
    back = tg.Plan.from_json(plan.to_json())
    assert tg.verify(back).ok and back.digest == plan.digest


@pytest.mark.parametrize("word", ["sum", "mean", "max", "min", "logsumexp"])
@pytest.mark.parametrize("target", ["cpu", "cuda-emulated"])
def test_what_is_no_number_and_infinities_are_as_torch_has_them(word: str, target: str) -> None:
    x = torch.randn(8, N, generator=torch.Generator().manual_seed(1))
    inf = float("inf")
    x[0, 3], x[1, 0], x[2, 11], x[3] = float("nan"), inf, -inf, -inf
    x[4, 0], x[4, 5], x[5, 2], x[5, 7] = inf, float("nan"), inf, -inf

    @tg.spec
    def rows() -> Any:
        return WORDS[word].ours(tg.input("x", (8, N), "float32"))

    found = tg.compile(rows(), target)(x)
    torch.testing.assert_close(found, WORDS[word].theirs(x), equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["interpret", "cpu", "cuda-emulated"])
def test_the_row_of_an_id_that_the_table_has_not_is_nan(target: str) -> None:
    @tg.spec
    def rows() -> Any:
        return tg.embedding(tg.input("ids", (4,), "int32"), tg.weight("t", (3, 8), "float32"))

    ids, table = torch.tensor([2, -1, 3, 0], dtype=torch.int32), torch.randn(3, 8)
    found = tg.compile(rows(), target)(ids, table)
    assert torch.equal(found[[0, 3]], table[[2, 0]]) and found[[1, 2]].isnan().all()


@pytest.mark.parametrize("target", ["interpret", "cpu", "cuda-emulated"])
def test_the_number_of_a_column_that_the_row_has_not_is_nan(target: str) -> None:
    @tg.spec
    def rows() -> Any:
        return tg.take_along(tg.input("x", (2, 3), "float16"), tg.input("ids", (2, 4), "int32"))

    x, ids = torch.randn(2, 3).half(), torch.tensor([[2, -1, 3, 0], [1, 1, 2, 99]], dtype=torch.int32)
    y = tg.compile(rows(), target)(x, ids)
    there = torch.tensor([[True, False, False, True], [True, True, True, False]])
    assert y[there].tolist() == [x[0, 2], x[0, 0], x[1, 1], x[1, 1], x[1, 2]] and y[~there].isnan().all()


@pytest.mark.parametrize("target", ["interpret", "cpu", "cuda-emulated"])
def test_of_equal_numbers_the_lower_column_comes_first_and_a_nan_counts_as_infinity(target: str) -> None:
    @tg.spec
    def rows() -> Any:
        x = tg.input("x", (4, 9), "float32")
        return tg.topk(x, 4)[1], tg.argmax(x)

    nan, inf = float("nan"), float("inf")
    x = torch.tensor([
        [0.0, 1, -0.0, 0, 1, -1, -2, 1, 0],
        [-inf, -inf, -inf, -1, -inf, -inf, -inf, -inf, -inf],
        [3, nan, 2, inf, 1, nan, 4, 5, 6],
        [7] * 9,
    ])  # fmt: skip
    ids, best = tg.compile(rows(), target)(x)
    assert ids.dtype == best.dtype == torch.int32
    assert ids.tolist() == [[1, 4, 7, 0], [3, 0, 1, 2], [1, 3, 5, 8], [0, 1, 2, 3]]
    assert best.tolist() == [[1], [3], [1], [0]]


def test_values_that_nobody_uses_are_left_out() -> None:
    @tg.spec
    def ids_alone() -> Any:
        _, ids = tg.topk(tg.input("x", (4, 9), "float32"), 2, name="top")
        return ids

    assert [c.name for c in ids_alone().calls] == ["top"]
    assert [t.name for t in ids_alone().tensors] == ["x", "top"]
