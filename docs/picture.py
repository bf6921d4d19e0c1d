"""Draws docs/tiles.svg: the same two GeMMs on 16 SMs with one semaphore for all of `up` (a kernel boundary) and with one per row block."""

from pathlib import Path

import tilegen as tg
from tilegen.loader import load_program
from tilegen.svg import svg
from tilegen.trace import Trace

HERE = Path(__file__).parent


def main() -> None:
    program = load_program(str(HERE.parent / "examples" / "gpt3_mlp.py"), {"M": 640, "H": 2048, "I": 1024})
    panels = []
    for title, policy in (("kernel boundary (one semaphore)", "kernel"), ("tile sync (one semaphore per row block)", "row")):
        plan = tg.plan(program, 16, tiles={"up": (128, 256), "down": (128, 256)}, policies={"h": policy}, order="phase")
        panels.append((title, Trace.simulated(plan)))
    (HERE / "tiles.svg").write_text(svg(panels))


if __name__ == "__main__":
    main()
