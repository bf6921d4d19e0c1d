"""torch.compile(backend="tilegen"): scores that a model hides by a choice are those of attention with a mask,
and tensors of no dimensions that are constants are numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiled import compiled, counted, left, same, taken
from tilegen.frontend.program import Program
from tilegen.ops.attention import AttentionAttributes

T, HEADS, WIDTH = 24, 4, 32
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Those of all regions."""
    return taken(monkeypatch)


class Attention(nn.Module):
    """hide: scores, what is seen (T, T) as numbers → scores of which the rest is hidden."""

    def __init__(self, hide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.qkv, self.out, self.hide = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), hide
        self.register_buffer("seen", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and values."""
        n = x.shape[1]
        q, k, v = (a.unflatten(-1, (HEADS, -1)).transpose(1, 2) for a in self.qkv(x).chunk(3, -1))
        return self.hide(q @ k.transpose(-1, -2) * 0.3, self.seen[:, :, :n, :n]), v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, v = self.scores(x)
        return self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape))


def least(of: torch.Tensor) -> torch.Tensor:
    return torch.full([], torch.finfo(of.dtype).min, dtype=of.dtype)


HIDDEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "filled with -inf": lambda a, seen: a.masked_fill(seen == 0, -float("inf")),
    "filled with what is least": lambda a, seen: a.masked_fill(seen == 0, torch.finfo(a.dtype).min),
    "chosen where seen": lambda a, seen: torch.where(seen > 0, a, least(a)),
    "chosen where not seen": lambda a, seen: torch.where(seen == 0, torch.tensor(-1e38), a),
    "of each head": lambda a, seen: a.masked_fill(seen.expand(1, HEADS, -1, -1) == 0, -float("inf")),
}


def attentions(programs: list[Program]) -> list[AttentionAttributes]:
    calls = (call.attributes for program in programs for call in program.calls)
    return [a for a in calls if isinstance(a, AttentionAttributes)]


@BOTH
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_scores_are_those_of_attention(
    name: str, dtype: torch.dtype, programs: list[Program]
) -> None:
    model, x = Attention(HIDDEN[name]).to(dtype), torch.randn(2, 16, WIDTH, dtype=dtype)
    with torch.no_grad():
        same(compiled(model)(x), model(x), 2e-5 if dtype is torch.float32 else 1e-2)
    assert counted()["regions"] == 1 and len(attentions(programs)) == 1, left()


def test_a_row_of_which_all_is_hidden_is_eagers() -> None:
    def hide(a: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return a.masked_fill(seen.roll(-1, -1).tril(-1) == 0, torch.finfo(a.dtype).min)

    model, x = Attention(hide), torch.randn(2, 16, WIDTH)
    with torch.no_grad():
        same(compiled(model)(x), model(x))


KEPT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "hidden by a score that may be": lambda a, seen: a.masked_fill(seen == 0, -3.0),
    "hidden by what half precision holds": lambda a, seen: a.masked_fill(seen == 0, -65504.0),
    "hidden by a tensor": lambda a, seen: torch.where(seen > 0, a, a.flip(-1)),
    "read besides": lambda a, seen: (m := a.masked_fill(seen == 0, -1e38)) + 0 * m.amax(-1, keepdim=True),
}


@pytest.mark.parametrize("name", KEPT)
def test_scores_that_no_mask_says_stay_chosen(name: str, programs: list[Program]) -> None:
    model, x = Attention(KEPT[name]), torch.randn(2, 16, WIDTH)
    with torch.no_grad():
        same(compiled(model)(x), model(x))
    assert not attentions(programs)


def test_hidden_scores_that_are_returned_are_eagers() -> None:
    class Scores(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scores(x)[0]

    model, x = Scores(HIDDEN["filled with what is least"]), torch.randn(2, 16, WIDTH)
    with torch.no_grad():
        found, wanted = compiled(model)(x), model(x)
    assert torch.equal(found == torch.finfo(torch.float32).min, wanted == torch.finfo(torch.float32).min)


def test_gradients_through_hidden_scores_are_eagers() -> None:
    model, x = Attention(HIDDEN["filled with -inf"]), torch.randn(2, 16, WIDTH)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    found = torch.autograd.grad(compiled(model)(x).square().sum(), list(model.parameters()))
    same(found, wanted)


NUMBERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a root": lambda x: F.silu(x) / torch.sqrt(torch.tensor(8.0)),
    "a number first": lambda x: torch.tensor(2.5) - F.silu(x),
    "a whole number": lambda x: F.silu(x) * torch.tensor(3),
    "of eight bytes": lambda x: F.silu(x) + torch.tensor(0.1, dtype=torch.float64),
    "beside a tensor alone": lambda x: torch.maximum(F.silu(x), torch.tensor(0.25, dtype=x.dtype)),
}


@BOTH
@pytest.mark.parametrize("name", NUMBERS)
def test_constants_of_no_dimensions_are_numbers(name: str, dtype: torch.dtype) -> None:
    model, x = NUMBERS[name], torch.randn(4, 8, dtype=dtype)
    same(compiled(model)(x), model(x), 2e-5 if dtype is torch.float32 else 1e-2)
    assert counted()["regions"] == 1 and not left(), left()


def test_a_constant_that_widens_the_result_stays_a_tensor() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x * 2) * torch.tensor(0.5) + torch.tensor(1.5) * torch.tensor(2)

    x = torch.arange(8)
    same(compiled(model)(x), model(x))


def test_a_buffer_of_no_dimensions_is_read_anew() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("by", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.silu(x) * self.by

    model, x = Scaled(), torch.randn(4, 8)
    run = compiled(model)
    same(run(x), model(x))
    model.by.fill_(3.0)
    same(run(x), model(x))


def test_what_a_user_defined_is_called_each_time() -> None:
    calls = []

    @torch.library.custom_op("tilegen_tests::calls", mutates_args=())
    def count() -> torch.Tensor:
        calls.append(1)
        return torch.tensor(float(len(calls)))

    count.register_fake(lambda: torch.empty(()))

    def model(x: torch.Tensor) -> torch.Tensor:
        return F.silu(x) * count()

    x, run = torch.randn(4, 8), compiled(model)
    with torch.no_grad():
        found = [run(x) for _ in range(3)]
    same(found, [F.silu(x) * n for n in (1, 2, 3)])


MIN = torch.finfo(torch.float32).min
TWICE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "by two fills": lambda a, seen: a.masked_fill(seen == 0, MIN).masked_fill(seen.roll(3, -1) == 0, MIN),
    "by a sum and a fill": lambda a, seen: (
        (a + torch.where(seen > 0, 0.0, MIN)).masked_fill(seen.roll(3, -1) == 0, MIN)
    ),
    "by a fill and a sum": lambda a, seen: (
        a.masked_fill(seen == 0, -1e38) + torch.where(seen.roll(3, -1) > 0, 0.0, -1e38)
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_scores_that_are_hidden_twice_are_eagers(name: str) -> None:
    """Rows of padding, too, all of whose scores are hidden by one mask or the other."""
    model, x = Attention(TWICE[name]), torch.randn(2, 16, WIDTH)
    with torch.no_grad():
        same(compiled(model)(x), model(x))
