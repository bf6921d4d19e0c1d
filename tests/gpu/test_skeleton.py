"""Plans' synchronisation on a real GPU: every tile runs once, nobody starts before those it waits for,
counters come back to zero."""

import pytest
import torch

from tests.gpu.plans import PLANS
from tests.gpu.skeleton import skeleton
from tilegen.runtime.driver import Module, missing
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.schedule.plan import Plan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "a GPU is here")]
RUNS = 200


class Skeleton:
    """A loaded skeleton with its counters and logs."""

    def __init__(self, plan: Plan):
        major, minor = torch.cuda.get_device_capability()
        self.plan = plan
        self.module = Module(compile_cuda(skeleton(plan), f"sm_{major}{minor}").code)
        self.counters = torch.zeros((len(plan.targets) + 3) * 32, dtype=torch.int32, device="cuda")
        self.hang = torch.full((7,), -1, dtype=torch.int32, device="cuda")
        self.log = torch.zeros(2 * plan.order.count, dtype=torch.int64, device="cuda")
        self.runs = torch.zeros(plan.order.count, dtype=torch.int32, device="cuda")

    def launch(self, patience_ns: int = 2_000_000_000) -> None:
        workers = self.plan.machine.clusters(self.plan.cluster)
        pointers = [
            self.counters.data_ptr(),
            self.hang.data_ptr(),
            patience_ns,
            self.log.data_ptr(),
            self.runs.data_ptr(),
        ]
        self.module.launch("tg_skeleton", workers, 32, pointers)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_synchronisation(name: str) -> None:
    plan = PLANS[name]()
    kernel = Skeleton(plan)
    table = plan.wait_table
    posters: dict[int, list[int]] = {}
    for tile in expanded_posts(plan):
        posters.setdefault(tile[1], []).append(tile[0])
    for run in range(RUNS):
        kernel.launch()
        if run % 50 == 0:
            torch.cuda.synchronize()
            times = kernel.log.view(-1, 2).cpu().numpy()
            for rank, semaphore in zip(table.rank.tolist(), table.semaphore.tolist(), strict=True):
                assert times[rank, 1] >= max(times[p, 1] for p in posters[semaphore]), (rank, semaphore)
    torch.cuda.synchronize()
    assert (kernel.runs == RUNS).all() and (kernel.hang == -1).all() and (kernel.counters == 0).all()


def test_graph_replay() -> None:
    """Counters reset themselves, so a captured launch can be replayed."""
    plan = PLANS["mlp row"]()
    kernel = Skeleton(plan)
    kernel.launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch()
    for _ in range(RUNS):
        graph.replay()
    torch.cuda.synchronize()
    assert (kernel.runs == RUNS + 1).all() and (kernel.counters == 0).all()


def test_missing_post_is_named() -> None:
    """A skeleton whose first op posts nothing ends by itself, names a waiter, and the next launch of a right
    one works."""
    plan = PLANS["mlp row"]()
    broken = Skeleton(plan)
    source = skeleton(plan)
    posting = source.index("tg_post(g, ", source.index("TG_FN void tg_posts"))
    changed = source[:posting] + "(void)(" + source[posting + len("tg_post(g, ") :]
    major, minor = torch.cuda.get_device_capability()
    broken.module = Module(compile_cuda(changed, f"sm_{major}{minor}").code)
    broken.launch(patience_ns=20_000_000)
    torch.cuda.synchronize()
    hang = broken.hang.tolist()
    assert hang[0] >= 0 and 0 <= hang[4] < len(plan.targets) and hang[5] < hang[6] == plan.targets[hang[4]]
    assert (broken.counters == 0).all()
    right = Skeleton(plan)
    right.launch()
    torch.cuda.synchronize()
    assert (right.runs == 1).all()


def expanded_posts(plan: Plan) -> list[tuple[int, int]]:
    """(rank, semaphore) of every post."""
    from tilegen.schedule.expand import expanded

    return [(t["rank"], n) for t in expanded(plan)["tiles"] for part in t["ctas"] for n, _ in part["posts"]]
