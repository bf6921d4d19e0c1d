"""Programs without rows: empty results of the right shapes, states as they were, nothing planned."""

from __future__ import annotations

import pickle

import pytest
import torch

import tilegen as tg
from tilegen.cli import main
from tilegen.errors import ArgumentError, PlanError, SpecError
from tilegen.kernels.empty import EmptyKernel
from tilegen.nn.module import Module

F = "float32"


@tg.spec
def mlp(M=0, K=8, H=16):
    h = tg.gelu(tg.linear(tg.input("x", (M, K), F), tg.weight("w1", (H, K), F)))
    return tg.linear(h, tg.weight("w2", (K, H), F), name="y")


@tg.spec
def cached(B=2, S=0, at_most=9):
    at, q = tg.input("at", (1,), "int32"), tg.input("q", (B, S, 8), F)
    keys = tg.append(tg.state("keys", (B, at_most, 8), F), tg.input("k", (B, S, 8), F), at=at)
    return tg.attention(tg.rope(q, heads=2), keys, keys, heads=2, at=at)


@tg.spec
def words():
    """Of everything that has rows."""
    x, images = tg.input("x", (2, 0, 8), F), tg.input("images", (0, 7, 7, 4), F)
    ids = tg.input("ids", (0,), "int32")
    values, columns = tg.topk(x, 3)
    return (
        tg.embedding(ids, tg.weight("table", (10, 8), F)),
        tg.softmax(x), tg.sum(x), values, columns, x.permute((1, 0, 2)), tg.relu(x).reshape((0, 4)),
        tg.rms_norm(x, tg.weight("g", (8,), F)),
        tg.max_pool2d(tg.conv2d(images, tg.weight("w", (6, 3, 3, 4), F), padding=1), 2),
    )  # fmt: skip


def given(program: tg.Program) -> list[torch.Tensor]:
    return [torch.randn(t.shape) if t.dtype == F else torch.zeros(t.shape).int() for t in program.arguments]


@pytest.mark.parametrize("target", ["cpu", "interpret"])
def test_results_have_the_shapes_of_the_reference(target: str) -> None:
    for program in (mlp(), words()):
        kernel, arguments = tg.compile(program, target), given(program)
        y, want = kernel(*arguments), tg.reference(program, *arguments)
        for ours, theirs in zip(*((a if isinstance(a, tuple) else (a,)) for a in (y, want)), strict=True):
            assert ours.shape == theirs.shape and ours.numel() == 0
    assert isinstance(kernel, EmptyKernel) and kernel(*arguments)[4].dtype is torch.int32


@pytest.mark.parametrize("sizes", [{}, {"B": 0, "S": 3}])
def test_caches_are_left_as_they_are(sizes: dict[str, int]) -> None:
    program = cached(**sizes)
    arguments = given(program)
    keys = arguments[[t.name for t in program.arguments].index("keys")]
    before = keys.clone()
    y = tg.compile(program, "cpu")(*arguments)
    assert y.numel() == 0 and y.shape == tg.reference(program, *arguments)[0].shape
    assert torch.equal(keys, before)


def test_states_alone_give_nothing() -> None:
    @tg.spec
    def appended():
        return tg.append(tg.state("c", (2, 9, 8), F), tg.input("x", (2, 0, 8), F), at=4)

    assert tg.compile(appended(), "cpu")(*given(appended())) is None


def test_it_is_called_as_a_kernel_is() -> None:
    kernel, (x, w1, w2) = tg.compile(mlp(), "cpu"), given(mlp())
    out = torch.empty(0, 8)
    assert kernel(x, w1, w2=w2).shape == (0, 8) and kernel(x, w1, w2, out=out) is out
    prepared = pickle.loads(pickle.dumps(kernel.prepare(w1=w1, w2=w2)))
    assert prepared(x).shape == (0, 8) and "nothing runs" in kernel.explain() and "mlp" in repr(prepared)
    kernel.check()
    with pytest.raises(ArgumentError, match=r"'x': expected shape \(0, 8\), given \(1, 8\)"):
        kernel(torch.zeros(1, 8), w1, w2)
    with pytest.raises(ArgumentError, match="'y' is not an argument"):
        kernel.prepare(y=w1)
    with pytest.raises(ArgumentError, match=r"'y': expected shape \(0, 8\)"):
        kernel(x, w1, w2, out=torch.empty(1, 8))


def test_gradients_are_zeros_and_torch_records_it() -> None:
    kernel, (x, w1, w2) = tg.compile(mlp(), "cpu"), given(mlp())
    w1.requires_grad_()
    kernel(x, w1, w2).sum().backward()
    assert w1.grad is not None and not w1.grad.any()
    recorded = torch.compile(lambda x: kernel(x, w1.detach(), w2), backend="eager", fullgraph=True)
    assert recorded(x).shape == (0, 8)


def test_a_module_without_rows_gives_none() -> None:
    module = Module.from_torch(torch.nn.Linear(8, 4), torch.zeros(0, 8))
    assert module(torch.zeros(0, 8)).shape == (0, 4) and "EmptyKernel" in repr(module.kernel)


def test_there_is_nothing_to_plan(capsys: pytest.CaptureFixture[str]) -> None:
    for of in (tg.plan, tg.explain):
        with pytest.raises(PlanError, match="mlp has no rows: there is nothing to plan"):
            of(mlp())
    assert main(["run", "examples/gpt3_mlp.py", "-s", "M=0", "--target", "cpu"]) == 0
    assert "has no rows" in capsys.readouterr().out


def test_other_sizes_are_at_least_one() -> None:
    for sizes in ({"M": 3, "K": 0}, {"M": 3, "H": 0}, {"M": -1}):
        with pytest.raises(SpecError, match="every size must be at least 1"):
            mlp(**sizes)


def test_what_has_rows_beside_what_has_none_is_refused() -> None:
    @tg.spec
    def both():
        return tg.relu(tg.input("x", (0, 8), F)), tg.relu(tg.input("z", (3, 8), F), name="kept")

    @tg.spec
    def sums():
        x = tg.input("x", (2, 0, 8), F)
        return tg.matmul(x, x, transpose_a=True, name="squares")

    @tg.spec
    def written():
        tg.append(tg.state("c", (2, 9, 8), F), tg.input("z", (2, 1, 8), F), at=4, name="put")
        return tg.relu(tg.input("x", (0, 8), F))

    @tg.spec
    def moving():
        return tg.relu(tg.input("x", (0, tg.dim("S", max=4), 8), F))

    wrong = ((both, "'kept' has"), (sums, "'squares' has"), (written, "'put' has"), (moving, "move"))
    for spec, says in wrong:
        with pytest.raises(SpecError, match=says):
            spec()
