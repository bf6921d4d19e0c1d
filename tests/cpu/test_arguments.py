"""How a kernel is called, alike on every target: by name, with parameters, prepared, inside torch.compile;
its copies."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import permutations
from pathlib import Path

import pytest
import torch
from test_launches import compiled as launches
from test_launches import stream  # noqa: F401

import tilegen as tg
from tilegen.frontend.program import Program
from tilegen.kernels.kernel import Kernel
from tilegen.runtime.arguments import overlapping
from tilegen.runtime.data import random_arguments


@tg.spec
def pair(M=4, H=8):
    x = tg.input("x", (M, H), "float32")
    h = tg.gelu(tg.linear(x, tg.weight("w1", (16, H), "float32"), name="up"), name="h")
    return tg.linear(h, tg.weight("w2", (H, 16), "float32"), name="down")


def made(target: str, program: Program | None = None) -> Kernel:
    program = program or pair()
    return launches(program) if target == "multi_launch" else tg.compile(program, target, on="cpu:2")


TARGETS = ("cpu", "interpret", "multi_launch")


@pytest.fixture(params=TARGETS)
def kernel(request: pytest.FixtureRequest, stream: object) -> Kernel:  # noqa: F811
    return made(request.param)


def given() -> dict[str, torch.Tensor]:
    return dict(zip(("x", "w1", "w2"), random_arguments(pair()), strict=True))


# --- by name ------------------------------------------------------------


def test_names_bind_as_python_binds_them(kernel: Kernel) -> None:
    held = given()
    want = kernel(*held.values())
    for by_position in range(len(held) + 1):
        first = list(held.values())[:by_position]
        for names in permutations(list(held)[by_position:]):
            assert torch.equal(kernel(*first, **{n: held[n] for n in names}), want)
    out = torch.empty_like(want)
    assert kernel(held["x"], w2=held["w2"], out=out, w1=held["w1"]) is out and torch.equal(out, want)


def test_a_tensor_named_self_goes_by_name() -> None:
    @tg.spec
    def odd():
        return tg.linear(
            tg.input("self", (4, 8), "float32"), tg.weight("weights", (8, 8), "float32"), name="y"
        )

    kernel, (x, w) = tg.compile(odd(), "cpu", on="cpu:2"), random_arguments(odd())
    assert torch.equal(kernel(self=x, weights=w), kernel(x, w)) and torch.equal(
        kernel.prepare(self=x)(weights=w), kernel(x, w)
    )


# --- parameters ------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_parameters_are_taken_while_grad_mode_is_off(kernel: Kernel, mode: type) -> None:
    held = given()
    want = kernel(*held.values())
    parameters = {name: torch.nn.Parameter(a) for name, a in held.items()}
    with mode():
        assert torch.equal(kernel(**parameters), want)
        prepared = kernel.prepare(w1=parameters["w1"], w2=parameters["w2"])
    assert torch.equal(prepared(held["x"]), want)  # what is fixed is a constant, also while grad mode is on


def test_inside_a_module(kernel: Kernel) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            held = given()
            self.w1, self.w2, self.kernel = (
                torch.nn.Parameter(held["w1"]),
                torch.nn.Parameter(held["w2"]),
                kernel,
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kernel(x, self.w1, self.w2)

    block, x = Block(), given()["x"]
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(block)(x), block(x))


# --- prepared ------------------------------------------------------------


def test_what_prepare_gives_has_the_same_face(kernel: Kernel, tmp_path: Path) -> None:
    held = given()
    want, bound = kernel(*held.values()), kernel.prepare(w1=held["w1"])
    assert type(bound) is type(kernel) and bound.target == kernel.target and bound.source == kernel.source
    assert (
        bound.plan is kernel.plan
        and bound.proof.ok
        and bound.workspace_bytes == kernel.workspace_bytes
        and bound.packed_bytes == 0
    )
    assert [t.name for t in bound.arguments] == ["x", "w1", "w2"] and [t.name for t in bound.given] == [
        "x",
        "w2",
    ]
    both = bound.prepare(w2=held["w2"])
    assert (
        [t.name for t in both.given] == ["x"]
        and torch.equal(both(held["x"]), want)
        and torch.equal(both(x=held["x"]), want)
    )
    assert torch.equal(bound(held["x"], w2=held["w2"]), want)
    assert bound.explain() == kernel.explain() and bound.export(tmp_path).is_dir()
    bound.check()


# --- where torch looks ------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_the_callers_default_device_does_not_matter(target: str) -> None:
    kernel, held = made(target), given()
    want = kernel(*held.values())
    with torch.device("meta"):
        assert torch.equal(made(target)(*held.values()), want)


# --- it travels ------------------------------------------------------------


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))], ids=["deepcopy", "pickle"]
)
def test_a_copy_gives_the_same(kernel: Kernel, again: object) -> None:
    held = given()
    want = kernel(*held.values())
    for k in (kernel, kernel.prepare(w1=held["w1"])):
        other = again(k)  # type: ignore[operator]
        assert other is not k and type(other) is type(k) and other.plan == k.plan and other.proof == k.proof
        assert torch.equal(other(**{t.name: held[t.name] for t in k.given}), want)


def test_a_deep_copy_has_its_own_weights() -> None:
    held = given()
    bound = made("cpu").prepare(w1=held["w1"], w2=held["w2"])
    other, want = copy.deepcopy(bound), bound(held["x"])
    held["w2"].zero_()
    assert not bound(held["x"]).any() and torch.equal(other(held["x"]), want)


def test_another_versions_certificate_is_not_taken_on_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle of another version of tilegen: its plan is proved anew."""
    from tilegen.kernels import kernel as module

    data, proved = pickle.dumps(made("cpu")), []
    monkeypatch.setattr(module, "prove", lambda plan: proved.append(plan) or "anew")
    assert pickle.loads(data).proof.ok and not proved
    monkeypatch.setattr(module, "fingerprint", lambda: "another version")
    assert pickle.loads(data).proof == "anew" and len(proved) == 1


