"""The sm_90a text of a kernel whose size moves, on the emulator: at every size, under adversaries, with every
formula of the size replaced by its largest value in turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

import tilegen as tg
from tests.cpu.test_launches import Launch, stream  # noqa: F401
from tests.gpu.gemms import added
from tests.moving import EXAMPLES, drawn, moving, right, spec_of
from tests.shares import share
from tilegen.errors import HangError, RaceError
from tilegen.frontend.dims import filled, the_dim
from tilegen.frontend.program import Program
from tilegen.kernels.kernel import Kernel
from tilegen.kernels.launches import moving_kernel
from tilegen.kernels.moving import MovingKernel, Regime
from tilegen.ops.gemm import LinearAttributes
from tilegen.options import Options
from tilegen.proof.checker import Certificate
from tilegen.runtime.request import Part, planned_moving_launches
from tilegen.schedule.moving import MovingPlan
from tilegen.targets import select
from tilegen.targets.base import Emitted, known
from tilegen.targets.emulated.library import Adversary, EmulatedLibrary

SIZES: dict[str, dict[str, Any]] = {
    "gpt3_mlp": {"H": 128, "I": 128},
    "llama_mlp": {"H": 128, "I": 128},
    "llama_layer": {"S": 1, "S_max": 40, "H": 128, "heads": 4, "kv_heads": 2, "D": 32, "I": 64},
}


def small(name: str) -> Program:
    _, dim, largest, _ = EXAMPLES[name]
    spec = spec_of(name)
    return spec(**SIZES[name], **{dim: tg.dim(dim, max=largest)}) if name in SIZES else moving(name)


def emulated(name: str, **options: Any) -> MovingKernel:
    kernel = tg.compile(small(name), "cuda-emulated", on=4, **options)
    assert isinstance(kernel, MovingKernel)
    return kernel


def of_all_sizes(name: str, **options: Any) -> Regime:
    """One plan for all of them."""
    plan = tg.plan(small(name), on=4, target="cuda-emulated", **options)
    assert isinstance(plan, MovingPlan)
    emitted = known()["sm_90a"].emit(plan.open)
    return Regime(plan, tg.verify(plan), made(plan, tg.verify(plan), emitted))


def made(plan: MovingPlan, proof: Certificate, emitted: Emitted) -> Kernel:
    most = plan.dim.most
    library = EmulatedLibrary(plan.open, emitted)
    program = filled(plan.program, plan.dim, most)
    return Kernel(plan.most, proof, library, None, program=program, size=most, plan_at=plan.at)


@pytest.mark.parametrize("name", share(EXAMPLES, 2, without=("vgg19",)))
def test_every_size_under_adversaries(name: str) -> None:
    kernel = emulated(name)
    for seed, size in enumerate(EXAMPLES[name][3]):
        for regime in kernel.regimes:
            library = regime.largest._library
            library.adversary = Adversary.drawn(7 * seed + 2, library.launch.grid)
        right(kernel, size)


@pytest.mark.parametrize(
    ("tile", "least"), [((128, 64, 64), 1), ((64, 32, 64), 1), ((256, 64, 64), 65)], ids=str
)
def test_every_store_of_rows(tile: tuple[int, int, int], least: int) -> None:
    """By threads, which look at the rows that are there, and in bulk, by a tensor map of so many."""
    kernel = emulated("gpt3_mlp", tiles={"up": tile, "down": tile})
    for size in (1, 63, 64, 65, 129, 256, 257, 300):
        if size >= least:  # a tile of 256 rows is none for 64: wgmma would read into the next stage
            right(kernel, size)


def test_warpgroups_in_turn_and_a_residual_by_tma() -> None:
    """Rows move in what is multiplied, in the residual that comes into the buffers, and in what leaves."""
    program = added(M=tg.dim("M", max=700), N=200, K=200)
    kernel = tg.compile(
        program, "cuda-emulated", on=4, tiles={"y": (128, 72, 64)}, pingpong={"y": True}
    )
    for size in (1, 63, 65, 128, 129, 513, 700):
        right(kernel, size)


@tg.spec
def odd(M=70):
    """Rows of 203 columns: copies of them where there are many, else threads bring them."""
    x, w, r = tg.input("x", (M, 203), "bfloat16"), tg.weight("w", (136, 203), "bfloat16"), (M, 136)
    return tg.add(tg.linear(x, w, name="y"), tg.input("r", r, "bfloat16"), name="z")


def test_copies_of_rows_that_move() -> None:
    kernel = tg.compile(odd(M=tg.dim("M", max=300)), "cuda-emulated", on=4)
    assert isinstance(kernel, MovingKernel)
    linears = [len(regime.plan.most.graph.ops_of(LinearAttributes)) for regime in kernel.regimes]
    assert not linears[0] and linears[-1]
    for size in (1, 17, 65, 130, 257, 299, 300):
        right(kernel, size)


@tg.spec
def sequences(B=2, S=40, N=64, K=64, dtype="bfloat16"):
    x = tg.input("x", (B, S, K), dtype)
    return tg.linear(x, tg.weight("w", (N, K), dtype), name="y")


LAST_ROWS = [
    *((most, rows, height, "1") for most, rows, height in
      [(257, 1, 128), (256, 1, 128), (258, 1, 192), (3, 320, 128), (3, 64, 128), (5, 200, 192)]),
    *((most, rows, 128, "2:m") for most, rows in [(300, 1), (257, 1), (128, 1), (60, 1), (3, 200)]),
    *((most, rows, 384, "2:m") for most, rows in [(500, 1), (5, 200)]),
    *((most, rows, 128, "2:n") for most, rows in [(300, 1), (128, 1), (100, 1), (69, 1), (3, 200)]),
    (200, 1, 192, "2:n"), (300, 1, 128, "2:k"), (100, 1, 128, "2:k"), (300, 1, 112, "2:km"),
    (3, 70, 48, "2:km"),
]  # fmt: skip


@pytest.mark.parametrize(("most", "rows", "height", "cluster"), LAST_ROWS)
def test_the_last_row_of_tiles_has_all_its_rows(most: int, rows: int, height: int, cluster: str) -> None:
    """Also where the smallest size and the largest leave as many: what is loaded follows the size."""
    edges = {n for row in (64, 128, 192, 256) for n in (row // rows, row // rows + 1)}
    sizes = sorted(n for n in {1, 2, most // 2, most - 1, most, *edges} if 1 <= n <= most)
    rows_are_there(most, rows, (height, 64, 64), cluster, sizes)


@pytest.mark.parametrize(("height", "width", "cluster"), [(144, 256, "4:n"), (72, 256, "2:n")])
def test_ctas_that_share_a_tile_load_no_more_rows_than_it_has(height: int, width: int, cluster: str) -> None:
    """Where the tile is no eights for each CTA, and its last rows fill it but for a few."""
    sizes = (height - 1, 2 * height - 9, 2 * height - 1, 3 * height - 1)
    rows_are_there(3 * height, 1, (height, width, 64), cluster, sizes)


def rows_are_there(
    most: int, rows: int, tile: tuple[int, int, int], cluster: str, sizes: Iterable[int]
) -> None:
    """Of a product of up to `most` times so many rows, cut so, at these sizes."""
    program = sequences(B=tg.dim("B", max=most), S=rows, N=2 * tile[1], K=128)
    cut = {"tiles": {"y": tile}, "cluster": {"y": cluster}}
    plan = tg.plan(program, on=int(cluster[0]) * 4, target="cuda-emulated", **cut)
    assert isinstance(plan, MovingPlan)
    proof = tg.verify(plan)
    kernel = MovingKernel((Regime(plan, proof, made(plan, proof, known()["sm_90a"].emit(plan.open))),))
    for size in sizes:
        x, w = drawn(filled(program, plan.dim, size))
        wanted = (x.float() @ w.float().T).reshape(size, rows, 2 * tile[1])
        error = (kernel(x, w).float() - wanted).abs().amax(dim=(1, 2))
        assert float(error.max()) < 0.5, (size, error)


@pytest.mark.parametrize("name", share(("gpt3_mlp", "llama_mlp", "llama_layer"), 2))
def test_launches_of_single_ops_at_every_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch alone under adversaries; what passes between them lies in memory of the largest size."""
    program, on = small(name), select.place(4, "cuda-emulated")
    dim = the_dim(program)
    assert dim is not None
    whole = Part(program, ((1, dim.most),), Options(), "multi_launch")
    proved = planned_moving_launches(whole, on, Options(), True)
    emitted = [known()["sm_90a"].emit(launch.plan.open, programmatic=True) for launch in proved.each]
    libraries = [EmulatedLibrary(p.plan.open, e) for p, e in zip(proved.each, emitted, strict=True)]
    monkeypatch.setattr("tilegen.kernels.launches.CudaKernel", Launch)
    largest = moving_kernel(proved, libraries, True)
    kernel = MovingKernel((Regime(proved.whole.plan, proved.whole.certificate, largest),))
    for seed, size in enumerate(EXAMPLES[name][3]):
        for library in libraries:
            library.adversary = Adversary.drawn(7 * seed + 2, library.launch.grid)
        right(kernel, size)


