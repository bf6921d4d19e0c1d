"""Every example on the emulator, in both 16-bit types: right, without a race, and at rest when it ends.

A second launch follows the first with nothing done in between. A quick run takes one type of each, by
turns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.examples import EXAMPLES, NETS, program_of, titled
from tests.emulated.kernels import emulated
from tests.gpu.gemms import Case

TWICE = [
    pytest.param(
        name,
        sizes,
        dtype,
        id=f"{titled(name, sizes)}, {dtype}",
        marks=[pytest.mark.full] if name == "resnet38" or n % 2 != dtype_number else [],
    )
    for n, (name, sizes) in enumerate(EXAMPLES)
    for dtype_number, dtype in enumerate(("float16", "bfloat16"))
]


@pytest.mark.parametrize("name, sizes, dtype", TWICE)
def test_an_example_is_right_twice_in_a_row(name: str, sizes: dict[str, Any], dtype: str) -> None:
    program = program_of(name, sizes, dtype)
    case = Case(name, lambda: program, {})
    assert emulated(case, range(1) if name in NETS else range(3), launches=2) == ""
