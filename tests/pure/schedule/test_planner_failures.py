"""Options that do not fit a program: each is refused with a PlanError that names what was given and what was
expected."""

from pathlib import Path

import pytest
import torch

import tilegen as tg
from tests.gpu.gemms import gemm
from tilegen.errors import PlanError
from tilegen.frontend.loader import load_program, load_spec
from tilegen.options import Options
from tilegen.runtime.data import random_arguments
from tilegen.schedule.launches import whole_plan
from tilegen.targets.select import place

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def mlp():
    return load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 8, "H": 32, "I": 16, "dtype": "float32"})


@pytest.fixture(scope="module")
def attention():
    return load_program(
        str(EXAMPLES / "gpt3_attention.py"), {"S": 8, "H": 32, "heads": 2, "D": 8, "dtype": "float32"}
    )


@tg.spec
def skipping():
    """The second convolution reads every other row only: with a semaphore per tile some would be awaited by
    nobody."""
    x = tg.input("x", (1, 8, 8, 4), "float32")
    y = tg.conv2d(x, tg.weight("w", (4, 3, 3, 4), "float32"), padding=1, name="wide")
    return tg.conv2d(y, tg.weight("u", (4, 1, 1, 4), "float32"), stride=2, name="strided")


def refused(words, program, on="cpu:2", **options):
    with pytest.raises(tg.PlanError) as caught:
        tg.plan(program, on, **options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


@pytest.mark.parametrize(("option", "value"), [("tiles", (8, 8)), ("split_k", 2), ("cluster", 2)])
def test_unknown_op(mlp, option, value):
    refused([f"{option} of nope", "no such op", "down, up"], mlp, **{option: {"nope": value}})


TILES = [(0, 8), (8, -1), (8, 8, 8, 8), (8, 8, 0), (8.5, 8), (True, 8), 8, "8x8", ("8", "8"), None]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_wrong_tile(mlp, tile):
    refused(["'up'", "linear tile has 3 positive sizes", "gpt3_mlp.py:11"], mlp, tiles={"up": tile})


def test_wrong_tile_of_other_kinds(attention):
    refused(
        ["8x8x1x8", "'attn'", "attention tile has 3 positive sizes"], attention, tiles={"attn": (8, 8, 1, 8)}
    )
    refused(
        ["(8, 8, 2)", "'attn'", "2 heads a tile, but 1 share a key head"],
        attention,
        tiles={"attn": (8, 8, 2)},
    )
    refused(["8x8", "'n'", "rms_norm tile has 1 positive sizes"], norm(), tiles={"n": (8, 8)})


@tg.spec
def norm():
    return tg.rms_norm(tg.input("x", (4, 6), "float32"), tg.weight("w", (6,), "float32"), name="n")


@pytest.mark.parametrize("tile", [(2**31, 8, 8), (8, 2**33, 8), (8, 8, 10**12)], ids=str)
def test_a_tile_must_fit_into_32_bits(mlp, tile):
    """Tile sizes become C ints."""
    refused(["'up'", str(max(tile))], mlp, tiles={"up": tile})


# ---- policies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", ["rows", "", "chunk", "chunk:0", "chunk:-1", "chunk:x", "chunk:²", 3, None]
)
@pytest.mark.parametrize("key", ["up->down", "h", "*"])
def test_unknown_policy(mlp, key, policy):
    refused(["'h' (up->down) has no policy", repr(policy), "kernel", "chunk:N"], mlp, policies={key: policy})


def test_the_nearest_policy_and_edge_are_named(mlp):
    refused(["did you mean 'row'?"], mlp, policies={"up->down": "rows"})
    refused(
        ["policy up->dwn=row", "the edges are up->down, the tensors h; did you mean 'up->down'?"],
        mlp,
        policies={"up->dwn": "row"},
    )
    refused(["no option 'tile'", "did you mean 'tiles'?"], mlp, tile={"up": (8, 8)})


@pytest.mark.parametrize("key", ["down->up", "up", "x", "up->h", ""])
def test_unknown_edge(mlp, key):
    refused([f"policy {key}=row", "no such edge or tensor", "up->down"], mlp, policies={key: "row"})


def test_edges_of_a_program_without_any():
    refused(["no such edge or tensor", "none"], norm(), policies={"a->b": "row"})


def test_a_policy_with_semaphores_that_nobody_awaits():
    tiles = {"wide": (1, 1, 8, 4, 4), "strided": (1, 1, 4, 4, 4)}
    refused(
        ["wide->strided=tile", "4 of its 8 semaphores", "awaited by nobody"],
        skipping(),
        tiles=tiles,
        policies={"wide->strided": "tile"},
    )
    made = tg.plan(skipping(), "cpu:2", tiles=tiles)  # the planner itself takes none of those
    assert dict(made.policies)["wide"].split("=")[0] != "tile"
    assert tg.verify(made).ok


