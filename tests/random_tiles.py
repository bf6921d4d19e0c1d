"""Random tiles of random convolutions and linears on the emulator of sm_80: those that are planned, and any
that may be asked for, against the program in float32.

    python -m tests.random_tiles --first 0 --count 200 --jobs 2
"""

from __future__ import annotations

import random

from tests.emulated.kernels import emulated
from tests.gpu.gemms import Case, biased, gated, mlp
from tests.gpu.ops import pair
from tests.seeds import told_of_each

TYPES = ("float16", "bfloat16")


def draw(seed: int) -> Case:
    chance = random.Random(seed)
    return (_convolutions if chance.random() < 0.5 else _linears)(chance, f"seed {seed}")


def _convolutions(chance: random.Random, name: str) -> Case:
    size, dilation = chance.choice((1, 3, 3, 3, 5, 7)), chance.choice((1, 1, 2))
    pixels = chance.randint(max(3, dilation * (size // 2) + 1), 16)
    channels, filters = chance.choice((8, 16, 24, 40, 64, 64, 72, 128)), chance.choice((0, 0, 8, 24, 64, 88))
    sizes = {
        "B": chance.choice((1, 1, 2, 3)),
        "HW": pixels,
        "C": channels,
        "N": filters,
        "size": size,
        "stride": chance.choice((1, 1, 2)),
        "dilation": dilation,
        "dtype": chance.choice(TYPES),
    }

    def tile(depth: int) -> tuple[int, ...]:
        lines, columns = chance.randint(1, pixels), chance.randint(1, pixels)
        return chance.choice((1, 1, 2)), lines, columns, 8 * chance.randint(1, 16), depth

    asked = {"tiles": {"first": tile(channels), "second": tile(filters or channels)}}
    return Case(name, pair, sizes, asked if chance.random() < 0.5 else {})


def _linears(chance: random.Random, name: str) -> Case:
    spec, ops = chance.choice(((mlp, ("up", "down")), (gated, ("gate_up", "down")), (biased, ("y",))))
    sizes = {"M": chance.choice((1, 5, 16, 17, 33, 64, 65, 100, 130)), "dtype": chance.choice(TYPES)}
    sizes |= {name: 8 * chance.randint(1, 40) for name in (("N", "K") if spec is biased else ("H", "I"))}

    def tile() -> tuple[int, ...]:
        return chance.choice((16, 32, 64, 72, 128)), 8 * chance.randint(1, 24), 64

    return Case(name, spec, sizes, {"tiles": {op: tile() for op in ops}} if chance.random() < 0.6 else {})


def problem(seed: int) -> str:
    """What is wrong with a draw's results, or an empty string."""
    case = draw(seed)
    try:
        told = emulated(case, range(seed % 3, seed % 3 + 1), target="sm_80")
    except Exception as error:  # of any kind: it is what is looked for
        told = f"{type(error).__name__}: {str(error)[:300]}"
    return told and f"{case.name}, {case.program}, {case.options}: {told}"


def main() -> int:
    told = list(told_of_each(__doc__, problem))
    wrong = [said for said in told if said]
    print("\n".join((*wrong, f"{len(told) - len(wrong)} right, {len(wrong)} wrong")))
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
