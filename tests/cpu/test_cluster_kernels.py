"""Clusters that share steps, rows or columns give the reference's numbers: generated C++, and the
interpreter in any interleaving."""

from __future__ import annotations

from typing import Any

import pytest

import tilegen as tg
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.data import random_arguments, relative_error
from tilegen.schedule.expand import expanded
from tilegen.targets.interpret.interpreter import STRATEGIES, Interpreter


@tg.spec
def products() -> Any:
    """A gated pair, a batched product and a residual, in odd sizes."""
    x = tg.input("x", (2, 13, 19), "float32")
    left, right = tg.linear(x, tg.weight("w1", (2 * 23, 19), "float32"), name="pair").chunk(2)
    h = tg.mul(tg.silu(left), right, name="h")
    s = tg.matmul(h, x, transpose_a=True, name="s")  # 2 x 23 x 19
    t = tg.matmul(h, s, name="t")  # 2 x 13 x 19
    return tg.add(
        tg.linear(t, tg.weight("w2", (19, 19), "float32"), tg.weight("b", (19,), "float32"), name="down"),
        x,
        name="y",
    )


@tg.spec
def convs() -> Any:
    x = tg.input("x", (2, 7, 5, 3), "float32")
    a = tg.relu(tg.conv2d(x, tg.weight("w1", (7, 3, 3, 3), "float32"), padding=1, name="one"), name="a")
    c = tg.conv2d(a, tg.weight("w2", (5, 3, 3, 7), "float32"), stride=2, padding=1, name="two")
    return tg.linear(tg.flatten(c), tg.weight("w3", (9, 4 * 3 * 5), "float32"), name="fc")


TILES = {
    "products": {"pair": (6, 8, 4), "s": (12, 6, 5), "t": (6, 12, 7), "down": (12, 6, 8)},
    "convs": {"one": (1, 3, 5, 6, 2), "two": (2, 2, 2, 6, 3), "fc": (6, 6, 16)},
}
CASES: list[tuple[Any, str, dict[str, Any]]] = [
    (products, "k", {"pair": 2, "s": "3:k", "t": "2:k", "down": 3}),
    (products, "km", {"pair": "2:km", "s": "3:km", "t": "2:k", "down": "3:km"}),
    (products, "m", {"pair": "2:m", "s": "3:m", "t": "2:m", "down": "3:m"}),
    (products, "n", {"pair": "2:n", "s": "3:n", "t": "2:n", "down": "3:n"}),
    (products, "mixed", {"pair": "3:m", "t": "2:n", "down": 2}),
    (convs, "n", {"one": "2:n", "two": "3:n", "fc": "3:m"}),
    (convs, "k", {"one": 2, "two": 3, "fc": "2:n"}),
]
BOTH = pytest.mark.parametrize(
    ("spec", "how", "parts"), CASES, ids=lambda v: v if isinstance(v, str) else getattr(v, "name", "")
)


def options(spec: Any, how: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Waits at the steps that need them; static lists for the mixed ones."""
    return {
        "tiles": TILES[spec.name],
        "cluster": parts,
        "policies": {"*": "tile"},
        "scheduling": "static" if how == "mixed" else "dynamic",
    }


@BOTH
def test_compiled(spec: Any, how: str, parts: dict[str, Any]) -> None:
    program = spec()
    kernel = tg.compile(program, "cpu", on="9", **options(spec, how, parts))
    assert kernel.proof.ok
    arguments = random_arguments(program)
    for _ in range(2):
        assert relative_error(kernel(*arguments), tg.reference(program, *arguments)) < 1e-5


@BOTH
def test_interpreted(spec: Any, how: str, parts: dict[str, Any]) -> None:
    program = spec()
    arguments = random_arguments(program)
    plan = tg.plan(program, "9", target="interpret", **options(spec, how, parts))
    for seed, strategy in enumerate(STRATEGIES):
        kernel = Kernel(plan, None, Interpreter(plan, strategy, seed))
        assert relative_error(kernel(*arguments), tg.reference(program, *arguments)) < 1e-5


@pytest.mark.parametrize("cluster_split", ["m", "n"])
def test_a_part_uses_what_it_lists_itself(cluster_split: str) -> None:
    """With rows or columns there is no exchange: what only the other part has read is garbage to a part."""
    plan = tg.plan(
        products(), "9", target="interpret", tiles=TILES["products"], cluster={"down": f"2:{cluster_split}"}
    )
    data = expanded(plan)
    part = next(t["ctas"][1] for t in data["tiles"] if t["op"] == "down")
    part["reads"] = [r for r in part["reads"] if r["tensor"] != "w2"]
    arguments = random_arguments(products())
    wrong = Kernel(plan, None, Interpreter(plan, "random", 0, data))(*arguments)
    assert relative_error(wrong, tg.reference(products(), *arguments)) > 0.1
