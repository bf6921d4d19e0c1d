"""The Hopper kernel without a GPU: every cut of a tile compiles without spills or serialised wgmma, to the
machine code that was meant."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilegen as tg
from tests.gpu.gemms import HOPPER, Case, gated, mlp
from tests.gpu.ops import soft
from tests.oracles.hopper import copies
from tests.oracles.sass import Sass, disturbed, machine_code, nvdisasm
from tests.shares import share
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.emit import generate
from tilegen.targets.sm90.library import HopperLibrary, spilled
from tilegen.targets.sm90.linear import linear
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.store import Branch, Steps

NAMES = {c.name: c for c in HOPPER}
VARIED = ["one gemm, 64 rows", "mlp, M = 64, deep steps", "mlp, rows shared", "block"]
PARTED = r"(R2UR|SHFL|BRA\.DIV|WARPSYNC)"  # where lanes of a warp may be apart
# in a main loop: memory, and whatever waits for it
FORBIDDEN = r"(MEMBAR|FENCE|ERRBAR|CCTL|BAR\.|UCGABAR|UTMA|LD|ST[GLS]|ATOM|RED|CALL)"


def weights_of(case: Case) -> frozenset[str]:
    return frozenset(t.name for t in case.program.arguments if t.role == "weight")


def examine(
    plan: Plan, folder: Path, packed: frozenset[str] = frozenset(), change: tuple[str, str] | None = None
) -> None:
    """The machine code holds the loads, products, waits, posts and stores of the plan, and nothing that would
    slow them down."""
    ops = [linear(Code(plan, b), packed) for b in plan.bounds]
    if change:
        sass = machine_code(generate(plan, packed).text.replace(*change), folder)
    else:
        library = HopperLibrary(plan, packed)
        assert spilled(library.files["log.txt"].read_text(), library.source) == 0
        sass = Sass.of(library.code, folder)
    check_products(sass, ops)
    check_copies(sass, ops)
    check_waits(sass, ops)
    check_posts(sass, ops)
    check_arrivals(sass)
    assert not sass.at(r"(LDL|STL)\b"), "registers in local memory"
    assert disturbed(sass.code) == []


def check_products(sass: Sass, ops: list[Product]) -> None:
    """A main loop for each op, and one for each number of blocks that its warpgroups may have instead; all
    wgmma in them with one group in flight, their operands in uniform registers all the way, and no access to
    memory."""
    loops = list(sass.innermost(r"HGMMA\."))
    found = []
    for loop in loops:
        shapes = [text.split()[0] for text in loop if text.startswith("HGMMA")]
        found.append((len(shapes), shapes[0]))
        assert len(set(shapes)) == 1 and [text for text in loop if re.match(FORBIDDEN, text)] == []
        assert [text for text in loop if text.startswith("WARPGROUP.DEPBAR")] == [
            "WARPGROUP.DEPBAR.LE gsb0, 0x1"
        ]
        products = [n for n, text in enumerate(loop) if text.startswith("HGMMA")]
        assert not any(text.startswith("R2UR") for text in loop[products[0] : products[-1]]), (
            "operands reach wgmma's registers one by one"
        )
        assert [text for text in loop if re.match(PARTED, text)] == [], (
            "a step fetches its stage from registers of threads"
        )
    suffix = {"bfloat16": ".BF16", "float16": ""}
    expected = [
        (
            op.tile.slices * op.stage.blocks * m64,
            f"HGMMA.64x{op.tile.columns_of_warpgroup}x16.F32{suffix[op.bound.dtype(0)]}",
        )
        for op in ops
        for m64 in {op.tile.m64, *op.partly_occupied} - {0}
    ]
    assert sorted(found) == sorted(expected)


def check_copies(sass: Sass, ops: list[Product]) -> None:
    loads = [copy for op in ops for _, copy in copies(op)]
    assert len(sass.at(r"UTMALDG\.2D\.MULTICAST")) == sum(bool(copy.share.ctas) for copy in loads)
    # of a residual, by either warpgroup's buffers: a tile's first blocks, and those that follow
    beside = sum(2 if op.tile.pingpong else 4 for op in ops if op.extras.residual)
    assert len(sass.at(r"UTMALDG\.2D ")) == sum(not copy.share.ctas for copy in loads) + beside
    assert bool(sass.at("UTMASTG")) == any(op.store.staged for op in ops)
    assert not sass.at(r"(@!?U?P\d )?BRA\.U\.ANY"), "a loop over lanes around what one lane does"


def check_arrivals(sass: Sass) -> None:
    """What tells the other CTA that shared memory has been read leaves when the reads have returned: wgmma
    waited for, or the address made of what was read.

    An arrival that leaves at once overtakes loads that were issued before it: a warp then reads the next tile
    in place of its own, and the kernel hangs.
    """
    for n in sass.at(r"SYNCS\.ARRIVE\.TRANS64\.RED\.A1T0"):
        last = next((text for text in sass.before(n, 1000) if re.match(r"LDS|WARPGROUP\.DEPBAR", text)), "")
        waited = last.startswith("WARPGROUP")  # products have read what is given back
        address = re.search(r"\[(R\d+)", sass.code[n])
        assert address is not None
        assert waited or any(text.startswith("LDS") for text in sass.made_of(n, address[1])), sass.before(
            n, 24
        )[::-1] + (sass.code[n],)


def stores(steps: Steps) -> int:
    """Statements that store."""
    return sum(
        stores(s.then) + stores(s.otherwise) if isinstance(s, Branch) else s.does == "store" for s in steps
    )


def check_waits(sass: Sass, ops: list[Product]) -> None:
    """After the polls of a semaphore, what L1 holds is dropped, and then the async proxy may read.

    (The acquiring load itself, whose value nobody uses, ptxas replaces by the poll before it.) Stores from
    registers are fenced as well.
    """
    fences = sass.at(r"FENCE\.VIEW\.ASYNC\.G")
    waits = [n for n in fences if sass.before(n, 1)[0] == "CCTL.IVALL"]
    # one for each wait, or each turn of its loop over semaphores, where ptxas unrolls that
    assert len(waits) == len(sass.at("NANOSLEEP"))
    assert len(waits) >= sum(len(op.plan.waits_of(op.name)) for op in ops)
    # what each warpgroup, and each CTA of a cluster, stores by itself
    assert len(fences) - len(waits) == sum(stores(op.finish) for op in ops if not op.store.staged)
    for n in waits:
        near = sass.before(n, 50)
        assert any(text.startswith("LDG.E.STRONG.GPU") for text in near) and any(
            text.startswith("NANOSLEEP") for text in near
        )


def check_posts(sass: Sass, ops: list[Product]) -> None:
    """red.release.gpu: a fence of the whole GPU before the increment; before it the results, all stored or
    fenced by their math warps."""
    posts = sass.at(r"REDG?\.E\.ADD\.STRONG\.GPU")
    assert len(posts) == sum(len(op.plan.posts_of(op.name)) for op in ops)
    staged = 0
    for n in posts:
        before = sass.before(n, 60)
        fence = next((m for m, text in enumerate(before) if text == "MEMBAR.ALL.GPU"), None)
        assert fence is not None and fence < 8
        earlier = next(text for text in before[fence:] if text.startswith(("SYNCS.PHASECHK", "CCTL.IVALL")))
        if earlier == "CCTL.IVALL":  # cp.async.bulk.wait_group, not its .read form, which drops nothing
            staged += 1
            assert "DEPBAR.LE SB0, 0x0" in before[fence:]
    assert staged == sum(op.store.staged and op.posts for op in ops)


@pytest.mark.parametrize("case", share(HOPPER, 3))
def test_cases(case: Case, tmp_path: Path) -> None:
    examine(case.plan(), tmp_path)


@pytest.mark.parametrize("case", share([c for c in HOPPER if c.packed], 2, 1))
def test_packed_weights(case: Case, tmp_path: Path) -> None:
    examine(case.plan(), tmp_path, weights_of(case))


@pytest.mark.parametrize("variant", ["trace", "jitter"])
@pytest.mark.parametrize("name", VARIED)
def test_variants(name: str, variant: str, tmp_path: Path) -> None:
    plan = NAMES[name].plan()
    text = generate(plan, frozenset(), variant).text
    assert text != generate(plan).text
    check_products(machine_code(text, tmp_path), [linear(Code(plan, b)) for b in plan.bounds])


GPT3 = {"H": 12288, "I": 6144}
LLAMA = {"H": 8192, "I": 3584}
# program, sizes, rows of a CTA, cluster, columns of a CTA
WIDTHS: list[tuple[Any, dict[str, Any], int, Any, list[int]]] = [
    (mlp, GPT3, 64, 1, [16, 256, 32, 240, 48, 208, 64, 192, 80, 176, 96, 160, 112, 128]),
    (mlp, GPT3, 64, 2, [16, 256, 48, 192, 96, 128]),
    (mlp, GPT3, 64, "2:n", [16, 256, 64, 208]),
    (mlp, GPT3, 64, "2:m", [32, 224]),
    (mlp, GPT3, 128, 1, [16, 256, 48, 224, 64, 208, 80, 192, 96, 176, 112, 160]),
    (mlp, GPT3, 128, 2, [32, 192, 64, 128]),
    (mlp, GPT3, 128, "2:n", [64, 256, 96, 176]),
    (mlp, GPT3, 128, "2:m", [48, 256, 128, 192]),
    (mlp, GPT3, 256, 1, [16, 192, 64, 176, 96, 128]),
    (mlp, GPT3, 256, "2:n", [96, 192]),
    (mlp, GPT3, 256, "2:m", [64, 192]),
    (gated, LLAMA, 64, 1, [16, 256, 48, 128, 96, 192]),
    (gated, LLAMA, 64, 2, [48, 192]),
    (gated, LLAMA, 64, "2:n", [80, 112]),
    (gated, LLAMA, 128, 1, [16, 256, 88, 192, 128, 176]),
    (gated, LLAMA, 128, "2:n", [64, 256]),
    (gated, LLAMA, 128, "2:m", [96, 192]),
    (gated, LLAMA, 256, 1, [64, 128, 96, 192]),
]
ROWS = {64: 40, 128: 500, 256: 2000}


def pairs() -> list[Any]:
    """Two widths of the table in one kernel: both ops of a feed-forward block. The first of every second
    line always, the others in full runs."""
    made: list[Any] = []
    for n_line, (spec, sizes, rows, cluster, widths) in enumerate(WIDTHS):
        cluster_split = cluster.partition(":")[2] if isinstance(cluster, str) else "k"
        for n_pair, two in enumerate(zip(widths[::2], widths[1::2], strict=True)):
            tiles = [
                (rows * (2 if cluster_split == "m" else 1), n * (2 if cluster_split == "n" else 1), 64)
                for n in two
            ]
            names = ("up" if spec is mlp else "gate_up", "down")
            options = {
                "tiles": dict(zip(names, tiles, strict=True)),
                "cluster": dict.fromkeys(names, cluster),
            }
            name = f"{names[0]}, {rows} x {two[0]} and {two[1]}, cluster {cluster}"
            case = Case(name, spec, {"M": ROWS[rows], **sizes}, options)
            made.append(pytest.param(case, id=name, marks=[pytest.mark.full] if n_pair or n_line % 2 else []))
    return made


@pytest.mark.parametrize("case", pairs())
def test_widths(case: Case, tmp_path: Path) -> None:
    examine(case.plan(), tmp_path)


CHANGES = [
    ("a post does not release", "red.release.gpu", "red.relaxed.gpu"),
    ("a post does not wait for its stores", "cp.async.bulk.wait_group 0", "cp.async.bulk.wait_group.read 0"),
    ("a wait does not acquire", "(void)tg_load_acquire(p);", ""),
    (
        "a wait does not fence the async proxy",
        'asm volatile("fence.proxy.async.global;" ::: "memory");\n#endif',
        "#endif",
    ),
    (
        "a stage is released to the cluster",
        "mbarrier.arrive.shared::cluster.b64",
        "mbarrier.arrive.release.cluster.shared::cluster.b64",
    ),
    ("no group of products in flight", "tg_mma_wait<1>();", "tg_mma_wait<0>();"),
    ("operands of products may differ between lanes", "return __shfl_sync(~0u, value, 0);", "return value;"),
    ("bulk copies may be many lanes'", "if (tg_elected()) switch", "if (lane == 0) switch"),
    ("nothing is shared", "tg_load_pair(to", "tg_load(to"),
    (
        "an arrival may overtake the reads before it",
        "tg_arrive_at(bar + (read & blockIdx.y), cta)",
        "tg_arrive_at(bar, cta)",
    ),
]


@pytest.mark.parametrize("what, old, new", CHANGES, ids=[c[0] for c in CHANGES])
def test_the_checks_find(what: str, old: str, new: str, tmp_path: Path) -> None:
    plan = NAMES["mlp, rows shared"].plan()
    assert old in generate(plan).text
    with pytest.raises(AssertionError):
        examine(plan, tmp_path, change=(old, new))


def test_library_needs_no_gpu() -> None:
    library = HopperLibrary(NAMES["mlp, M = 1"].plan(), frozenset({"w1", "w2"}))
    assert "Generated by tilegen" in library.source and library.packed.keys() == {"up_b", "down_b"}
    assert (
        library.counter_words == 32 * (len(library.plan.targets) + 3)
        and library.ctas % library.generated.cluster == 0
    )


def test_all_workers_with_tiles_are_launched() -> None:
    plan = NAMES["mlp, M = 17, static"].plan()
    later = replace(plan, scheduling=(((),) * 5 + tuple(plan.scheduling))[: len(plan.scheduling)])
    assert HopperLibrary(later).ctas == HopperLibrary(plan).ctas + 5 <= 132


def test_disassembler_is_executable() -> None:
    assert nvdisasm().name == "nvdisasm"


def test_a_main_loop_of_one_turn_keeps_its_wgmma_asynchronous() -> None:
    """Unrolled, it had ptxas inject waits (C7517, C7519), and the kernel was refused."""
    plan = tg.plan(soft(M=658, N=6696, dtype="float16"), "h200", tiles={"scores": (256, 160, 64)})
    assert "C75" not in compile_cuda(generate(plan).text).log
