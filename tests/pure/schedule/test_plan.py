"""Plans: the same after a round trip through JSON, and named by all that matters."""

import json
from pathlib import Path

import pytest

import tilegen as tg
from tests.gpu.gemms import gemm
from tilegen.frontend.loader import load_program
from tilegen.schedule.expand import expanded

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SMALL = {
    "gpt3_mlp": {"M": 40, "H": 64, "I": 48},
    "llama_mlp": {"M": 40, "H": 64, "I": 48},
    "gpt3_attention": {"S": 24, "H": 32, "heads": 2, "D": 16},
    "llama_attention": {"S": 24, "H": 32, "heads": 4, "kv_heads": 2, "D": 8},
    "llama_layer": {"S": 4, "S_max": 16, "H": 32, "heads": 4, "kv_heads": 2, "D": 8, "I": 24},
    "gpt_layer": {"S": 16, "H": 32, "heads": 2, "I": 48},
    "resnet38": {"HW": 32, "C": 8, "classes": 10},
    "resnet50": {"HW": 32, "C": 8, "classes": 10},
    "vgg19": {"HW": 32, "C": 8, "hidden": 32, "classes": 10},
    "bert_layer": {"B": 2, "S": 9, "H": 32, "heads": 2, "I": 48},
    "vit_layer": {"B": 2, "S": 9, "H": 32, "heads": 2, "I": 48},
    "lora": {"M": 40, "H": 64, "R": 4},
    "moe_dense": {"M": 24, "H": 32, "I": 48},
    "unet_block": {"HW": 8, "C": 16, "N": 24, "T": 20, "groups": 4},
}
MLP_TILES = {"up": (16, 16, 16), "down": (16, 32, 16)}


def program(name, **sizes):
    return load_program(str(EXAMPLES / f"{name}.py"), {**SMALL[name], **sizes})


def mlp(**options):
    return tg.plan(program("gpt3_mlp"), "cpu:3", **{"tiles": MLP_TILES, **options})


