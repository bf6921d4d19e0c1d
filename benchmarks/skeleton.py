"""What synchronisation alone costs on this GPU: skeletons of one MLP under several policies, in CUDA graphs,
interleaved.

Every tile is taken, waits and posts as in a full kernel and computes nothing, so the time is
launch + ranks drawn + hand-offs + waits.
"""

from __future__ import annotations

import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

import tilegen as tg
from tests.gpu.test_skeleton import Skeleton
from tilegen.frontend.loader import load_program

ROOT = Path(__file__).resolve().parent
REPLAYS, ROUNDS = 50, 9


def captured(kernel: Skeleton) -> torch.cuda.CUDAGraph:
    kernel.launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYS):
            kernel.launch()
    return graph


def measure(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / REPLAYS


def main() -> None:
    program = load_program(str(ROOT.parent / "examples" / "gpt3_mlp.py"), {"M": 512})
    rows = []
    contenders = {}
    for scheduling in ("dynamic", "lists"):
        for policy in ("kernel", "row", "chunk:4", "tile"):
            plan = tg.plan(
                program,
                "h200",
                tiles={"up": (128, 192), "down": (128, 192)},
                policies={"h": policy},
                order="op_major",
                scheduling=scheduling,
            )
            contenders[policy, scheduling] = (plan, Skeleton(plan))
    graphs = {key: captured(kernel) for key, (_, kernel) in contenders.items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
    for _ in range(ROUNDS):
        for key, graph in graphs.items():
            times[key].append(measure(graph))
    for (policy, scheduling), (plan, _) in contenders.items():
        t = times[policy, scheduling]
        us = statistics.median(t)
        rows.append(
            {
                "workload": "skeleton of gpt3_mlp",
                "sizes": {"M": 512},
                "variant": f"{policy}, {scheduling}",
                "tiles": plan.order.count,
                "semaphores": len(plan.targets),
                "waits": len(plan.wait_table.rank),
                "us": round(us, 2),
                "spread": round((max(t) - min(t)) / us, 3),
                "rounds": ROUNDS,
            }
        )
        print(
            f"{policy:<10}{scheduling:<8}{plan.order.count:>6} tiles {len(plan.wait_table.rank):>7} waits"
            f" {us:>9.2f} us"
        )
    data = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "tilegen": tg.__version__},
        "run": "benchmarks/skeleton.py",
        "rows": rows,
    }
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "skeleton-h200.json"
    out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