# --- a bound that is the largest where it should be what moves ----------------------------------------------

OPTIONS = {"tiles": {"up": (64, 32, 64), "down": (64, 32, 64)}, "policies": {"h": "kernel"}}
# more counters are set back than were counted on; and of the bounds of the last rank, in tg_next and in
# tg_tile, one is enough: a rank that is not there is a tile of no op, and one that is not drawn is none
# A tile of the last row that does not take itself for one loads rows of zeros besides its own.
EQUAL = ("tg_clear", "? rank : TG_DONE;", "// down:", "if (i == ((sizes.M")


def mutants() -> list[tuple[str, str]]:
    """(line, text) with one formula of the size at its largest value."""
    text = of_all_sizes("gpt3_mlp", **OPTIONS).largest.source
    found = []
    for m in re.finditer(r"(?<!g\.)\bsizes\.M\b", text):
        line = text[text.rfind("\n", 0, m.start()) + 1 : text.find("\n", m.end())]
        if not any(word in line for word in EQUAL):
            found.append((line.strip(), f"{text[: m.start()]}300{text[m.end() :]}"))
    return found


def test_a_bound_that_does_not_move_is_caught() -> None:
    regime = of_all_sizes("gpt3_mlp", **OPTIONS)
    emitted = known()["sm_90a"].emit(regime.plan.open)
    found = mutants()
    assert len(found) >= 6
    survivors = [line for line, text in found if not _caught(regime, replace(emitted, text=text))]
    assert not survivors


