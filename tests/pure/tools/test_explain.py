"""explain: formulas, costs and reasons, for given and for open sizes."""

from pathlib import Path

import pytest

import tilegen as tg
from tilegen.errors import PlanError
from tilegen.frontend.loader import load_program
from tilegen.options import Options

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MLP = {"M": 64, "H": 96, "I": 48}
TILES = {"up": (16, 16, 32), "down": (16, 32, 16)}


def explained(name, sizes, on="cpu:2", **options):
    return tg.explain(load_program(str(EXAMPLES / f"{name}.py"), sizes), on, **options)


def test_given_sizes():
    text = explained("gpt3_mlp", MLP, tiles=TILES, policies={"h": "row"}, order="op_major")
    for line in (
        "gpt3_mlp(M=64, H=96, I=48) on cpu: 24 tiles, 4 semaphores",
        "h [64 x 48] = linear(x, w1), then gelu_tanh(acc0)",
        "tile 16 x 16 x 32; tiles i < 4, j < 3; steps 3",
        "reads  x[16·i : 16·i + 16, 32·k : 32·k + 32]",
        "writes h[16·i : 16·i + 16, 16·j : 16·j + 16]",
        "h: written by up",
        "up->down: h[16·i : 16·i + 16, 16·k : 16·k + 16] lies in up blocks [i, k]",
        "sem[block0]",
        "order: op_major, scheduling: dynamic",
        "makespan",
    ):
        assert line in text, f"{line!r} is not in\n{text}"
    [row] = [line for line in text.splitlines() if line.startswith(" *")]
    # semaphores, waits per tile, producer tiles before the start
    assert "row" in row and row.split()[-3:] == ["4", "1.00", "3.0"]


@pytest.mark.parametrize("policy", ["kernel", "row", "class", "tile", "chunk:2"])
def test_the_policy_asked_for_is_marked(policy):
    text = explained("gpt3_mlp", MLP, tiles=TILES, policies={"h": policy})
    marked = [line for line in text.splitlines() if line.startswith(" *")]
    assert (
        (len(marked) == 1 and policy in marked[0].split()[0].lstrip("*").split("="))
        if "chunk" not in policy
        else not marked
    )
    assert "chosen: " in text


def test_lattice_of_a_gemm_chain():
    """kernel, one per column of tiles, one per row (the consumer class), one per tile (the step class)."""
    text = explained("gpt3_mlp", MLP, tiles=TILES)
    for name in ("kernel", "column", "row=class", "step=tile"):
        assert any(line[2:].startswith(name + " ") for line in text.splitlines()), text


def test_bands_gangs_and_lists():
    text = explained(
        "gpt3_mlp",
        MLP,
        "6",
        target="cpu",
        tiles=TILES,
        cluster={"up": "2:m"},
        order="banded:2",
        scheduling="lists",
    )
    assert (
        "cluster of 2 splitting m" in text
        and "order: banded:2:1" in text
        and "scheduling: lists of 3 SMs" in text
    )


def test_a_plan_with_its_proof():
    from tilegen.targets.select import place_of
    from tilegen.tools.explain import explain_plan

    made = tg.plan(load_program(str(EXAMPLES / "gpt3_mlp.py"), MLP), "cpu:2")
    certificate = tg.verify(made)
    assert certificate.text() in explain_plan(made, place_of(made), certificate)


def test_the_lowering_is_told_where_it_is_left_open():
    sizes = {"S": 102, "H": 2048, "heads": 16}
    text = explained("gpt3_attention", sizes, "h200").splitlines()[-1]
    assert text.startswith("lowering, unless another was measured best: multi_launch; by the model 3 ")
    one = explained("llama_layer", {"S": 1, "S_max": 1024}, "h200").splitlines()[-1]
    assert one.startswith("lowering, unless another was measured best: persistent; by the model 11 ")
    for on, options in (("cpu:2", {}), ("h200", {"order": "op_major"})):
        assert "lowering" not in explained("gpt3_attention", sizes, on, **options)


def test_an_op_alone():
    @tg.spec
    def alone():
        return tg.softmax(tg.input("x", (8, 8), "float32"), name="y")

    text = tg.explain(alone(), "cpu:2")
    assert "0 semaphores" in text and "written by" not in text


