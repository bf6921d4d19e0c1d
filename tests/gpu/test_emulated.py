"""The emulator against the GPU that it stands for: one text and the same arguments give equal results.

Equal within rounding: a tensor core adds in an order of its own, and rounds exp2 and its like differently.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilegen as tg
from tests.emulated.examples import EXAMPLES, program_of, titled
from tilegen.bench.accuracy import error_of, tensors
from tilegen.bench.compare import outcome
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]
SMS = 4
ROUNDING = {"bfloat16": 2**-8, "float16": 2**-10}  # relative Frobenius: less than an ulp of each element


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name, sizes", EXAMPLES, ids=[titled(*e) for e in EXAMPLES])
def test_the_emulator_gives_what_the_gpu_gives(name: str, sizes: dict[str, Any], dtype: str) -> None:
    program = program_of(name, sizes, dtype)
    real: Any = tg.compile(program, "cuda", on=SMS, lowering="persistent")
    emulated: Any = tg.compile(program, "cuda-emulated", on=SMS)
    assert real.source == emulated.source and real.proof.ok
    given = random_arguments(program)
    held = [a.clone() for a in given]
    want = outcome(program, emulated(*held), held)
    for _ in range(2):  # the host resets nothing in between
        on_gpu = [a.cuda() for a in given]
        result = outcome(program, real(*on_gpu), on_gpu)
        torch.cuda.synchronize()
        real.check()
        found = tuple(t.cpu() for t in tensors(result))
        assert error_of(found, want) < ROUNDING[dtype]