# ---- order, scheduling, machine ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order",
    [
        "",
        "rows",
        "op_major:",
        "op_major:0",
        "op_major:2:2",
        "banded",
        "banded:0",
        "banded:2:1:1",
        "banded:x",
        "banded:²",
        None,
        3,
    ],
)
def test_unknown_order(mlp, order):
    refused(["unknown order", repr(order), "op_major", "banded:N:LAG"], mlp, order=order)


def test_an_order_that_would_deadlock(attention):
    """Without lag a band of queries comes before the keys of later bands, which it needs."""
    backwards = {"qkv": (4, 16, 8), "attn": (4, 4), "out": (4, 16, 8)}

    @tg.spec
    def everything():
        q = tg.input("q", (1, 16, 16), "float32")
        k = tg.linear(q, tg.weight("w", (16, 16), "float32"), name="qkv")
        a = tg.attention(q, k, k, heads=2, name="attn")
        return tg.linear(a, tg.weight("u", (16, 16), "float32"), name="out")

    for order in ("banded:4", "banded:4:1"):
        refused(
            ["order banded:4:1", "would wait", "higher rank", "; banded:4:3 works"],
            everything(),
            tiles=backwards,
            order=order,
        )
    refused(["; banded:4:3 works"], everything(), tiles=backwards, order="banded:4:2")
    assert tg.plan(everything(), "cpu:2", tiles=backwards, order="banded:4:3").order.name == "banded:4:3"


@pytest.mark.parametrize("scheduling", ["", "ticket", "Dynamic", None, 1])
def test_unknown_placement(mlp, scheduling):
    refused(["unknown scheduling", repr(scheduling), "dynamic, static or lists"], mlp, scheduling=scheduling)


@pytest.mark.parametrize(
    "machine",
    [
        "",
        "gpu",
        "H20x",
        "h10",
        "cpu:",
        "cpu:0",
        "cpu:-1",
        "cpu:x",
        "cpu:²",
        "²",
        0,
        -1,
        4097,
        1.5,
        None,
        True,
    ],
)
def test_unknown_machine(mlp, machine):
    refused(["unknown machine", repr(machine), "cpu:N, a100", "h200, b200"], mlp, on=machine)


@pytest.mark.parametrize("threads", ["abc", "-3", "1.5", "0"])
def test_wrong_number_of_threads(mlp, monkeypatch, threads):
    monkeypatch.setenv("TILEGEN_NUM_THREADS", threads)
    with pytest.raises(tg.TilegenError, match="TILEGEN_NUM_THREADS") as caught:
        tg.plan(mlp, "cpu")
    assert threads in str(caught.value)


# ---- clusters and splits
# --------------------------------------------------------------------------------------


NO_GANGS = [0, -2, 1.5, None, True, "", "two", " 2", "2:", "2:diagonal", "2:rows:columns", "0:m", ":rows"]


@pytest.mark.parametrize("parts", NO_GANGS)
def test_wrong_gang(mlp, parts):
    refused(
        ["'up'", f"cluster of {parts}", "expected its size", "k, km, m, n"],
        mlp,
        on="h200",
        cluster={"up": parts},
    )


UNFIT = [
    (3, "3 does not share 64 columns"),
    ("3:n", "64 columns"),
    ("5:m", "5 does not share 32 rows"),
]


@pytest.mark.parametrize(("parts", "said"), [*UNFIT, ("32:m", "exceeds the 6 SMs")])
def test_clusters_that_do_not_fit(mlp, parts, said):
    refused(["'up'", "a cluster of", said], mlp, on="6", tiles={"up": (32, 64, 64)}, cluster={"up": parts})


def test_clusters_cannot_split_the_rows_of_a_picture():
    refused(
        ["'wide'", "share the rows", "conv2d", "4 dimensions"],
        skipping(),
        on="h200",
        cluster={"wide": "2:m"},
    )


def test_kinds_without_gangs(attention):
    refused(
        ["'attn'", "linear, matmul and conv2d", "attention cannot", "gpt3_attention.py:13"],
        attention,
        on="h200",
        cluster={"attn": 2},
    )
    refused(["'n'", "rms_norm cannot"], norm(), on="h200", cluster={"n": 2})


@pytest.mark.parametrize("splits", [-1, 0, 1, 3, "2", 1.5, None])
def test_wrong_split(mlp, splits):
    refused(
        ["'up'", "2 chunks of 16", f"{splits} splits"], mlp, tiles={"up": (8, 8, 16)}, split_k={"up": splits}
    )


def test_only_sums_are_split(attention):
    refused(
        ["only a whole attention over caches", "'attn' is none", "gpt3_attention.py:13"],
        attention,
        split_kv={"attn": 2},
    )
    refused(["only a whole linear", "'n' is rms_norm"], norm(), split_k={"n": 2})


