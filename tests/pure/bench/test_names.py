"""Cells have names that a reader knows, and no two the same."""

from __future__ import annotations

from typing import Any

from tilegen.bench.names import Name, names
from tilegen.bench.rows import Row


def row(program: str, **sizes: Any) -> Row:
    return Row(program, sizes, "graph", 1.0, 0.0, 9, 0.0, 1.0, 1.0)


def named(*rows: Row) -> list[Name]:
    return list(names(rows).values())


def test_the_whole_net_has_a_name() -> None:
    net, stage = named(row("resnet38", B=8, stage=0), row("resnet38", B=8, stage=2))
    assert net == Name("The whole ResNet-38", "ResNet-38, B = 8")
    assert stage.label == "ResNet-38 stage 2, B = 8"
    net, block = named(row("vgg19", B=1, block=0), row("vgg19", B=1, block=5))
    assert (net.label, block.label) == ("VGG-19, B = 1", "VGG-19 block 5, B = 1")


def test_a_layer_of_another_width_is_not_called_llama_3() -> None:
    known = {"B": 1, "S": 1, "S_max": 1088, "H": 4096, "heads": 32, "kv_heads": 8, "I": 14336}
    one, other = named(row("llama_layer", **known), row("llama_layer", **known | {"H": 64}))
    assert one.group.startswith("Llama-3-8B") and other.group == "llama_layer"


def test_sizes_that_differ_tell_cells_of_one_name_apart() -> None:
    sizes = {"M": 512, "H": 12288, "I": 6144}
    a, b = named(row("gpt3_mlp", **sizes, inputs="random"), row("gpt3_mlp", **sizes, inputs="constant"))
    assert (a.label, b.label) == ("GPT-3, M = 512, inputs = random", "GPT-3, M = 512, inputs = constant")


def test_a_program_without_words_is_a_group_of_its_own() -> None:
    both = [Name("mine", "M = 1"), Name("mine", "M = 3")]
    assert named(row("mine", M=1, H=2), row("mine", M=3, H=2)) == both
    assert named(row("mine", M=1, H=2)) == [Name("mine", "M = 1")]
