"""Every kind of op compiled for sm_90a without a GPU: no spills, no serialised wgmma, and the copies and
products that are meant."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import tilegen as tg
from tests.gpu.gemms import Case
from tests.gpu.ops import ATTENTIONS, CONVOLUTIONS, EXAMPLES, OPS, PATCHES, SLIDING, patches, pixels
from tests.oracles.sass import Sass
from tests.shares import share
from tilegen.frontend.loader import load_program
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.attention import Attention
from tilegen.targets.sm90.emit import generate, hopper_op
from tilegen.targets.sm90.library import HopperLibrary, spilled
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.shared_bodies import bodies, convolves
from tilegen.targets.sm90.stage import Copy, Loads
from tilegen.targets.sm90.store import PixelStore

WHOLE_NETS = ("resnet38 ", "resnet38 B=2 HW=64", "vgg19 B=3 HW=64 hidden=264")  # twenty seconds each


@pytest.mark.parametrize("case", share(OPS, 3, without=WHOLE_NETS))
def test_compiles(case: Case) -> None:
    """HopperLibrary refuses slow machine code."""
    assert HopperLibrary(case.plan()).source


def test_resnet50_at_its_full_size_compiles_as_one_launch() -> None:
    """SpillError where statements bring its 106 tensor maps near: no smaller tiles are there to try."""
    program = load_program(str(EXAMPLES / "resnet50.py"), {})
    made = tg.plan(program, "h200")
    assert isinstance(made, Plan) and HopperLibrary(made).source


def test_norms_ask_for_their_vectors_before_a_tile_may_begin() -> None:
    """And for a row's columns before they store any: a load after a store waits for it."""
    text = generate(next(c for c in OPS if c.name == "norms, M = 1000, float16").plan()).text
    for name, vectors in (("n1", ["T.g"]), ("n2", ["T.g", "T.bias"])):
        tile = text[text.index(f"tg_run_{name}(") : text.index("\n}\n", text.index(f"tg_run_{name}("))]
        assert all(tile.index(f"tg_get8_packed_constant({v} +") < tile.index("start();") for v in vectors)
        row = tile[tile.index("start();") :]
        assert (
            row.count("tg_get8_packed(") == 1
            and row.index("tg_get8_packed(") < row.index("::finish(")
            and "tg_get8(" not in row
        )


def test_an_op_of_threads_may_be_called_t() -> None:
    """tg_tile_t is the struct of a tile."""

    @tg.spec
    def short():
        return tg.softmax(tg.input("x", (8, 64), "bfloat16"), name="t")

    assert HopperLibrary(Case("short", short, {}).plan()).source


@tg.spec
def residuals(rows=3, vectors=3, M=4096, K=512, N=2048):
    y = tg.linear(tg.input("x", (M, K)), tg.weight("w", (N, K)), name="y")
    others = [tg.input(f"r{n}", (M, N)) for n in range(rows)]
    others += [tg.weight(f"v{n}", (N,)) for n in range(vectors)]
    return tg.pointwise(" + ".join(f"e{n}" for n in range(1 + len(others))), y, *others)


@pytest.mark.parametrize("rows, vectors", [(2, 2), (3, 3), (4, 0)])
@pytest.mark.parametrize("tile", [(256, 128, 64), (128, 256, 64), (192, 128, 64), (128, 192, 64)])
def test_an_epilogue_reads_no_more_ahead_than_registers_hold(
    rows: int, vectors: int, tile: tuple[int, ...]
) -> None:
    """Phi's layers end in a sum of two residuals and two biases, beside which sums were spilled."""
    library = HopperLibrary(tg.plan(residuals(rows, vectors), "h200", tiles={"y": tile}))
    assert spilled(library.files["log.txt"].read_text(), library.source) <= 32


def machine_code(case: Case, folder: Path) -> Sass:
    library = HopperLibrary(case.plan())
    assert spilled(library.files["log.txt"].read_text(), library.source) == 0
    return Sass.of(library.code, folder)


def copies_of(loads: Loads) -> list[Copy]:
    return [copy for load in loads.each for copy in load.copies]


IN_BOXES = [c for c in CONVOLUTIONS if c.spec not in (pixels, patches)]  # those are linears


