"""Every word of the language and rows of any width on a GPU, in the other 16-bit type than in test_ops.py:
against float32, poisoned, the same bits every time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpu.gemms import Case
from tests.gpu.language import LANGUAGE
from tests.gpu.ops import MASKS, THREADS, WINDOWS
from tests.gpu.test_ops import against_float32
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]
OTHER = {"bfloat16": "float16", "float16": "bfloat16"}


def in_the_other_type(case: Case) -> Case:
    dtype = case.sizes.get("dtype") or dict(case.spec().sizes)["dtype"]
    other = OTHER.get(dtype, "bfloat16")
    return replace(case, name=f"{case.name}, as {other}", sizes={**case.sizes, "dtype": other})


CASES = [in_the_other_type(case) for case in (*THREADS, *LANGUAGE, *WINDOWS, *MASKS)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_word_in_the_other_type(case: Case) -> None:
    against_float32(case)
