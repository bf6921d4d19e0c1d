"""Arguments that do not fit a kernel: refused with an ArgumentError that names the tensor, what was given and
what was expected."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import tilegen as tg

F = "float32"


@tg.spec
def two_results(M=4, K=8):
    x, w = tg.input("x", (M, K), F), tg.weight("w", (16, K), F)
    h = tg.relu(tg.linear(x, w, name="up"), name="h")
    return h, tg.linear(h, tg.weight("u", (16, 16), F), name="y")


@tg.spec
def cached(S=2, S_max=8):
    q, pos = tg.input("q", (1, S, 8), F), tg.input("pos", (1,), "int32")
    k = tg.append(tg.state("k", (1, S_max, 2, 4), F), q, at=pos, name="k_append")
    v = tg.append(tg.state("v", (1, S_max, 2, 4), F), q, at=pos, name="v_append")
    return tg.attention(q, k, v, heads=2, at=pos, name="a")


@tg.spec
def image():
    return tg.conv2d(tg.input("x", (1, 6, 6, 3), F), tg.weight("w", (4, 3, 3, 3), F), padding=1, name="y")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEGEN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=["cpu", "interpret"])
def kernel(request):
    return tg.compile(two_results(), request.param, on="cpu:2")


@pytest.fixture(scope="module", params=["cpu", "interpret"])
def decoder(request):
    return tg.compile(cached(), request.param, on="cpu:2")


def given():
    return [torch.randn(4, 8), torch.randn(16, 8), torch.randn(16, 16)]


def refused(call, *words, error=tg.ArgumentError):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"


def test_what_fits_is_taken(kernel):
    arguments, out = given(), (torch.empty(4, 16), torch.empty(4, 16))
    assert kernel(*arguments, out=out) is not None
    for a, b, c in zip(kernel(*arguments), out, tg.reference(two_results(), *arguments), strict=True):
        assert torch.equal(a, b) and torch.allclose(a, c, atol=1e-4)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_wrong_count(kernel, count):
    refused(
        lambda: kernel(*(given() * 2)[:count]),
        "two_results takes 3 tensors",
        "x (4, 8), w (16, 8), u (16, 16)",
        f"{count} were given",
    )


WRONG = [
    (lambda: torch.randn(8, 4), ["(4, 8)", "(8, 4)"]),
    (lambda: torch.randn(4, 8, 1), ["(4, 8)", "(4, 8, 1)"]),
    (lambda: torch.randn(()), ["(4, 8)", "()"]),
    (lambda: torch.randn(0, 8), ["(4, 8)", "(0, 8)"]),
    (lambda: torch.randn(4, 8).half(), ["float32", "float16"]),
    (lambda: torch.randn(4, 8).double(), ["float32", "float64"]),
    (lambda: torch.zeros(4, 8, dtype=torch.int32), ["float32", "int32"]),
    (lambda: torch.empty(4, 8, device="meta"), ["meta", "cpu"]),
    (lambda: torch.randn(8, 4).T, ["contiguous", "(1, 4)"]),
    (lambda: torch.randn(4, 16)[:, ::2], ["contiguous", "(16, 2)"]),
    (lambda: torch.randn(1, 8).expand(4, 8), ["contiguous", "(0, 1)"]),
    (lambda: torch.randn(33)[1:].view(4, 8), ["16 bytes", "0x"]),
    (lambda: torch.randn(4, 8).to_sparse(), ["sparse_coo", "to_dense()"]),
    (lambda: np.zeros((4, 8), np.float32), ["torch tensor", "ndarray"]),
    (lambda: [[0.0] * 8] * 4, ["torch tensor", "list"]),
    (lambda: None, ["torch tensor", "NoneType"]),
    (lambda: 3, ["torch tensor", "int"]),
]


@pytest.mark.parametrize(("make", "words"), WRONG, ids=[" ".join(words) for _, words in WRONG])
def test_wrong_tensor(kernel, make, words):
    x, w, u = given()
    refused(lambda: kernel(make(), w, u), "'x'", *words)


@pytest.mark.parametrize("shape", [(1, 3, 6, 6), (6, 6, 3), (1, 6, 3, 6)], ids=str)
def test_images_lie_channels_last(shape):
    kernel = tg.compile(image(), "interpret", on="cpu:2")
    refused(lambda: kernel(torch.randn(shape), torch.randn(4, 3, 3, 3)), "'x'", "(1, 6, 6, 3)", str(shape))
    x = torch.randn(1, 3, 6, 6).to(memory_format=torch.channels_last)
    assert kernel(x, torch.randn(4, 3, 3, 3)).shape == (1, 6, 6, 4)


# ---- out= --------------------------------------------------------------------------------------------------


def test_wrong_outputs(kernel):
    x, w, u = given()
    good = torch.empty(4, 16)
    refused(lambda: kernel(x, w, u, out=good), "out", "2 outputs", "1 were given")
    refused(lambda: kernel(x, w, u, out=()), "out", "2 outputs", "0 were given")
    refused(lambda: kernel(x, w, u, out=(good, torch.empty(16, 4))), "'y'", "(4, 16)", "(16, 4)")
    refused(lambda: kernel(x, w, u, out=(good.half(), torch.empty(4, 16))), "'h'", "float32", "float16")
    refused(lambda: kernel(x, w, u, out=(good, None)), "'y'", "torch tensor", "NoneType")
    refused(lambda: kernel(x, w, u, out="ab"), "out")
    refused(
        lambda: kernel(x, w, u, out=(good, torch.empty(4, 16, requires_grad=True))), "'y'", "requires grad"
    )


def test_overlapping_outputs(kernel):
    x, w, u = given()
    room = torch.empty(8, 16)
    refused(lambda: kernel(x, w, u, out=(room[:4], room[2:6])), "out", "'h'", "'y'", "shares memory")
    refused(lambda: kernel(x, w, u, out=(u[:4], room[4:])), "out", "'h'", "'u'", "shares memory")
    assert kernel(x, w, u, out=(room[:4], room[4:])) is not None  # side by side is fine


def test_one_tensor_for_two_outputs(kernel):
    x, w, u = given()
    room = torch.empty(4, 16)
    refused(lambda: kernel(x, w, u, out=(room, room)), "out", "'h'", "'y'", "shares memory")
    refused(lambda: kernel(x, w, u, out=(room, room.view(4, 16))), "out", "'h'", "'y'", "shares memory")


# ---- states and positions ----------------------------------------------------------------------------------


def cache_arguments(at=0):
    return [
        torch.randn(1, 2, 8),
        torch.tensor([at], dtype=torch.int32),
        torch.zeros(1, 8, 2, 4),
        torch.zeros(1, 8, 2, 4),
    ]


@pytest.mark.parametrize("at", [-1, 7, 8, 2**31 - 1, -(2**31)])
def test_position_out_of_range(decoder, at):
    arguments = cache_arguments(at)
    refused(lambda: decoder(*arguments), "'pos'", str(at), "position ≤ 6", "2 rows in a cache of 8")
    assert not arguments[2].any() and not arguments[3].any()


@pytest.mark.parametrize("at", [0, 3, 6])
def test_position_in_range(decoder, at):
    arguments = cache_arguments(at)
    decoder(*arguments)
    assert torch.equal(arguments[2].reshape(8, 8)[at : at + 2], arguments[0][0])


@pytest.mark.parametrize(
    "pos",
    [
        3,
        torch.tensor(3, dtype=torch.int32),
        torch.tensor([3]),
        torch.tensor([3.0]),
        torch.tensor([3, 4], dtype=torch.int32),
    ],
    ids=repr,
)
def test_wrong_position_tensor(decoder, pos):
    q, _, k, v = cache_arguments()
    refused(lambda: decoder(q, pos, k, v), "'pos'", "expected")


def test_states_must_not_share_memory(decoder):
    """Both are written: one tensor for two caches would be a race."""
    q, pos, k, v = cache_arguments()
    refused(lambda: decoder(q, pos, k, k), "'k'", "'v'", "shares memory")
    both = torch.zeros(1, 16, 2, 4)
    refused(
        lambda: decoder(both.view(-1)[:16].view(1, 2, 8), pos, both[:, :8], v), "'k'", "'q'", "shares memory"
    )
    refused(lambda: decoder(q, pos, k, v, out=k.view(-1)[:16].view(1, 2, 8)), "out", "'k'", "shares memory")


# ---- prepare -----------------------------------------------------------------------------------------------


def test_prepare(kernel):
    x, w, u = given()
    refused(lambda: kernel.prepare(weight=w), "prepare", "'weight'", "x, w, u")
    refused(lambda: kernel.prepare(w=w.T), "'w'", "(16, 8)", "(8, 16)")
    refused(lambda: kernel.prepare(w=w.half()), "'w'", "float32", "float16")
    bound = kernel.prepare(w=w, u=u)
    refused(lambda: bound(), "prepared", "1 tensors (x (4, 8))", "0 were given", "missing x")
    refused(lambda: bound(x, w), "prepared", "1 tensors (x (4, 8))", "2 were given")
    refused(lambda: bound(x.double()), "'x'", "float32", "float64")
    for a, b in zip(bound(x), kernel(x, w, u), strict=True):
        assert torch.equal(a, b)


# ---- compile -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["gpu", "", "CPU", "CUDA", None, 5])
def test_unknown_target(target):
    refused(
        lambda: tg.compile(two_results(), target),
        "unknown target",
        repr(target),
        "auto, sm_90a, sm_80, cpu, interpret",
        error=tg.TargetError,
    )


@pytest.mark.parametrize("threads", [-1, 0, "2", 1.5])
def test_wrong_threads(threads):
    refused(
        lambda: tg.compile(two_results(), "interpret", on="cpu:2", threads=threads),
        "threads",
        repr(threads),
        error=tg.TilegenError,
    )


def test_static_lists_need_their_threads():
    """Fewer workers than lists would leave tiles out."""
    tiles = {"up": (2, 8, 8), "y": (2, 8, 16)}

    def compiled(threads):
        return tg.compile(two_results(), "cpu", on="cpu:3", scheduling="lists", tiles=tiles, threads=threads)

    refused(lambda: compiled(1), "lists", "3", "1", error=tg.TilegenError)
    arguments = given()
    for a, b in zip(compiled(3)(*arguments), tg.reference(two_results(), *arguments), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    "names",
    [("T", "g", "scratch", "tg", "k", "lo0", "acc0", "main", "stdout"), ("errno",), ("NULL",)],
    ids=" ".join,
)
def test_names_that_c_or_the_generated_code_use(names):
    """They work, or are refused as names; they do not fail in the compiler."""

    @tg.spec
    def named():
        x = tg.input("x", (4, 8), F)
        for name in names:
            x = x + tg.weight(name, (8,), F)
        return x

    try:
        program = named()
    except tg.SpecError as error:
        assert repr(names[0]) in str(error)
    else:
        arguments = [torch.randn(4, 8), *(torch.randn(8) for _ in names)]
        result = tg.compile(program, "cpu", on="cpu:2")(*arguments)
        assert torch.allclose(result, tg.reference(program, *arguments), atol=1e-4)


def test_errors_leave_the_kernel_usable(kernel):
    """Refused calls from several threads do not spoil a workspace."""
    x, w, u = given()
    wanted = kernel(x, w, u)
    failures = []

    def bad():
        try:
            kernel(x.half(), w, u)
        except tg.ArgumentError as error:
            failures.append(error)

    threads = [threading.Thread(target=bad) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(failures) == 4
    assert all(torch.equal(a, b) for a, b in zip(kernel(x, w, u), wanted, strict=True))


@pytest.mark.parametrize("value", ["abc", "", "-1", "1.5"])
def test_wrong_timeout(monkeypatch, value):
    kernel = tg.compile(two_results(), "cpu", on="cpu:2")
    monkeypatch.setenv("TILEGEN_TIMEOUT_MS", value)
    if value == "":  # as if it were not set
        assert kernel(*given()) is not None
    else:
        refused(lambda: kernel(*given()), "TILEGEN_TIMEOUT_MS", value, error=tg.TilegenError)


FEW_THREADS = """
import resource, torch, tilegen as tg
@tg.spec
def one():
    return tg.relu(tg.input("x", (256, 64), "float32"), name="y")
kernel, x = tg.compile(one(), "cpu", on="cpu:64"), torch.randn(256, 64)
assert torch.equal(kernel(x), x.relu())
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
hard = resource.getrlimit(resource.RLIMIT_AS)[1]
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), hard))  # a thread's stack is larger
try:
    kernel(x)
except tg.TargetError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
assert torch.equal(kernel(x), x.relu())
"""


def test_a_system_without_threads_to_give_is_an_error_and_the_next_launch_is_right():
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS],
        env={**os.environ, "TILEGEN_NUM_THREADS": "64"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "fewer threads than the" in done.stdout and "TILEGEN_NUM_THREADS" in done.stdout
