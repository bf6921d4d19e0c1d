"""No default plan is refused by its own generator: families at drawn sizes, and the shapes that were refused
once."""

from __future__ import annotations

import itertools

import pytest

import tilegen as tg
from benchmarks.families import bert_layer, lora
from tests.gpu.families import bottleneck, drawn, patches
from tests.gpu.gemms import Case, gemm
from tilegen.codegen.thread_conv import SCRATCH, Gather
from tilegen.codegen.thread_product import ConvProduct
from tilegen.graph.gathered import by_threads
from tilegen.options import Options
from tilegen.schedule.launches import launch_plans, whole_plan
from tilegen.targets.select import place
from tilegen.targets.sm90.emit import generate

ROWS = (1, 64, 257, 1000)
REFUSED_ONCE = [
    *(
        Case("", lora, {"M": m, "H": h, "R": r})
        for m in ROWS
        for h, r in ((768, 8), (1024, 16), (1024, 64), (4096, 16))
    ),
    *(Case("", bottleneck, {"M": m, "H": h, "R": r}) for m in (64, 2048) for h, r in ((768, 64), (1024, 24))),
    *(
        Case("", gemm, {"M": m, "N": n, "K": k})
        for m in (1, 300)
        for n, k in ((64, 64), (4096, 8), (16, 4096), (1024, 64))
    ),
    *(
        Case("", patches, {"B": b, "N": n, "size": s})
        for b in (1, 8)
        for n, s in ((1024, 14), (768, 16), (1280, 14), (96, 4))
    ),
    Case("", bert_layer, {}),
]


def sizes(case: Case) -> str:
    return (
        f"{case.spec.name if hasattr(case.spec, 'name') else 'layer'}"
        f" {' '.join(f'{k}={v}' for k, v in case.sizes.items())}"
    )


@pytest.mark.parametrize("case", [*REFUSED_ONCE, *drawn(7, 14), *drawn(11, 7, small=False)], ids=sizes)
def test_generates(case: Case) -> None:
    program = case.program
    weights = frozenset(t.name for t in program.arguments if t.role == "weight")
    made = tg.plan(program, "h200")
    assert generate(made).text and generate(made, weights).text
    whole = whole_plan(program, place("h200"), Options())
    assert all(generate(launch).text for launch in launch_plans(whole, place("h200"), Options()))


@tg.spec
def gathered(B=1, HW=224, C=3, N=64, size=7, stride=1):
    x, w = tg.input("x", (B, HW, HW, C), "bfloat16"), tg.weight("w", (N, size, size, C), "bfloat16")
    return tg.conv2d(x, w, stride=stride, name="conv")


# filters that fit with a pixel
WINDOWS = [(c, s) for c, s in itertools.product((1, 3, 4, 12), (1, 3, 7, 14, 16)) if c * s**2 <= 900]


@pytest.mark.parametrize("channels, window", WINDOWS)
def test_gathered_patches_fit(channels: int, window: int) -> None:
    """A convolution by threads gets tiles whose filters and pixels fit its shared memory, whatever its
    stride."""
    for stride, hw, batch in itertools.product({1, 2, window}, (window, 57, 224), (1, 9)):
        graph = tg.plan(
            gathered(B=batch, HW=max(hw, window), C=channels, size=window, stride=stride), "h200"
        ).graph
        [b] = [graph.bound(op) for op in graph.ops]
        assert by_threads(b) and Gather(b).bytes <= SCRATCH, (stride, hw, batch)


@pytest.mark.parametrize("batch", [1, 8])
def test_patches_whose_filters_fit_nowhere_are_multiplied_piece_by_piece(batch: int) -> None:
    """ViT-B/32: 32 x 32 pixels of three channels."""
    plan = tg.plan(patches(B=batch, HW=224, N=768, size=32), "h200")
    (b,) = plan.bounds
    assert by_threads(b) and Gather(b).bytes > SCRATCH >= ConvProduct(b).bytes and b.tile[1:3] != (1, 1)
    assert tg.verify(plan).ok and generate(plan).text