@tg.spec
def caches(taken="other"):
    """A linear with a name that a split of the attention would take."""
    q, pos = tg.input("q", (1, 1, 512), "bfloat16"), tg.input("pos", (1,), "int32")
    k, v = (tg.state(name, (1, 2048, 8, 64), "bfloat16") for name in "kv")
    return tg.attention(
        tg.linear(q, tg.weight("w", (512, 512), "bfloat16"), name=taken), k, v, heads=8, at=pos, name="att"
    )


@pytest.mark.parametrize("taken", ["att_split_kv", "att_partial"])
def test_nothing_is_split_unasked_where_the_names_are_taken(taken):
    assert [op.name for op in tg.plan(caches(), "h200").graph.ops] == ["other", "att_split_kv", "att"]
    assert [op.name for op in tg.plan(caches(taken=taken), "h200").graph.ops] == [taken, "att"]
    refused(
        ["splitting 'att' makes att_partial, att_split_kv", f"{taken} is taken"],
        caches(taken=taken),
        tiles={"att": (1, 64)},
        split_kv={"att": 2},
    )
    assert [op.name for op in whole_plan(caches(taken=taken), place("h200"), Options()).graph.ops] == [
        taken,
        "att",
    ]
    with pytest.raises(PlanError, match=f"{taken} is taken"):
        whole_plan(caches(taken=taken), place("h200"), Options.of(split_kv={"att": 2}))


def test_heads_of_a_tile_left_out():
    """As many as share a key head where their rows fit a GPU's tile, else one."""
    layer = load_program(str(EXAMPLES / "llama_layer.py"), {"S": 16, "S_max": 300})
    assert [tg.plan(layer, "h200", tiles={"attn": (n, 64)}).graph.op("attn").tile for n in (16, 64)] == [
        (16, 64, 4),
        (64, 64, 1),
    ]


def test_wrong_shares_of_keys():
    layer = load_program(
        str(EXAMPLES / "llama_layer.py"),
        {"S_max": 100, "H": 32, "heads": 4, "kv_heads": 2, "D": 8, "I": 24, "dtype": "float32"},
    )
    for splits in (1, 8, 2.0):
        refused(
            ["'attn'", "7 blocks of 16 keys", f"{splits} splits"],
            layer,
            tiles={"attn": (1, 16)},
            split_kv={"attn": splits},
        )
    refused(["12 columns a tile", "whole heads of 8", "turned"], layer, tiles={"k_append": (12,)})


def test_names_made_by_a_split_must_be_free():
    """up_k0 and up_partial0 are taken by the user."""

    @tg.spec
    def taken():
        x = tg.input("up_partial0", (4, 32), "float32")
        y = tg.relu(tg.linear(x, tg.weight("w", (16, 32), "float32"), name="up"), name="h")
        return tg.linear(y, tg.weight("u", (8, 16), "float32"), name="up_k0")

    tiles = {"up": (4, 8, 16)}
    try:
        made = tg.plan(taken(), "cpu:2", tiles=tiles, split_k={"up": 2})
    except tg.PlanError as error:
        assert "up_k0" in str(error) or "up_partial0" in str(error)
    else:
        assert (
            len({op.name for op in made.graph.ops}) == 3 and made.graph.tensors["up_partial0"].role == "input"
        )
        assert tg.verify(made).ok


# ---- the call itself ---------------------------------------------------------------------------------------


def test_open_sizes():
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), ["M=?"])
    refused(["gpt3_mlp", "left open", "M"], program)


def test_unknown_option(mlp):
    refused(["'tilse'", "tiles", "policies", "scheduling"], mlp, tilse={"up": (8, 8)})


@pytest.mark.parametrize("given", [5, None, ("up", (8, 8, 8)), {3: (8, 8, 8)}, [("up", 2)]], ids=str)
@pytest.mark.parametrize("option", ["tiles", "policies", "split_k", "split_kv", "cluster", "pingpong"])
def test_an_option_by_op_is_a_dict(mlp, option, given):
    refused([f"option {option} is a dict", repr(given)], mlp, **{option: given})


def test_warpgroups_take_turns_where_they_can(mlp):
    refused(["pingpong of none", "up"], mlp, pingpong={"none": True})
    refused(["pingpong of 'up' is 1", "True or False"], mlp, on="h200", pingpong={"up": 1})
    refused(["on cpu", "leave pingpong out"], mlp, on="cpu", pingpong={"up": True})
    turns = {"tiles": {"up": (128, 64, 64)}, "pingpong": {"up": True}}
    half = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 300, "H": 256, "I": 256})
    refused(["a launch of one op", "ask for launches"], half, on="h200", **turns)


