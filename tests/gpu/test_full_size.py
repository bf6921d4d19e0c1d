"""Every example at the size of its model, in both 16-bit types, on a GPU: against float32 on the same GPU,
poisoned."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import gemm
from tests.gpu.ops import example
from tilegen.bench.accuracy import error_of
from tilegen.bench.compare import outcome
from tilegen.bench.ladder import on_device_reference
from tilegen.frontend.program import Program
from tilegen.runtime.data import random_arguments
from tilegen.runtime.driver import missing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here"),
    pytest.mark.usefixtures("impatient", "poison"),
]

SIZES: list[tuple[str, dict[str, Any]]] = [
    ("gpt3_mlp", {}),
    ("llama_mlp", {}),
    ("gpt3_attention", {}),
    ("llama_attention", {}),
    ("gpt_layer", {}),
    ("llama_layer", {}),
    ("llama_layer", {"S": 512}),
    ("resnet38", {}),
    ("vgg19", {}),
]


@pytest.fixture(autouse=True)
def roomy() -> Iterator[None]:
    """The tensors of one test go before the next one needs the memory."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name, sizes",
    SIZES,
    ids=lambda v: v if isinstance(v, str) else " ".join(f"{k}={n}" for k, n in v.items()),
)
def test_one_launch(name: str, sizes: dict[str, Any], dtype: str) -> None:
    compare(example(name, dtype=dtype, **sizes), lowering="persistent")


@pytest.mark.parametrize("name", ["resnet38", "vgg19"])
def test_a_launch_for_each_op(name: str) -> None:
    """Which some nets are faster with."""
    compare(example(name), lowering="multi_launch", programmatic=True)


@pytest.mark.parametrize("rows, columns", [(560, 1024), (638, 1024), (310, 8200)])
def test_lists_of_tiles_by_gpc(rows: int, columns: int) -> None:
    """112 tiles of 132 SMs, 128, and 516; tests/pure/targets/test_by_gpc.py: that these go by GPC."""
    compare(gemm(M=rows, N=columns, K=4096), tiles={"y": (80, 64, 64)}, lowering="persistent")


def compare(program: Program, **how: Any) -> None:
    kernel: Any = tg.compile(program, "cuda", **how)
    assert kernel.target == "sm_90a" and kernel.proof.ok
    given = random_arguments(program, 0, "cuda")
    want = on_device_reference(program, [a.clone() for a in given])
    arguments = [a.clone() for a in given]
    result = outcome(program, kernel(*arguments), arguments)
    kernel.check()
    assert error_of(result, want) < 5e-3
