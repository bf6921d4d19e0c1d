"""Convolutions that share their code: which do, that their code is one indeed, and that the host gives the
kernel what it then expects."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, cached_property, partial
from typing import Any

import pytest

import tilegen as tg
import tilegen.targets.sm90.library
from tests.gpu.gemms import Case
from tests.gpu.ops import CONVOLUTIONS, EXAMPLE_CASES, blocks, example, of_blocks
from tilegen.errors import AnalysisError
from tilegen.runtime.nvrtc import compile_cuda
from tilegen.schedule.plan import Plan
from tilegen.targets.sm90.code import Code
from tilegen.targets.sm90.conv2d import convolution
from tilegen.targets.sm90.emit import generate, hopper_op
from tilegen.targets.sm90.extras import epilogue_is_older
from tilegen.targets.sm90.library import ARCHITECTURE, HopperLibrary
from tilegen.targets.sm90.product import Product
from tilegen.targets.sm90.shared_bodies import Body, bodies, convolves

BLOCKS = Case("blocks", blocks, {})
CASES = [*CONVOLUTIONS, *(c for c in EXAMPLE_CASES if "resnet" in c.name or "vgg" in c.name)]
# names that may differ
OF_ONE = {
    "enum",
    "cases",
    "served",
    "equation",
    "equations",
    "locals",
    "epilogue",
    "maps",
    "result_name",
    "waits_of",
    "posts_of",
    "member_by_op",
    "_numbers",
}
LINEAR = {"norm", "packing", "text"}  # that nobody asks of a convolution, or asks of its epilogue's operands


def bodies_of(plan: Plan) -> tuple[Body, ...]:
    return bodies([hopper_op(plan, b) for b in plan.bounds])


def shared(case: Case) -> list[tuple[str, ...]]:
    return [tuple(op.name for op in family.members) for family in bodies_of(case.plan()) if family.shared]


def test_blocks_of_one_shape_share_their_code() -> None:
    assert shared(BLOCKS) == [("first0", "first1", "first2"), ("second0", "second1", "second2")]


def test_members_come_in_even_steps() -> None:
    """Otherwise which of them a tile is of would not follow from its op's number."""
    ops = [hopper_op(plan, b) for plan in [BLOCKS.plan()] for b in plan.bounds]
    first, second = ops[0], ops[1]
    uneven = [replace(op, bound=op.bound) for op in (first, first, second, first, first, second)]
    assert [[uneven.index(op) for op in f.members] for f in bodies(uneven)] == [[0, 0], [2, 2], [0, 0]]
    assert [len(f.members) for f in bodies(uneven)] == [2, 2, 2]


@pytest.mark.parametrize(
    "tile, parts",
    [((1, 4, 14, 16, 64), 1), ((1, 4, 14, 32, 128), 1), ((1, 4, 14, 32, 64), 2)],
    ids=["tile", "step", "pair"],
)
def test_those_of_another_cut_have_their_own(tile: tuple[int, ...], parts: int) -> None:
    options = of_blocks((1, 4, 14, 32, 64))
    options["tiles"]["second1"] = tile
    case = Case(
        "cut",
        blocks,
        {"HW": 14, "C": 128},
        {**options, **({"cluster": {"second1": parts}} if parts > 1 else {})},
    )
    assert shared(case) == [("first0", "first1", "first2"), ("second0", "second2")]


Conv = Callable[..., Any]  # conv(padding=…) of the tensor at hand, one after the other
Made = Callable[[Conv, Callable[[], Any]], Any]


def of_two(first: Made, second: Made) -> list[tuple[str, ...]]:
    """What shares code in x -> a -> y, where each is made of a convolution and of the halves of one more
    input."""

    @tg.spec
    def two():
        x = tg.input("x", (1, 14, 14, 64), "float16")
        halves = cache(lambda: tg.input("more", (1, 14, 14, 128), "float16").chunk(2))
        for name, made in (("a", first), ("y", second)):
            w = tg.weight(f"w_{name}", (64, 3, 3, 64), "float16")
            x = made(partial(tg.conv2d, x, w, name=name), halves)
        return x

    return shared(Case("two", two, {}, {"tiles": {name: (1, 4, 14, 32, 64) for name in ("a", "y")}}))


def plain(conv: Conv, _: Any) -> Any:
    return tg.relu(conv(padding=1))


