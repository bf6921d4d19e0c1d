"""Random modules under torch.compile(backend="tilegen"): blocks of tests/random_models.py, around which
tensors are written in place, returned as they came, viewed, returned twice, or never read.

    python -m tests.random_backend --count 200     # each against eager: results, aliases, what was written
    python -m tests.random_backend --moves         # the first size of the input moves
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.compiled import compiled, counted
from tests.random_models import Drawn, drawn
from tilegen import config
from tilegen.runtime.data import relative_error

ROUNDED = 3.0  # times the error that torch itself makes in bfloat16
LEAST = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # relative Frobenius error that is never asked about


# --- what happens around a block ----------------------------------------------------------------------------


def _adds(x: Tensor) -> None:
    x.add_(0.5)


def _clears_columns(x: Tensor) -> None:
    x[..., :3] = 0.25


def _scales_a_view(x: Tensor) -> None:
    x.view(-1)[: x.numel() // 2].mul_(2.0)


def _swaps(x: Tensor) -> None:
    x.copy_(x.flip(0))


WRITES: tuple[Callable[[Tensor], None], ...] = (_adds, _clears_columns, _scales_a_view, _swaps)
RESULTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "result": lambda x, y: y,
    "input": lambda x, y: x,
    "view of the input": lambda x, y: x.flatten(1)[:, 1:],
    "view of the result": lambda x, y: y.reshape(-1)[2:],
    "turned result": lambda x, y: y.transpose(0, -1),
    "sum with what it was": lambda x, y: y + y.detach().clone(),
    "numbers of the input": lambda x, y: torch.exp(-x.abs()).mean(-1),
    "a constant": lambda x, y: torch.arange(3, device=x.device),
}


class Tangled(nn.Module):
    """block: what lies inside. told: what is done besides."""

    def __init__(self, block: Drawn, seed: int):
        super().__init__()
        chance = random.Random(f"tangled {seed}")
        self.block = block
        self.before = chance.choice([None, None, *WRITES])
        self.after = chance.choice([None, None, *WRITES])  # of the result
        self.late = chance.choice([None, None, None, *WRITES])  # of the input, when the block has read it
        self.dead, self.counts = chance.random() < 0.3, chance.random() < 0.3
        self.returned = ["result", *chance.choices(list(RESULTS), k=chance.randint(0, 3))]
        self.register_buffer("calls", torch.zeros(()))

    @property
    def told(self) -> str:
        written = [f.__name__ for f in (self.before, self.after, self.late) if f]
        return ", ".join([*self.block.told, *written, *self.returned])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.counts:
            self.calls.add_(1)
        if self.before:
            self.before(x)
        y = self.block(x)
        if self.dead:
            torch.softmax(y.flatten() * 3.0, -1).sum()
        if self.late:
            self.late(x)
        if self.after:
            y = y.clone()
            self.after(y)
        return tuple(RESULTS[name](x, y) for name in self.returned)


# --- eager and compiled -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """tensors: results, the input and the buffer after a call. aliases: pairs of them that share memory."""

    tensors: list[Tensor]
    aliases: set[tuple[int, int]]

    @staticmethod
    def of(model: nn.Module, run: Callable[..., tuple[Tensor, ...]], x: Tensor, moves: bool = False) -> Ran:
        x = x.clone()
        if moves:
            torch._dynamo.maybe_mark_dynamic(x, 0)
        with torch.no_grad():
            tensors = [*run(x), x, *model.buffers()]
        places = [t.untyped_storage().data_ptr() for t in tensors]
        pairs = {(i, k) for k in range(len(places)) for i in range(k) if places[i] == places[k]}
        return Ran(tensors, pairs)


Compile = Callable[[nn.Module], Callable[..., tuple[Tensor, ...]]]


def verdict(seed: int, device: str = "cpu", moves: bool = False, compile: Compile = compiled) -> str:
    """ "right", or what is wrong. Twice, for what the first call writes; where the first size moves, the
    second time with twice as much of it, if the module takes that."""
    dtype = torch.bfloat16 if seed % 3 == 0 else torch.float32
    x = drawn(seed)[1].to(device, dtype)
    model, eager, exact = (_model(seed).to(device, d) for d in (dtype, dtype, torch.float32))
    run = compile(model)
    for again in (False, True):
        if moves and again and not _takes(seed, x := torch.cat((x, x.flip(0)))):
            break
        found = Ran.of(model, run, x, moves)
        wanted, truth = Ran.of(eager, eager, x), Ran.of(exact, exact, x.float())
        if found.aliases != wanted.aliases:
            return f"wrong: {found.aliases} share memory, eager {wanted.aliases}: {model.told}"
        for n, (a, b, t) in enumerate(zip(found.tensors, wanted.tensors, truth.tensors, strict=True)):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"wrong: result {n} is {a.dtype} {a.shape}, eager {b.dtype} {b.shape}: {model.told}"
            error, torchs = relative_error(a, t), relative_error(b, t)
            if not error <= max(LEAST[dtype], ROUNDED * torchs):
                return f"wrong: result {n} is off by {error:.1e}, eager {torchs:.1e}: {model.told}"
    return "right" if counted()["regions"] else "left alone"


def told(seed: int, device: str, moves: bool, compile: Compile = compiled) -> str:
    """The verdict; an error is told as one, and the others still run."""
    try:
        return verdict(seed, device, moves, compile)
    except Exception as error:
        return f"wrong: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


def _by_inductor(model: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
    torch._dynamo.reset()
    return torch.compile(model)


def _takes(seed: int, x: Tensor) -> bool:
    """Whether a module lets its first size move: it names none."""
    try:
        Ran.of(model := _model(seed).to(x.device, x.dtype), model, x)
    except RuntimeError:  # torch's own, of a view that does not fit
        return False
    return True


def _model(seed: int) -> Tangled:
    """Anew: steps of a block hold its weights, which a copy would share."""
    return Tangled(drawn(seed)[0], seed).requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--moves", action="store_true", help="the first size of the input moves")
    o = parser.parse_args()
    config.min_gain = 0
    found = Counter[str]()
    for seed in range(o.first, o.first + o.count):
        said = told(seed, o.device, o.moves)
        if said.startswith("wrong") and told(seed, o.device, o.moves, _by_inductor).startswith("wrong"):
            said = f"Inductor's own: {said}"
        found[said.partition(":")[0]] += 1
        if said != "right":
            print(seed, said, flush=True)
    print(dict(found))
    raise SystemExit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()
