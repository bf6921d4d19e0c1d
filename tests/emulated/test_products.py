"""Products by threads, on the emulator: every layout of the operands, and planted faults."""

from __future__ import annotations

import pytest

from tests.emulated.kernels import emulated, replaced
from tests.gpu.gemms import Case
from tests.gpu.language import any_width, multiplied

WHOLE = Case("whole units", multiplied, {"M": 72, "K": 200, "N": 72, "B": 1})
SMALL = {"tiles": {"up": (16, 64, 64), "pair": (16, 64, 64)}}
CHAIN = Case("a chain", any_width, {"M": 96, "K": 77, "N": 51}, SMALL)  # whose rows other tiles make
TALL = {"tiles": {"p": (128, 128, 64)}}
ODD = Case("odd rows", multiplied, {"M": 37, "K": 127, "N": 21, "ways": "nt", "B": 2})
ACROSS = Case("odd rows across", multiplied, {"M": 37, "K": 149, "N": 21, "ways": "tn", "B": 1})
TYPES = ("bfloat16", "float32")
CASES = [
    CHAIN,
    *(
        Case(
            f"{ways} of {n} columns, {dtype}",
            multiplied,
            {"ways": ways, "K": n, "N": n, "M": n, "dtype": dtype},
        )
        for ways in ("nn", "nt", "tn", "tt")
        for n, dtype in ((72, "bfloat16"), (73, "float16"), (70, "float32"), (68, "float32"))
    ),
    Case("large tiles", multiplied, {"B": 1, "M": 140, "N": 136, "K": 72}, TALL),
    Case("large tiles, odd", multiplied, {"B": 1, "M": 140, "N": 133, "K": 71, "ways": "tt"}, TALL),
    Case("three columns of blocks", multiplied, {"B": 1, "M": 299, "N": 136, "K": 203, "ways": "nt"},
         {"tiles": {"p": (192, 72, 64)}}),
    Case("less than a chunk", multiplied, {"M": 9, "K": 3, "N": 5}),
    ACROSS,
    *(Case(f"lines that warps share, {d}", multiplied, {"M": 9, "N": 90, "dtype": d}) for d in TYPES),
]
READ = "    unsigned w[TURNS]"
FAULTS = [
    (WHOLE, "copies are not awaited", "tg_copies_wait<STAGES - 2>();", ""),
    (WHOLE, "a stage is written while it is read", "    tg_math_meet();  // chunk c is there", "    //"),
    (WHOLE, "rows behind the matrix are read", "there && at < end ? 16 : 0", "16"),
    (ODD, "copies of a shifted line are not awaited", "tg_copies_wait<STAGES - 2>();", ""),
    (ODD, "those of other lanes are not", f"    __syncwarp();\n{READ}", READ),
    (ODD, "a place is written before it is read", "    __syncwarp();  // all have read\n", ""),
    (ODD, "the begin of a row is left out", "head.put(to + PITCH * last.line);", ";"),
    (ODD, "the end of a row is left out", "tg_min(tg_max(left, 0), 16)", "left >= 16 ? 16 : 0"),
    (ODD, "units behind a row are read", "tg_min(tg_max(left, 0), 16)", "16"),
    (ODD, "what comes after a line's last unit is left out", "    copy(last, k, to);\n", ""),
    (ODD, "rows lie as the first one does", "tg_skew(from)", "tg_skew(p)"),
    (ACROSS, "only the first lines have a begin", "if (!ACROSS && k > 0) return;", "if (k > 0) return;"),
    (ACROSS, "columns behind the last are read", "? rows : K) - before", "? ROWS : K) - before"),
    (ACROSS, "lines behind the last are read", "(k + u.line < K ? u.left : 0)", "u.left"),
]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_right_under_an_adversary(case: Case, target: str) -> None:
    assert emulated(case, range(1), target=target) == ""


@pytest.mark.parametrize(("case", "what", "old", "new"), FAULTS, ids=[what for _, what, _, _ in FAULTS])
def test_a_fault_is_seen(case: Case, what: str, old: str, new: str) -> None:
    assert emulated(case, range(4), replaced(old, new)) != ""