def left(conv: Conv, halves: Any) -> Any:
    return tg.relu(conv(padding=1) + halves()[0])


@pytest.mark.parametrize(
    "like, other",
    [
        (plain, lambda conv, _: conv(padding=1)),
        (plain, lambda conv, _: tg.relu(conv(padding=2, dilation=2))),
        (plain, lambda conv, _: tg.silu(conv(padding=1))),
        (plain, left),
        (left, lambda conv, halves: tg.relu(conv(padding=1) + halves()[1])),
    ],
    ids=["no function", "dilation", "another function", "a residual", "other columns of it"],
)
def test_those_that_compute_something_else_have_their_own(like: Made, other: Made) -> None:
    assert of_two(like, like) == [("a", "y")]
    assert of_two(like, other) == []


def test_pairs_that_share_something_else_have_their_own() -> None:
    options = of_blocks((1, 4, 14, 64, 64), parts=2)
    assert len(shared(Case("steps", blocks, {"HW": 14, "C": 128}, options))) == 2
    mixed = {**options, "cluster": {**options["cluster"], "first1": "2:n"}}
    assert ("first0", "first2") in shared(Case("columns", blocks, {"HW": 14, "C": 128}, mixed))


@tg.spec
def early_and_late(C=128, HW=14):
    """`early` adds an input, which is there; `late`, of the same shape, what comes after its activations."""
    x, r = (tg.input(name, (1, HW, HW, C), "float16") for name in ("x", "r"))
    w = [tg.weight(f"w{n}", (C, 3, 3, C), "float16") for n in range(4)]
    h = tg.silu(tg.conv2d(x, w[0], padding=1, name="conv_h"), name="h")
    a = tg.relu(tg.conv2d(h, w[1], padding=1, name="early") + r, name="a")
    s = tg.relu(tg.conv2d(a, w[2], padding=1, name="conv_s"), name="s")
    return tg.relu(tg.conv2d(a, w[3], padding=1, name="late") + s, name="y"), s


def test_a_residual_that_is_there_shares_no_code_with_one_that_comes_last() -> None:
    """Code that fetches it before the products would read what nobody has written yet."""
    tile = (1, 4, 14, 32, 64)
    case = Case("", early_and_late, {}, {"tiles": dict.fromkeys(("conv_h", "early", "conv_s", "late"), tile)})
    assert not any({"early", "late"} <= set(names) for names in shared(case))
    late = next(f.code for f in bodies_of(case.plan()) if f.code.name == "late")
    assert isinstance(late, Product) and not late.extras.held and not epilogue_is_older(late)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_what_is_fetched_early_has_been_awaited(case: Case) -> None:
    """Where any op that the code serves waits for what its epilogue reads, before the first load and the math
    warps wait for that load."""
    text = generate(case.plan()).text
    for family in bodies_of(case.plan()):
        code = family.code
        if (
            not isinstance(code, Product)
            or not convolves(code)
            or not code.extras.held
            or not code.waiting("epilogue")
        ):
            continue
        assert code.extras.holds_late and (epilogue_is_older(code) or code.tile.steps == 1)
        math = text[text.index("TG_FN void tg_mma_tiles(") :]
        tile = math[math.index(f"using Op = tg_op_{code.name};") :]
        assert (
            tile.index("tg_await(tg_full(smem, ring.stage), ring.phase);")
            < tile.index("tg_hold<Op")
            < tile.index("tg_mainloop<Op>")
        )


def test_names_of_twins_clash_with_no_op_or_tensor() -> None:
    """What the kernel calls after a leader, its users may call something too."""

    @tg.spec
    def named():
        x = tg.input("y", (1, 14, 14, 64), "float16")
        for conv, result in (
            ("first", "of_first"),
            ("of_first_", "e0"),
            ("shared_waits_first", "member"),
            ("waits_first", "tensors"),
            ("t", "z"),
        ):
            x = tg.relu(
                tg.conv2d(x, tg.weight(f"w_{conv}", (64, 3, 3, 64), "float16"), padding=1, name=conv),
                name=result,
            )
        return x

    case = Case("named", named, {})
    assert shared(case) == [("first", "of_first_", "shared_waits_first", "waits_first", "t")]
    assert HopperLibrary(case.plan()).source


