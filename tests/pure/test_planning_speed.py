"""How long planning takes: cold, in a process with its imports, and warm, from the cache. Loaded machines get twice the time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import tilegen as tg
from tilegen.loader import load_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLACK = 2.0
COLD = """
import sys, time
start = time.perf_counter()
import tilegen as tg
from tilegen.loader import load_program
made = tg.plan(load_program({path!r}, {sizes!r}), "h200", **{options!r})
seconds = time.perf_counter() - start
assert "torch" not in sys.modules, "planning imports torch"
print(seconds, made.order.count)
"""
CASES = [
    ("gpt3_mlp", {"M": 2048}, {"tiles": {"up": (128, 256, 64), "down": (128, 256, 64)}}, 2.0, 2048 // 128 * (6144 // 256 + 12288 // 256)),
    ("llama_layer", {}, {}, 5.0, None),
    ("resnet38", {}, {}, 10.0, None),
]


@pytest.mark.parametrize(("name", "sizes", "options", "limit", "tiles"), CASES, ids=[c[0] for c in CASES])
def test_cold(name, sizes, options, limit, tiles):
    code = COLD.format(path=str(EXAMPLES / f"{name}.py"), sizes=sizes, options=options)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    whole = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    seconds, count = float(done.stdout.split()[0]), int(done.stdout.split()[1])
    print(f"{name}: {count} tiles planned in {seconds:.2f} s, the process took {whole:.2f} s (limit {limit} s)")
    assert count == tiles or tiles is None
    assert whole <= SLACK * limit


def test_warm(tmp_path, monkeypatch):
    """tg.compile of a plan and binary that are in the cache."""
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path))
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 64, "H": 512, "I": 256, "dtype": "float32"})
    tg.compile(program, "cpu", on="cpu:2")
    times = []
    for _ in range(5):
        start = time.perf_counter()
        kernel = tg.compile(program, "cpu", on="cpu:2")
        times.append(time.perf_counter() - start)
    print(f"warm compile: {1e3 * min(times):.1f} ms (limit 50 ms)")
    assert kernel.proof.ok and min(times) <= SLACK * 0.05