def test_covering_ranges_are_told():
    """A window whose rows have gaps is covered by a range."""

    @tg.spec
    def gaps():
        x = tg.conv2d(
            tg.input("x", (1, 12, 12, 4), "float32"),
            tg.weight("w", (4, 3, 3, 4), "float32"),
            padding=1,
            name="a",
        )
        return tg.conv2d(x, tg.weight("u", (4, 2, 2, 4), "float32"), stride=5, dilation=2, name="b")

    assert "(covering range)" in tg.explain(gaps(), "cpu:2")


# ---- open sizes --------------------------------------------------------------------------------------------


def test_open_rows():
    text = explained("gpt3_mlp", {"M": tg.symbol("M"), "H": 96, "I": 48}, tiles=TILES)
    for line in (
        "gpt3_mlp for open M",
        "h [M x 48] = linear(x, w1)",
        "tiles i < ⌈M/16⌉, j < 3; steps 3",
        "x[16·i : min(M, 16·i + 16), 32·k : 32·k + 32]",
        "up->down: h[16·i : min(M, 16·i + 16), 16·k : 16·k + 16] lies in up blocks [i, k]",
        "⌈M/16⌉ semaphores of 3 posts, up->down waits for 1",
        "3·⌈M/16⌉ semaphores of 1 posts, up->down waits for 1 at a step",
    ):
        assert line in text, f"{line!r} is not in\n{text}"


OPEN = {
    "gpt3_mlp": ["M", "H", "I"],
    "llama_mlp": ["M", "H", "I"],
    "gpt3_attention": ["B", "S", "H", "D"],
    "llama_attention": ["B", "S", "H", "D"],
    "llama_layer": ["B", "S", "S_max", "H", "D", "I"],
    "gpt_layer": ["B", "S", "I"],
    "resnet38": ["B", "C"],
    "vgg19": ["B", "C"],
}
SIZES = {
    "resnet38": {"stage": 2, "HW": 64, "C": 8},
    "vgg19": {"block": 2, "HW": 16, "C": 8},
    "llama_layer": {"S": 8, "S_max": 64},
    "gpt3_attention": {"S": 64},
    "llama_attention": {"S": 64},
    "gpt_layer": {"S": 64},
}


ANY = [(name, size) for name, sizes in OPEN.items() for size in sizes]


@pytest.mark.parametrize(
    ("name", "size"), [pytest.param(*a, marks=[pytest.mark.full] if n % 2 else []) for n, a in enumerate(ANY)]
)
def test_any_size_may_be_open(name, size):
    text = explained(name, {**SIZES.get(name, {}), size: tg.symbol(size)})
    first = text.splitlines()[0]
    assert first.startswith(f"{name} for open {size} (tiles as for {size} = ")
    assert "written by" in text and f"{size}" in text.split("\n", 2)[2]


def test_an_open_width_of_32_heads_is_refused():
    """A head's columns would start at H/32·h."""
    with pytest.raises(tg.TilegenError, match="head|whole|affine"):
        explained("gpt_layer", {"S": 64, "H": tg.symbol("H")})


def test_all_sizes_may_be_open():
    text = explained("gpt3_mlp", {name: tg.symbol(name) for name in ("M", "H", "I")})
    assert "for open H, I, M" in text and "up->down" in text


def test_open_sizes_of_a_cache_on_a_gpu():
    """Where the keys are shared out depends on all sizes: with one open the attention is explained whole, and
    a split is refused."""
    sizes = {"S_max": tg.symbol("S_max")}
    assert "attn: written by attn" in tg.explain(
        load_program(str(EXAMPLES / "llama_layer.py"), sizes), "h200"
    )
    with pytest.raises(PlanError, match="sizes are left open; a split .attn. needs all of them"):
        tg.explain(
            load_program(str(EXAMPLES / "llama_layer.py"), sizes), "h200", Options.of(split_kv={"attn": 2})
        )


def test_the_sample_of_open_sizes_is_small():
    """A batch of 1000 images has 170,000 tiles of patches, whose dependences take seconds to list and say
    nothing new."""

    @tg.spec
    def patches(B):
        x = tg.input("x", (B, 224, 224, 3))
        y = tg.conv2d(x, tg.weight("w", (768, 16, 16, 3)), stride=16, name="patches")
        return tg.conv2d(y, tg.weight("v", (768, 1, 1, 768)), name="mix")

    few = tg.explain(patches(tg.symbol("B")), "h200")
    assert "tiles as for B = 60" in few and "168·B semaphores of 1 posts" in few, few