@pytest.mark.parametrize("case", [*IN_BOXES[2::3], *SLIDING[::2]], ids=lambda c: c.name)
def test_convolutions(case: Case, tmp_path: Path) -> None:
    sass, plan = machine_code(case, tmp_path), case.plan()
    codes = [body.code for body in bodies([hopper_op(plan, b) for b in plan.bounds])]
    ops = [op for op in codes if isinstance(op, Product) and convolves(op)]
    assert len(sass.at(r"UTMALDG\.4D")) == sum(len(copies_of(op.a)) for op in ops)
    assert len(sass.at(r"UTMALDG\.3D")) == sum(len(copies_of(op.b)) for op in ops)
    assert bool(sass.at(r"UTMASTG\.4D")) == any(op.store.staged for op in ops)
    loops = [[t for t in loop if t.startswith("HGMMA")] for loop in sass.innermost(r"HGMMA\.")]
    assert sorted(len(loop) for loop in loops) == sorted(
        op.tile.slices * op.stage.blocks * op.tile.m64 for op in ops
    )
    assert not sass.at(r"(LDL|STL)\b")


@pytest.mark.parametrize("case", PATCHES[1::4], ids=lambda c: c.name)
def test_patches_come_in_im2col_mode_and_results_leave_as_rows(case: Case, tmp_path: Path) -> None:
    sass, plan = machine_code(case, tmp_path), case.plan()
    [op] = [op for op in (hopper_op(plan, b) for b in plan.bounds) if isinstance(op, Product)]
    of_last_rows = [copy for load in op.a.each for other in load.others for copy in other.copies]
    assert len(sass.at(r"UTMALDG\.4D\.IM2COL")) == len(copies_of(op.a)) + len(of_last_rows) > 0
    assert bool(sass.at(r"UTMASTG\.2D")) == op.store.staged
    assert not sass.at(r"(LDL|STL)\b")


@pytest.mark.parametrize("case", ATTENTIONS[::3], ids=lambda c: c.name)
def test_attentions(case: Case, tmp_path: Path) -> None:
    """Products with keys take both operands from shared memory; those with values take the left one from
    registers and the right one as it lies."""
    sass, plan = machine_code(case, tmp_path), case.plan()
    [op] = [op for op in (hopper_op(plan, b) for b in plan.bounds) if isinstance(op, Attention)]
    across = sass.at(r"HGMMA.*tnspB")
    assert len(across) == (1 if op.halved else 2) * math.ceil(op.keys / 16)
    assert all(re.match(rf"HGMMA\.64x{op.head}x16", sass.code[n]) for n in across)
    assert not sass.at(r"(LDL|STL)\b")


@tg.spec
def few_keys(B=2, S=9, heads=4, D=16, causal=True):
    q, k, v = tg.input("x", (B, S, 3 * heads * D)).chunk(3)
    return tg.attention(q, k, v, heads=heads, causal=causal, name="a")


@pytest.mark.parametrize(
    "sizes", [{}, {"B": 1, "heads": 1}, {"B": 1, "S": 10, "heads": 1}, {"S": 5}, {"causal": False}]
)
def test_masks_of_few_keys_hold(sizes: dict[str, int], tmp_path: Path) -> None:
    """ptxas 13.0 takes R1, where the stack would be, for sums that every row masks."""
    sass = Sass.of(tg.generate(few_keys(**sizes), on="h200").cubin, tmp_path)
    assert not sass.at(r"(FMNMX|FFMA|FADD|FMUL|FSEL|F2FP)\b.*\bR1\b")


def test_sliding_tiles_load_their_lines_once_for_a_filter_line() -> None:
    case = next(c for c in CONVOLUTIONS if c.name == "57 x 57, tile policy")
    plan = case.plan()
    op = hopper_op(plan, plan.bounds[0])
    assert isinstance(op, Product) and isinstance(op.store, PixelStore) and op.store.slides
    assert op.a.positions == op.b.positions == op.stage.blocks == 3
    tb, th, tw = op.bound.tile[:3]
    assert op.stage.a_rows == tb * th * (tw + 2) and len(copies_of(op.a)) == 1 and len(copies_of(op.b)) == 3
