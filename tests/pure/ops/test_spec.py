"""What a spec collects: names, shapes, forms, lines; and that a program is data."""

import dataclasses
import pickle
import subprocess
import sys

import pytest

import tilegen as tg
from tilegen.frontend.program import Operand

F = "float32"


@tg.spec
def block(M=4, K=6, N=8):
    """A block."""
    x, w = tg.input("x", (M, K), F), tg.weight("w", (N, K), F)
    h = tg.gelu(tg.linear(x, w), name="h")
    return h, tg.softmax(h * 0.5, name="y")


def test_what_is_collected():
    p = block(M=5)
    assert (p.name, p.doc, dict(p.sizes)) == ("block", "A block.", {"M": 5, "K": 6, "N": 8})
    assert [(t.name, t.shape, t.role) for t in p.arguments] == [
        ("x", (5, 6), "input"),
        ("w", (8, 6), "weight"),
    ]
    assert [c.kind for c in p.calls] == ["linear", "pointwise", "pointwise", "softmax"]
    assert p.outputs == ("h", "y") and p.tensor("h").role == p.tensor("y").role == "output"
    assert not p.symbolic and block(M=tg.symbol("M")).symbolic


def test_lines_are_kept_but_do_not_count():
    """Moving a spec in its file does not make another program."""
    p = block()
    lines = [int(c.where.rsplit(":", 1)[1]) for c in p.calls]
    assert lines == [lines[0], lines[0], lines[0] + 1, lines[0] + 1]
    moved = dataclasses.replace(p, calls=tuple(dataclasses.replace(c, where="elsewhere:1") for c in p.calls))
    assert moved == p and hash(moved) == hash(p)
    assert block(M=5) != p and block() == p


def test_a_program_is_data():
    assert pickle.loads(pickle.dumps(block())) == block()
    with pytest.raises(dataclasses.FrozenInstanceError):
        block().name = "other"


def test_made_up_names_are_free():
    @tg.spec
    def named():
        x = tg.input("pointwise", (4, 6), F)
        w = tg.weight("linear_1", (6, 6), F)
        for _ in range(3):
            x = tg.relu(tg.linear(x, w))
        return x

    names = [c.name for c in named().calls]
    assert len(set(names)) == 6 and not {"pointwise", "linear_1"} & set(names)
    assert all(not c.named for c in named().calls)


def test_views():
    @tg.spec
    def viewed():
        x = tg.input("x", (2, 3, 12), F)
        a, b, c = x.split([2, 4, 6])
        assert [v.shape for v in (a, b, c)] == [(2, 3, 2), (2, 3, 4), (2, 3, 6)]
        assert [v.columns for v in (a, b, c)] == [(0, 2), (2, 6), (6, 12)]
        assert [v.columns for v in c.chunk(3)] == [(6, 8), (8, 10), (10, 12)]  # a view of a view
        [whole] = x.chunk(1)
        assert whole.columns is None and whole.shape == x.shape
        return tg.add(tg.relu(b), c.chunk(3)[0].builder and b)

    call = viewed().calls[-1]
    assert call.operands[1] == Operand("x", (2, 6))


@pytest.mark.parametrize("operand", [Operand("x"), Operand("x", (2, 6)), Operand("x", flatten=True)])
def test_operands_as_json(operand):
    assert Operand.from_json(operand.to_json()) == operand


@pytest.mark.parametrize(
    ("make", "shape", "plan_shape"),
    [
        (lambda x3, i: tg.linear(x3, tg.weight("w", (5, 6), F)), (2, 4, 5), (8, 5)),
        (lambda x3, i: tg.matmul(x3, x3, transpose_b=True), (2, 4, 4), (8, 4)),
        (lambda x3, i: tg.matmul(x3, x3, transpose_a=True), (2, 6, 6), (12, 6)),
        (lambda x3, i: tg.softmax(x3), (2, 4, 6), (8, 6)),
        (lambda x3, i: tg.rms_norm(x3, tg.weight("w", (6,), F)), (2, 4, 6), (8, 6)),
        (lambda x3, i: tg.rope(x3, heads=3), (2, 4, 6), (8, 6)),
        (lambda x3, i: tg.attention(x3, x3, x3, heads=3), (2, 4, 6), (8, 6)),
        (lambda x3, i: tg.conv2d(i, tg.weight("w", (5, 3, 3, 3), F)), (1, 6, 8, 5), (1, 6, 8, 5)),
        (
            lambda x3, i: tg.conv2d(i, tg.weight("w", (5, 3, 3, 3), F), stride=2, padding=1),
            (1, 4, 5, 5),
            (1, 4, 5, 5),
        ),
        (
            lambda x3, i: tg.conv2d(i, tg.weight("w", (5, 3, 1, 3), F), dilation=2, padding=(2, 0)),
            (1, 8, 10, 5),
            (1, 8, 10, 5),
        ),
        (lambda x3, i: tg.max_pool2d(i, 2), (1, 4, 5, 3), (1, 4, 5, 3)),
        (lambda x3, i: tg.max_pool2d(i, 3, stride=2, padding=1), (1, 4, 5, 3), (1, 4, 5, 3)),
        (lambda x3, i: tg.global_avg_pool(i), (1, 3), (1, 3)),
        (
            lambda x3, i: tg.linear(tg.flatten(tg.max_pool2d(i, 2)), tg.weight("w", (7, 60), F)),
            (1, 7),
            (1, 7),
        ),
    ],
)
def test_shapes(make, shape, plan_shape):
    @tg.spec
    def shaped():
        x3, image = tg.input("x3", (2, 4, 6), F), tg.input("image", (1, 8, 10, 3), F)
        return make(x3, image), tg.relu(x3), tg.relu(image)

    p = shaped()
    assert p.tensor(p.outputs[0]).shape == shape and p.tensor(p.outputs[0]).plan_shape == plan_shape


def test_a_state_is_an_argument_and_no_result():
    @tg.spec
    def cached():
        x = tg.input("x", (1, 2, 6), F)
        return tg.append(tg.state("c", (1, 8, 2, 3), F), x, at=1, name="write")

    p = cached()
    assert p.outputs == () and [t.name for t in p.arguments] == ["x", "c"]
    assert p.tensor("c").plan_shape == (8, 6) and p.calls[0].result == "c"


def test_open_sizes_stay_symbols():
    m = tg.symbol("M")
    p = block(M=m)
    assert p.tensor("h").shape == (m, 8) and p.tensor("h").plan_shape == (m, 8)


def test_specs_nest():
    """A spec called inside another has its own names."""

    @tg.spec
    def outer():
        inner = block()
        x = tg.input("x", inner.tensor("y").shape, F)
        return tg.relu(x)

    assert outer().tensor("x").shape == (4, 8)


def test_a_spec_imports_nothing_heavy_by_itself():
    code = (
        "import sys, tilegen as tg; tg.input; tg.Program; assert not {'torch', 'sympy', 'numpy'} &"
        " set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_public_names():
    for name in tg.__all__:
        assert getattr(tg, name) is not None and (getattr(tg, name).__doc__ or name in ("DTYPES",))
    with pytest.raises(AttributeError, match="tilegen has no op nope; ops: abs, add, .*softmax"):
        tg.nope  # noqa: B018
