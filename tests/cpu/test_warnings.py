"""The generated C++ compiles without a warning. (g++ 12 sees an overflow in loops that a clipped tile never
enters.)"""

from pathlib import Path

import pytest

import tilegen as tg
from tilegen.frontend.loader import load_program
from tilegen.runtime.cxx import WARNINGS, compile_source
from tilegen.targets.cpu.emit import generate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("example", ["gpt3_mlp", "llama_layer", "gpt_layer", "resnet38"])
def test_no_warnings(example: str, tmp_path: Path) -> None:
    plan = tg.plan(load_program(str(EXAMPLES / f"{example}.py"), {}), "cpu:2")
    flags = (
        "-O1",
        "-std=c++17",
        "-pthread",
        *WARNINGS,
        "-Wno-aggressive-loop-optimizations",
        "-shared",
        "-fPIC",
    )
    assert compile_source(generate(plan), tmp_path, flags, "kernel.so").stat().st_size > 0