def test_a_pickle_needs_nothing_of_the_spec(tmp_path: Path) -> None:
    """A spec of __main__, loaded where there is no such spec; the binary comes from the cache."""
    held = given()
    torch.save(held, tmp_path / "held.pt")
    (tmp_path / "write.py").write_text(
        "import pickle, sys, tilegen as tg, torch\n"
        "@tg.spec\n"
        "def own(M=4):\n"
        "    x = tg.input('x', (M, 8), 'float32')\n"
        "    return tg.linear(x, tg.weight('w1', (16, 8), 'float32'), name='up')\n"
        "held = torch.load(sys.argv[1] + '/held.pt')\n"
        "k = tg.compile(own(), 'cpu', on='cpu:2').prepare(w1=held['w1'])\n"
        "pickle.dump((own(), k, k(held['x'])), open(sys.argv[1] + '/k.pickle', 'wb'))\n"
    )
    subprocess.run([sys.executable, str(tmp_path / "write.py"), str(tmp_path)], check=True)
    program, kernel, want = pickle.loads((tmp_path / "k.pickle").read_bytes())
    assert (
        torch.equal(kernel(held["x"]), want)
        and program.name == "own"
        and tg.plan(program, "cpu:2").program == "own"
    )


def test_programs_with_open_sizes_travel() -> None:
    program = pair(M=tg.symbol("M"))
    assert pickle.loads(pickle.dumps(program)) == program == copy.deepcopy(program)


# --- what it tells ------------------------------------------------------------


def test_one_line_tells_what_it_is(kernel: Kernel) -> None:
    bound = kernel.prepare(w1=given()["w1"])
    for text in (repr(kernel), repr(bound)):
        assert "\n" not in text and len(text) < 400
        assert all(
            word in text
            for word in ("pair(M=4, H=8)", " on cpu", kernel.target, "proved", "up ", "down ", "x")
        )
    assert "takes (x, w2), prepared with w1" in repr(bound)


def test_a_notebook_shows_picture_and_certificate() -> None:
    root = ET.fromstring(made("cpu")._repr_html_())
    details = root.find("details")
    assert (
        details is not None
        and "proved" in (details.findtext("summary") or "")
        and "coverage" in (details.findtext("pre") or "")
    )
    bars = [t for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(bars) == made("cpu").plan.order.count


def test_a_notebook_shows_launches_without_a_timeline(stream: object) -> None:  # noqa: F811
    text = made("multi_launch")._repr_html_()
    assert ET.fromstring(text).find("details") is not None and "<svg" not in text


def test_a_tensor_that_repeats_an_element_lies_in_that_alone() -> None:
    memory = torch.zeros(16)
    repeated = memory[:1].expand(4, 4)
    assert overlapping(memory[1:], {"repeated": repeated}) == ""
    assert overlapping(memory[:1], {"repeated": repeated}) == "repeated"
    assert overlapping(memory[3:], {"columns": memory.view(4, 4)[:, :2]}) == "columns"
    assert overlapping(memory[14:], {"columns": memory.view(4, 4)[:, :2]}) == ""