def test_a_residual_that_is_awaited_last_shares_no_code_with_one_that_is_awaited_first() -> None:
    older, newer = (generate(Case("", blocks, {"newer": new}).plan()).text for new in (False, True))
    ahead, last = "\n        // what the epilogue reads\n", "\n            // what the epilogue reads:"
    assert ahead in older and last not in older
    assert last in newer and ahead not in newer


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_nothing_that_a_template_may_ask_differs_but_names(case: Case) -> None:
    """Each member in turn is the one that the code is generated from."""
    for family in bodies_of(case.plan()):
        if not family.shared:
            continue
        names = [op.name for op in family.members]
        answers = []
        for n, op in enumerate(family.members):
            assert convolves(op)
            answers.append(
                asked(convolution(Code(op.plan, op.bound, members=(names[n], *names[:n], *names[n + 1 :]))))
            )
        assert all(a == answers[0] for a in answers)


def asked(op: Product) -> dict[str, str]:
    """All that it and its parts answer, with its name left out."""
    own = re.compile(rf"(?<![a-z0-9]){op.name}(?![a-z0-9])")  # in tg_op_NAME and NAME_a, not in longer words
    parts = {"": op, "tile.": op.tile, "stage.": op.stage, "store.": op.store, "extras.": op.extras}
    answers = {
        f"{f.name}": repr(getattr(op, f.name)) for f in fields(op) if f.name in ("a", "b", "tile", "stage")
    }
    for prefix, part in parts.items():
        found = {name: value for c in reversed(type(part).__mro__) for name, value in vars(c).items()}
        for name, value in found.items():
            if isinstance(value, (property, cached_property)) and name not in OF_ONE | LINEAR:
                with suppress(AnalysisError):  # an attribute of other kinds
                    answers[prefix + name] = repr(getattr(part, name))
    return {name: own.sub("·", answer) for name, answer in answers.items()}


@pytest.mark.parametrize(
    "case",
    [BLOCKS, Case("stage", lambda **s: example("resnet38", **s), {"stage": 2, "B": 1})],
    ids=lambda c: c.name,
)
def test_the_host_gives_what_the_kernel_takes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps and addresses in the order of the kernel's structs, whose sizes the compiler confirms."""
    plan = case.plan()
    library = HopperLibrary(plan)
    monkeypatch.setattr(
        tilegen.targets.sm90.library, "encode", lambda address, *_: struct.pack("<16Q", address, *[0] * 15)
    )
    addresses = {name: 4096 * n for n, name in enumerate(plan.graph.tensors, 1)}
    maps, pointers = (buffer.raw for buffer in library.parameters(addresses, {}, 0, 0, 0)._buffers[:2])
    sizes = f"static_assert(sizeof(tg_maps) == {len(maps)} && sizeof(tg_tensors) == {len(pointers)});\n"
    compile_cuda(library.source + sizes, ARCHITECTURE)

    named = {address: name for name, address in addresses.items()}
    mapped = [named[struct.unpack_from("<Q", maps, at)[0]] for at in range(0, len(maps), 128)]
    seen = [named[p] for p in struct.unpack(f"<{len(pointers) // 8}Q", pointers)][len(plan.graph.tensors) :]
    members = [family.members for family in bodies_of(plan)]
    assert mapped == [
        op.maps[n].tensor for family in members for n in range(len(family[0].maps)) for op in family
    ]
    assert seen == [
        name
        for family in members
        for op in family
        for name in (op.bound.op.result, *(e.tensor for e in op.extras.text.operands))
    ]


@pytest.mark.parametrize("count, loop", [(20, False), (70, True)])
def test_maps_of_a_deep_net_are_brought_near_in_a_loop(count: int, loop: bool) -> None:
    """A statement each, ptxas holds their addresses in registers: 158 layers spilled 820 bytes."""

    @tg.spec
    def deep():
        x = tg.input("x", (1, 14, 14, 64), "float16")
        for n in range(count):
            w = tg.weight(f"w{n}", (64, 3, 3, 64), "float16")
            x = tg.relu(tg.conv2d(x, w, padding=1, name=f"c{n}"), name=f"h{n}")
        return x

    text = generate(Case("deep", deep, {}).plan()).text
    assert ("n < sizeof(maps) / sizeof(tg_map)" in text) == loop
    assert ("tg_prefetch(&maps.c0_a[1]);" in text) == (not loop)
