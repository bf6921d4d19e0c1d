"""Every example on the emulator, in both 16-bit types: right, without a race, and at rest when it ends.

A second launch follows the first with nothing done in between."""

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
        marks=[pytest.mark.full] if name in NETS and (name, dtype) != ("vgg19", "float16") else [],
    )
    for name, sizes in EXAMPLES
    for dtype in ("bfloat16", "float16")
]


@pytest.mark.parametrize("name, sizes, dtype", TWICE)
def test_an_example_is_right_twice_in_a_row(name: str, sizes: dict[str, Any], dtype: str) -> None:
    program = program_of(name, sizes, dtype)
    case = Case(name, lambda: program, {})
    assert emulated(case, range(1) if name in NETS else range(3), launches=2) == ""
