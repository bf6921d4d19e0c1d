"""Faults planted in a kernel's text, one at a time: each is seen by the emulator, and by what it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.emulated.kernels import Adversary, Runs, emulated, library_of, replaced, text_of
from tests.emulated.test_kernels import PORTABLE
from tests.gpu.gemms import HOPPER, Case, added, block, both, fan, gemm, mlp
from tests.gpu.ops import OPS, norms
from tilegen.errors import HangError, RaceError

SEEDS = range(24)
STEPS = Case(
    "waits at steps",
    mlp,
    {"M": 130, "H": 256, "I": 256},
    both("up", "down", (64, 64, 64), (64, 64, 64), policies={"*": "tile"}, scheduling="dynamic"),
)
BULK = Case(
    "stores in bulk",
    mlp,
    {"M": 130, "H": 256, "I": 256},
    both("up", "down", (128, 128, 64), (128, 128, 64), policies={"*": "tile"}, scheduling="dynamic"),
)
FIRST = Case("few steps before the first wait", mlp, {"M": 17, "H": 128, "I": 256}, {"scheduling": "static"})
LAST = Case(
    "a pair at the end",
    gemm,
    {"M": 17, "N": 256, "K": 256},
    {"tiles": {"y": (64, 64, 64)}, "cluster": {"y": 2}, "scheduling": "dynamic"},
)
FAN = Case(
    "fan, 128 rows shared",
    fan,
    {"M": 200},
    {
        "tiles": {"q": (128, 192, 64), "k": (128, 192, 64), "v": (128, 128, 64), "o": (128, 128, 64)},
        "cluster": dict.fromkeys("qkvo", "2:m"),
    },
)
TURNS = Case(
    "warpgroups in turn, more steps than stages",
    gemm,
    {"M": 300, "N": 200, "K": 1032},
    {"tiles": {"y": (128, 72, 64)}, "pingpong": {"y": True}},
)
BESIDE = Case(
    "residual of more blocks than buffers",
    added,
    {"M": 500, "N": 304, "K": 72},
    {"tiles": {"y": (192, 128, 64)}, "pingpong": {"y": True}},
    sms=2,
)
ROWS = Case("rows, then a product", norms, {"M": 70, "N": 136}, {"norms": "separate", "tiles": {"n1": (16,)}})
OTHERS = {c.name: c for c in (*HOPPER, *OPS, STEPS, BULK, FIRST, LAST, FAN, TURNS, BESIDE, ROWS)}


@dataclass(frozen=True)
class Fault:
    """change: what is planted; says: what the report must hold."""

    what: str
    case: str
    change: Callable[[str], str]
    says: str = "race"
    launches: int = 1  # that follow each other, the later ones early

    def seen(self) -> str:
        """The first thing that the emulator says."""
        case, early = OTHERS[self.case], self.launches > 1
        return emulated(case, SEEDS, self.change, launches=self.launches, programmatic=early)


def swapped(first: str, second: str) -> Callable[[str], str]:
    """Two pieces of text that follow each other, the other way round: regular expressions."""

    def change(text: str) -> str:
        found = re.search(rf"({first})(\s*)({second})", text)
        assert found is not None, (first, second)
        return text[: found.start()] + found[3] + found[2] + found[1] + text[found.end() :]

    return change


def in_function(name: str, old: str, new: str) -> Callable[[str], str]:
    """Replaced in one function only."""

    def change(text: str) -> str:
        start = re.search(rf"\b{name}\([^;{{]*\{{", text)
        assert start is not None, name
        end = text.index("\n}\n", start.end())
        body = text[start.end() : end]
        assert old in body, (name, old)
        return text[: start.end()] + body.replace(old, new) + text[end:]

    return change


FAULTS = [
    # rows that are not there
    Fault(
        "a tile of 192 rows stores 256",
        "one gemm, 192 rows",
        replaced("w == 1 && m == Op::M64 - 1 ? 1 << 30 :", "false ? 1 << 30 :"),
    ),
    Fault(
        "the last row of tiles counts the bytes of a whole one",
        "one gemm, 192 rows",
        replaced("tg_expect(bar, 15360);", "tg_expect(bar, 24576);"),
        says="no progress",
    ),
    Fault(
        "warps of a warpgroup without rows do not meet",
        "mlp, 192 rows, steps and columns shared",
        in_function("tg_mainloop_idle", "tg_warpgroup_meet(warpgroup);", ""),
        says="no progress",
    ),
    # lists by SM
    Fault(
        "a CTA takes a list that another one has",
        "lists by GPC, swapped",
        replaced(
            "while (tg_add_relaxed(&taken[sm].lists, 1) != launches)",
            "while (tg_add_relaxed(&taken[sm].lists, 1) < launches)",
        ),
    ),
    # math warpgroups in turn
    Fault(
        "a warpgroup does not wait for its turn",
        TURNS.name,
        replaced("        tg_await(tg_own_turn(smem, warpgroup), own);\n", ""),
    ),
    Fault(
        "a turn is passed on before its stages are seen",
        TURNS.name,
        swapped(r"  unsigned before = 0;\n(?s:.*?)", r"  tg_pass_turn\(smem, warpgroup, thread\);\n"),
    ),
    Fault(
        "a turn is not passed on",
        TURNS.name,
        in_function("tg_mainloop", "  tg_pass_turn(smem, warpgroup, thread);\n", ""),
        says="no progress",
    ),
    Fault(
        "the other warpgroup's stages are not skipped",
        TURNS.name,
        replaced("          ring.skip(last - first);\n", ""),
        says="no progress",
    ),
    Fault(
        "one warpgroup's buffers for the other's tile",
        TURNS.name,
        replaced("    out = others, others = own;\n", ""),
        says="no progress",
    ),
    # a residual in the buffers of results
    Fault(
        "a residual is not awaited",
        "residual by TMA",
        in_function("tg_store_staged", "tg_await(tg_drained(smem, warpgroup, buffer), phase);", ""),
    ),
    Fault(
        "a residual comes before results have left",
        BESIDE.name,
        in_function("tg_store_rows", "        tg_stores_read<1>();\n", ""),
    ),
    Fault(
        "fewer bytes of a residual are awaited",
        BESIDE.name,
        replaced("1024 * (whole ? 8 : N8 % 8)", "512 * (whole ? 8 : N8 % 8)"),
        says="no progress",
    ),
    # proxies
    Fault(
        "no proxy fence after ops by threads",
        "llama_attention B=2 S=137 H=256 heads=4 kv_heads=2 D=64",
        replaced("start);\n        tg_fence_async_global();\n", "start);\n"),
    ),
    Fault(
        "no proxy fence after attention's store",
        "gpt3_attention B=2 S=137 H=256 heads=2",
        in_function("tg_store_attended", "tg_fence_async_global();", ""),
    ),
    Fault(
        "no proxy fence before results leave by TMA",
        "stores in bulk",
        in_function("tg_store_staged", "tg_fence_async_shared();", ""),
    ),
    Fault(
        "no proxy fence after a wait",
        "waits at steps",
        replaced('  asm volatile("fence.proxy.async.global;" ::: "memory");\n#endif', "#endif"),
    ),
    # waits
    Fault(
        "a step's waits after its load",
        "waits at steps",
        swapped(
            r"g\.operand = 0, g\.step = k;\s*tg_waits\(g, t, 0, 0, g\.step\);",
            r"tg_await_watched[^;]*;(?:[^;]*;){3}\s*tg_load\([^;]*;",
        ),
    ),
    Fault(
        "loaders wait for step k - 1",
        "waits at steps",
        replaced("g.operand = 0, g.step = k;", "g.operand = 0, g.step = k - 1;"),
    ),
    Fault(
        "queries are loaded before they are awaited",
        "causal, shared heads",
        swapped(
            r"g\.operand = 0, g\.step = -1;\s*tg_waits\(g, t, 0, 0, g\.step\);",
            r"tg_await_watched\(given\.read[^;]*;\s*tg_expect[^;]*;\s*\{[^}]*\}",
        ),
    ),
    Fault(
        "ops by threads begin before their waits",
        "norms",
        in_function("tg_run_n2", "  start();\n", ""),
        says="",
    ),
    Fault(
        "loaders do not wait for the launch before",
        "few steps before the first wait",
        in_function("tg_load_activations", "  tg_pdl_wait();\n", ""),
        says="",
        launches=2,
    ),
    Fault("a wait does not acquire", "waits at steps", replaced("  (void)tg_load_acquire(p);\n", "")),
    # posts
    Fault(
        "shared bodies post to their first op's semaphores",
        "blocks",
        replaced("return tg_posts_first1(g, t);", "return tg_posts_first0(g, t);"),
        says="",
    ),
    Fault("a post does not await its store", "stores in bulk", replaced("        tg_stores_done();\n", "")),
    Fault(
        "a full bulk wait becomes .read",
        "stores in bulk",
        replaced("cp.async.bulk.wait_group 0", "cp.async.bulk.wait_group.read 0"),
    ),
    Fault("a post is relaxed", "waits at steps", replaced("red.release.gpu", "red.relaxed.gpu")),
    Fault(
        "a post is seen by its own CTA alone",
        "waits at steps",
        replaced("red.release.gpu", "red.release.cta"),
    ),
    Fault(
        "a wait acquires from its own CTA alone",
        "waits at steps",
        replaced("ld.acquire.gpu", "ld.acquire.cta"),
    ),
    Fault(
        "a barrier is passed without acquiring",
        "stores in bulk",
        replaced("mbarrier.try_wait.parity.", "mbarrier.try_wait.parity.relaxed.cta."),
    ),
    Fault(
        "no fence after barriers are initialized",
        "waits at steps",
        replaced('      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n', ""),
        says="no fence tells the async proxy",
    ),
    Fault(
        "no __syncwarp before stored is told",
        "llama_attention B=2 S=137 H=256 heads=4 kv_heads=2 D=64",
        in_function("tg_tell_stored", "  __syncwarp();\n", ""),
    ),
    Fault(
        "a warpgroup's arrival is counted for the other's",
        FAN.name,
        in_function("tg_tell_stored", "  tg_await(smem + TG_STORED_SEEN_AT, stored ^ 1);\n", ""),
        says="",
    ),
    Fault(
        "stored is told by half of the math warps",
        "blocks",
        replaced("tg_barrier_init(smem + TG_STORED_AT, 8)", "tg_barrier_init(smem + TG_STORED_AT, 4)"),
        says="",
    ),
    # counters
    Fault("counters are not reset", "waits at steps", replaced("    tg_reset(g);\n", ""), says="counter"),
    Fault(
        "the last counter is not reset",
        "waits at steps",
        replaced("s < TG_SEMAPHORES; ++s) tg_clear", "s < TG_SEMAPHORES - 1; ++s) tg_clear"),
        says="counter",
    ),
    Fault(
        "who leaves releases nothing",
        "waits at steps",
        replaced("atom.acq_rel.gpu", "atom.acquire.gpu"),
    ),
    Fault(
        "the last to leave acquires nothing",
        "waits at steps",
        replaced("atom.acq_rel.gpu", "atom.release.gpu"),
    ),
    Fault(
        "the ticket is not set back",
        "waits at steps",
        replaced("    tg_zero(g.next_rank());\n", ""),
        says="counter",
    ),
    # loads
    Fault("a residual by the non-coherent path", "fan", replaced("ld.global.cg.u32", "ld.global.nc.u32")),
    Fault("intermediates through L1", "fan", replaced("ld.global.cg.u32", "ld.global.u32")),
    # clusters
    Fault(
        "a cluster's exit is relaxed",
        "a pair at the end",
        replaced("barrier.cluster.arrive.release", "barrier.cluster.arrive.relaxed"),
        says="",
    ),
    Fault(
        "stages are not given back to the other CTA",
        "gated, rows shared",
        in_function("tg_release", "thread < 64", "thread < 32"),
        says="",
    ),
    Fault(
        "one of those that load into a stage is not told that it is used up",
        "clusters of 4 x 2, swapped",
        replaced("thread < TG_PEERS", "thread < TG_PEERS - 1"),
        says="",
    ),
    Fault(
        "a row of a cluster is told in place of a column",
        "clusters of 4 x 2, swapped",
        in_function("tg_peer", "(other + (other >= row))", "row"),
        says="",
    ),
    Fault(
        "one CTA's part of a sum is added in place of another's",
        "four CTAs, steps shared",
        in_function("tg_cluster_reduce", "other * EACH", "other / 2 * EACH"),
        says="error",
    ),
    Fault(
        "a part of a sum is added twice",
        "four CTAs, steps shared",
        in_function("tg_cluster_reduce", "other < TG_CLUSTER - 1", "other < TG_CLUSTER"),
        says="",
    ),
    Fault(
        "sums are sent before those of the tile before were read",
        "four CTAs, steps shared",
        in_function("tg_cluster_send", "  tg_await(tg_sums_read(smem, warpgroup, PART), phase ^ 1);", ""),
    ),
    Fault(
        "one of those that send sums is not told that they were read",
        "four CTAs, steps shared, 64 rows, drawn",
        in_function("tg_cluster_reduce", "lane < TG_CLUSTER - 1", "lane < TG_CLUSTER - 2"),
        says="",
    ),
    Fault(
        "half of a number is turned",
        "swapped, a residual",
        replaced("(high & 0xffff0000)", "(high & 0xff000000)"),
        says="error",
    ),
    Fault(
        "a column has its neighbour's bias",
        "swapped, gelu, a bias",
        in_function("twice", "tg_twice(of.e0, which)", "tg_twice(of.e0, 0)"),
        says="error",
    ),
    Fault(
        "turned results are stored before they are seen",
        "swapped, many tiles of an SM, more blocks than buffers",
        in_function("tg_store_turned_staged", "      tg_fence_async_shared();\n", ""),
    ),
    Fault(
        "turned results come into a buffer that is not drained",
        "swapped, many tiles of an SM, more blocks than buffers",
        in_function(
            "tg_store_turned_staged", "    tg_await(tg_drained(smem, warpgroup, buffer), phase ^ 1);\n", ""
        ),
    ),
    Fault(
        "the second math warpgroup's results are stored over the first's",
        "swapped gate, many tiles of an SM",
        in_function("tg_store_turned", "at.column + 64 * m + COLUMNS * (int)w", "at.column + 64 * m"),
    ),
    Fault(
        "both eights of a warp's columns come to the same place",
        "swapped gate, 64 columns",
        in_function("tg_store_turned_staged", "2 * warp + lane / 8 % 2", "2 * warp"),
        says="",
    ),
    # attention
    Fault(
        "queries come before those of two tiles ago are used up",
        "alone, lists",
        replaced("tg_await_watched(given.read(smem), given.phase ^ 1, limit_ns);", ""),
    ),
    Fault(
        "a math warpgroup keeps its turn of products",
        "alone, many tiles of an SM",
        in_function("tg_attend", "    tg_pass_products(warpgroup);\n    ring", "    ring"),
        says="",
    ),
    Fault(
        "the first turn of products is given with every tile",
        "alone, many tiles of an SM",
        replaced(
            "  tg_await(given.here(smem)",
            "  if (warpgroup == 1) tg_pass_products(1);\n  tg_await(given.here(smem)",
        ),
        says="",
    ),
    Fault(
        "sums shrink before their products are over",
        "alone, many tiles of an SM",
        in_function("tg_attend", "    tg_mma_wait<0>();\n    tg_pin(y), tg_pin(p);\n", ""),
        says="",
    ),
    # addresses and counts
    Fault("a swizzle is off by one", "stores in bulk", replaced("^ r % 8", "^ (r + 1) % 8"), says="error"),
    Fault(
        "a coordinate is off by one",
        "waits at steps",
        replaced("tg_load(to, &maps.down_a, 64 * k,", "tg_load(to, &maps.down_a, 64 * k + 1,"),
        says="",
    ),
    Fault(
        "a byte count is off by 16",
        "waits at steps",
        replaced("tg_expect(bar, 8192);", "tg_expect(bar, 8208);"),
        says="",
    ),
    Fault(
        "a parity is flipped",
        "waits at steps",
        in_function("tg_mainloop", "ring.phase);", "ring.phase ^ 1);"),
        says="",
    ),
    Fault(
        "wgmma is not waited for",
        "waits at steps",
        replaced("  tg_mma_wait<0>();\n  tg_release", "  tg_release"),
        says="",
    ),
    Fault(
        "a stage is given back a step early",
        "waits at steps",
        replaced(
            "tg_mma_wait<1>();\n    if (k > 0) tg_release(smem, before, thread);",
            "tg_mma_wait<1>();\n    tg_release(smem, stage, thread);",
        ),
        says="",
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.what)
def test_a_fault_is_seen(fault: Fault) -> None:
    wrong = fault.seen()
    assert wrong and fault.says in wrong, wrong


COUNTED = re.compile(r"(tg_barrier_init\(smem \+ (TG_\w+)[^,]*, )(\d+)\)")


def barriers() -> list[tuple[str, int, str]]:
    """(kernel, SMs, barrier): so few SMs that a CTA has more tiles than queues hold."""
    few = ((LAST, 4), (BULK, 4), (OTHERS["norms"], 1))
    return [
        (case.name, sms, barrier)
        for case, sms in few
        for barrier in sorted({m[2] for m in COUNTED.finditer(text_of(case))})
    ]


@pytest.mark.parametrize(
    "name, sms, barrier, by",
    [
        pytest.param(*barrier, by, marks=[pytest.mark.full] if n % 2 == (by > 0) else [])
        for n, barrier in enumerate(barriers())
        for by in (1, -1)
    ],
)
def test_a_barrier_that_counts_one_arrival_more_or_less_is_seen(
    name: str, sms: int, barrier: str, by: int
) -> None:
    def change(text: str) -> str:
        assert barrier in text
        return COUNTED.sub(lambda m: f"{m[1]}{int(m[3]) + by * (m[2] == barrier)})", text)

    assert emulated(OTHERS[name], SEEDS, change, sms=sms) != ""


def launch_after_launch(waits: bool) -> list[str]:
    """A part of one launch's result is the next one's bias, which math warps fetch by themselves."""
    case = Case("", block, {"M": 40, "H": 128, "I": 128}, {"scheduling": "static"})
    plan = case.plan(4)
    change = in_function("tg_mma_tiles", "  tg_pdl_wait();\n", "") if not waits else lambda text: text
    runs = Runs(case, plan, library_of(plan, change, programmatic=True))
    found = []
    for seed in range(24):
        runs.library.adversary = Adversary.drawn(seed, 4)
        first, second = runs.held(), runs.held()
        second["b1"] = first["y"].view(-1)[:128]
        try:
            runs.library.follow([first, second])
        except (RaceError, HangError) as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("waits", [True, False])
def test_math_warps_wait_for_the_launch_before(waits: bool) -> None:
    found = launch_after_launch(waits)
    assert not found if waits else any("race" in f for f in found)


PORTABLE_FAULTS = [
    ("a copy is not waited for", replaced("tg_copies_wait<ahead - 1>();", "tg_copies_wait<ahead>();")),
    (
        "a stage is overwritten early",
        replaced("        __syncthreads();\n        to = from;", "        to = from;"),
    ),
    ("a step is not waited for", replaced("if (threadIdx.x == 0) Op::wait(g, t, waited);", ";")),
    ("posted before all have stored", replaced("__syncthreads();  // all threads' results", "//")),
    ("a slice is read twice", replaced("a ^= slice << 5, b ^= slice << 5;", "")),
    ("a part does not post", replaced("tg_posts(g, t, 1);", "")),
]


PORTABLE_PLAN = next(c for c in PORTABLE if c.name == "tile policy, clusters")


def seen_in_portable(change: Callable[[str], str]) -> str:
    return emulated(PORTABLE_PLAN, SEEDS, change, target="sm_80")


@pytest.mark.parametrize("what, change", PORTABLE_FAULTS, ids=[what for what, _ in PORTABLE_FAULTS])
def test_a_fault_of_the_portable_kernel_is_seen(what: str, change: Callable[[str], str]) -> None:
    assert seen_in_portable(change) != ""


def test_the_epilogues_wait_of_the_portable_kernel_is_missed() -> None:
    case = next(c for c in PORTABLE if c.name == "fan")
    assert "race" in emulated(case, SEEDS, replaced("Op::wait_late(g, t);", "{}"), target="sm_80")


def test_a_bulk_store_whose_rows_end_within_a_unit_is_refused() -> None:
    """TMA would write all of the unit."""
    case = Case("128 x 128", gemm, {"M": 128, "N": 128, "K": 64}, {"tiles": {"y": (128, 128, 64)}})
    plan = case.plan(case.sms)
    library = library_of(plan)
    maps = (replace(m, shape=(124, 128)) if m.name == "y_out" else m for m in library.launch.maps or ())
    library.launch = replace(library.launch, maps=tuple(maps))
    assert "rows end within a 16-byte unit" in Runs(case, plan, library).wrong(Adversary())


@pytest.mark.parametrize("columns", [1, 4, 7])
def test_a_bulk_copy_that_begins_within_a_unit_is_refused(columns: int) -> None:
    """Two-byte numbers: a GPU reports an illegal instruction."""
    case = Case("128 x 128", gemm, {"M": 128, "N": 128, "K": 64}, {"tiles": {"y": (128, 128, 64)}})
    moved = replaced("&maps.y_a, 0, 0", f"&maps.y_a, {columns}, 0")
    assert f"column {columns} of 2 bytes each is within a 16-byte unit" in emulated(case, SEEDS, moved)