def test_all_examples_are_here():
    assert {*SMALL, "use_in_a_model"} == {p.stem for p in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("on", ["cpu:3", "h200"])
@pytest.mark.parametrize("name", SMALL)
def test_round_trip(name, on):
    made = tg.plan(program(name), on, target="cpu")
    text = json.dumps(made.to_json())
    back = tg.Plan.from_json(json.loads(text))
    assert (back.target, back.proxies) == (made.target, made.proxies)
    assert back.digest == made.digest and json.dumps(back.to_json()) == text
    assert (back.graph.ops, dict(back.graph.tensors)) == (made.graph.ops, dict(made.graph.tensors))
    assert (back.targets, back.arguments, back.outputs, back.order) == (
        made.targets,
        made.arguments,
        made.outputs,
        made.order,
    )
    assert all((back.ranks[op] == made.ranks[op]).all() for op in made.ranks)


@pytest.mark.parametrize(
    "options",
    [
        {"scheduling": "lists"},
        {"split_k": {"down": 2}},
        {"cluster": {"up": 2}},
        {"order": "banded:2"},
        {"policies": {"h": "tile"}},
    ],
    ids=str,
)
def test_round_trip_of_choices(options):
    made = mlp(**options)
    back = tg.Plan.from_json(json.loads(json.dumps(made.to_json())))
    assert back.digest == made.digest
    assert expanded(back) == expanded(made)
    assert tg.verify(back.to_json()).ok


@pytest.mark.parametrize("target", ["sm_90a", "cpu", "interpret"])
def test_warpgroups_in_turn_stand_in_the_plan(target):
    """Whoever runs it: on other targets than Hopper's it changes nothing."""
    shared, turns = (
        tg.plan(gemm(M=300), "h200", target=target, tiles={"y": (128, 64, 64)}, pingpong={"y": p})
        for p in (False, True)
    )
    data = json.loads(json.dumps(turns.to_json()))
    assert data["ops"]["y"]["pingpong"] is True and "pingpong" not in shared.to_json()["ops"]["y"]
    back = tg.Plan.from_json(data)
    assert back.digest == turns.digest != shared.digest and back.graph.op("y").pingpong
    assert tg.verify(data).ok


def test_the_digest_is_stable():
    assert mlp().digest == mlp().digest
    assert len(mlp().digest) == 32 and int(mlp().digest, 16) >= 0


CHANGES = {
    "tile": {"tiles": {**MLP_TILES, "up": (16, 32, 16)}},
    "depth of a tile": {"tiles": {**MLP_TILES, "up": (16, 16, 32)}},
    "policy": {"policies": {"up->down": "kernel"}},
    "finer policy": {"policies": {"up->down": "tile"}},
    "order": {"order": "banded:3"},
    "lag": {"order": "banded:3:2"},
    "scheduling": {"scheduling": "lists"},
    "split_k": {"split_k": {"up": 2}},
    "cluster": {"cluster": {"up": 2}},
}


def test_the_digest_tells_choices_apart():
    digests = {
        name: mlp(**{"policies": {"up->down": "row"}, "order": "op_major", **change}).digest
        for name, change in CHANGES.items()
    }
    digests["none"] = mlp(policies={"up->down": "row"}, order="op_major").digest
    assert len(set(digests.values())) == len(digests), digests


def test_the_digest_tells_programs_machines_and_targets_apart():
    digests = [
        mlp().digest,
        tg.plan(program("gpt3_mlp", M=41), "cpu:3", tiles=MLP_TILES).digest,
        tg.plan(program("gpt3_mlp", dtype="float32"), "cpu:3", tiles=MLP_TILES).digest,
        tg.plan(program("gpt3_mlp"), "cpu:4", tiles=MLP_TILES).digest,
        tg.plan(program("gpt3_mlp"), "h200", tiles=MLP_TILES, target="cpu").digest,
        tg.plan(program("gpt3_mlp"), "h200", tiles=MLP_TILES, target="interpret").digest,
    ]
    assert len(set(digests)) == len(digests)


def test_what_was_asked_for_is_done():
    made = mlp(
        policies={"h": "chunk:2"},
        split_k={"down": 2},
        cluster={"up": 2},
        order="banded:2:1",
        scheduling="lists",
    )
    assert made.graph.op("up").tile == (16, 16, 16) and made.graph.op("up").cluster == 2 and made.cluster == 2
    assert made.order.name == "banded:2:1" and dict(made.policies)["h"] == "chunk:2"
    assert [op.name for op in made.graph.ops] == ["up", "down_k0", "down"]
    assert len(made.scheduling) == 3 // 2 and sorted(r for ranks in made.scheduling for r in ranks) == list(
        range(made.order.count)
    )
    assert tg.verify(made).ok


def test_the_inner_sizes_of_a_tile_may_be_left_out():
    assert tg.plan(program("gpt3_mlp"), "cpu:3", tiles={"up": (16, 32)}).graph.op("up").tile[:2] == (16, 32)


def test_the_expanded_plan_has_the_documented_form():
    data = expanded(mlp())
    assert [t["rank"] for t in data["tiles"]] == list(range(len(data["tiles"])))
    assert {
        "version",
        "program",
        "sizes",
        "machine",
        "lowering",
        "scheduling",
        "tensors",
        "ops",
        "semaphores",
        "tiles",
    } <= set(data)
    up = next(t for t in data["tiles"] if t["op"] == "up")
    assert {r["tensor"] for r in up["ctas"][0]["reads"]} == {"x", "w1"}
    assert up["ctas"][0]["writes"][0] == {"tensor": "h", "box": [[0, 16], [0, 16]], "proxy": "generic"}
    posts = [0] * len(data["semaphores"])
    for tile in data["tiles"]:
        for part in tile["ctas"]:
            for semaphore, amount in part["posts"]:
                posts[semaphore] += amount
    assert posts == data["semaphores"]
