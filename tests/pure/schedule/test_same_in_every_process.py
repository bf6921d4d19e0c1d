"""Plans and texts are functions of the program alone: sets, whose order another hash seed changes, decide
nothing. The cache's key is the text."""

import hashlib
import os
import subprocess
import sys

import tilegen as tg
from tests.random_programs import draw_case

SEEDS = range(40)


@tg.spec
def gated(M=64, H=128, N=64):
    x, w, b = tg.input("x", (M, H)), tg.weight("w", (2 * N, H)), tg.weight("b", (2 * N,))
    first, second = tg.linear(x, w, b).chunk(2)
    return first * second


def digests() -> str:
    """Of what random programs are cut into, and of a kernel's text and plan."""
    texts = [repr(draw_case(seed)) for seed in SEEDS]
    texts += [tg.generate(gated(), target="sm_90a", on="h200").text, tg.plan(gated(), "h200").digest]
    return " ".join(hashlib.sha256(text.encode()).hexdigest()[:12] for text in texts)


def test_another_hash_seed_gives_the_same_plans_and_texts():
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "3")  # of which one turns {"acc0", "acc1"} around
    ]
    first, second = (run.communicate()[0].split() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert len(first) == len(SEEDS) + 2 and first == second


if __name__ == "__main__":
    print(digests())