def _caught(regime: Regime, emitted: Emitted) -> bool:
    kernel = MovingKernel((replace(regime, largest=made(regime.plan, regime.proof, emitted)),))
    for size in (1, 65, 200):
        try:
            right(kernel, size)
        except (AssertionError, RaceError, HangError):
            return True
    return False


def test_a_hang_names_the_tile_at_its_size() -> None:
    regime = of_all_sizes("gpt3_mlp", **OPTIONS)
    plan, emitted = regime.plan, known()["sm_90a"].emit(regime.plan.open)
    target = next(line for line in emitted.text.splitlines() if "tg_wait(g, 0" in line and "sizes.M" in line)
    never = replace(emitted, text=emitted.text.replace(target, "tg_wait(g, 0, 1000);"))
    program = filled(plan.program, plan.dim, 65)
    kernel = made(plan, regime.proof, never).at(plan.at(65), program, 65)
    with pytest.raises(HangError, match="down"):
        kernel(*drawn(program))


def test_where_all_sizes_are_one_row_of_tiles_the_text_has_no_formula_of_it() -> None:
    """So it is as short as that of one size: what is left are rows that are there, and bytes of a box."""
    text = emulated("gpt3_mlp").regimes[0].largest.source
    used = [line for line in text.splitlines() if "sizes.M" in line and "g.sizes.M" not in line]
    assert used and all("tg_expect" in line or "corner at" in line for line in used)