@pytest.mark.parametrize(
    ("tile", "more", "words"),
    [
        ((64, 128, 64), {}, ["128 or 192 rows", "64"]),
        ((256, 96, 64), {}, ["128 or 192 rows", "256"]),
        ((72, 96, 64), {}, ["64, 128, 256 columns", "72 x 96"]),
        ((200, 128, 64), {}, ["128 x 200 sums"]),
        ((192, 136, 64), {}, ["192 x 136 sums"]),
        ((128, 128, 64), {"cluster": {"y": 2}}, ["128 of a cluster of 2"]),
    ],
    ids=str,
)
def test_tiles_that_no_warpgroup_has_alone(tile, more, words):
    refused(words, gemm(M=300), on="h200", tiles={"y": tile}, pingpong={"y": True}, **more)


def test_a_tile_as_text_is_told_as_it_was_given(mlp):
    refused(
        ["tile '64x64' of 'up'", "in a tuple such as (64, 96, 64)"], mlp, on="h200", tiles={"up": "64x64"}
    )


@pytest.mark.parametrize("verb", [tg.plan, tg.explain, tg.compile], ids=lambda v: v.__name__)
def test_options_are_options_and_are_given_once(mlp, verb):
    with pytest.raises(tg.PlanError, match=r"options is a tg\.Options, given \{'tiles'.*tg\.Options\.of"):
        verb(mlp, options={"tiles": {"up": (8, 8, 8)}})
    with pytest.raises(tg.PlanError, match="options= and tiles"):
        verb(mlp, options=Options(), tiles={"up": (8, 8, 8)})


@pytest.mark.parametrize("verb", [tg.plan, tg.explain, tg.compile, tg.reference], ids=lambda v: v.__name__)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (skipping, "the Spec skipping: call it, skipping"),
        (load_spec(str(EXAMPLES / "gpt3_mlp.py")), r"call it, gpt3_mlp\(M=…, H=…, I=…, dtype=…\)"),
        (None, "given None; a @tg.spec function, called with sizes, gives one"),
        (5, "given a value of type int"),
        (
            torch.nn.Linear(2, 2),
            "given a value of type Linear; write a module's maths as a @tg.spec function",
        ),
    ],
    ids=["spec", "spec with sizes", "None", "int", "module"],
)
def test_every_verb_takes_a_program(verb, given, words):
    with pytest.raises(tg.SpecError, match=f"expected a Program, .*{words}"):
        verb(given)


# ---- sizes beyond what can be listed or held -------------------------------------------------------------


@pytest.mark.parametrize("on", ["cpu:2", "h200"])
@pytest.mark.parametrize("rows", [10**8, 10**12])
def test_more_tiles_than_can_be_planned(on, rows):
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": rows})
    with pytest.raises(
        tg.AnalysisError,
        match=r"gpt3_mlp.py:11: 'up' has [\d,]+ tiles of [\dx]+, at most 4,194,304 can be planned",
    ):
        tg.plan(program, on)


def test_more_dependences_than_can_be_listed():
    """A million tiles of each op, and every one reads of a thousand: a hundred gigabytes."""
    program = load_program(
        str(EXAMPLES / "gpt3_mlp.py"), {"M": 8000, "H": 8000, "I": 8000, "dtype": "float32"}
    )
    tiles = {"up": (8, 8, 8000), "down": (8, 8, 8000)}
    with pytest.raises(
        tg.AnalysisError, match=r"gpt3_mlp.py:12: up->down: .* 1,000,000,000 times .*'up', at most 67,108,864"
    ):
        tg.plan(program, "cpu:2", tiles=tiles)


def test_data_beyond_this_machines_memory():
    program = load_program(str(EXAMPLES / "gpt3_mlp.py"), {"M": 10**11})
    with pytest.raises(
        tg.ArgumentError,
        match=r"gpt3_mlp.py:\d+: gpt3_mlp: its tensors take [\d,]+ bytes \('x' alone 2,457,600,000,000,000\)",
    ):
        random_arguments(program)


@pytest.mark.parametrize(("word", "meant"), [("device", "target"), ("machine", "on"), ("tile", "tiles")])
def test_what_others_call_it(mlp, word, meant):
    refused([f"no option '{word}'", f"did you mean '{meant}'?"], mlp, **{word: "h200"})


@tg.spec
def alone():
    return tg.relu(tg.input("x", (8, 8), "float32"))


@pytest.mark.parametrize("verb", [tg.verify, tg.simulate])
@pytest.mark.parametrize("given", [alone, alone(), 3, None])
def test_a_plan_is_asked_for(verb, given):
    with pytest.raises(tg.PlanError, match=f"expected a Plan.*given a {type(given).__name__}"):
        verb(given)


def test_one_sm_has_no_pairs() -> None:
    for sms in (1, 2, 3):
        made = tg.plan(gemm(M=64, N=512, K=512), sms, target="sm_90a")
        assert all(op.cluster <= sms for op in made.graph.ops)
