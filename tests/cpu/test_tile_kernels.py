"""The tile kernels of templates/cpu against torch, built for several instruction sets."""

import ctypes
import itertools
import math
import pathlib
import subprocess

import pytest
import torch

from tests.shares import share

HERE = pathlib.Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "templates" / "cpu"
FAMILIES = ("types", "gemm", "conv2d", "attention", "rows", "pool")
FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast")
BUILDS = {
    "native": ("-march=native",),
    "native without bf16 products": ("-march=native", "-DTG_DPBF16=0"),
    "avx2": ("-march=x86-64-v3",),
    "baseline": (),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PAIRS = tuple(itertools.product(DTYPES, DTYPES))
CODE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
NAN, INF = math.nan, math.inf


def spread_out(folder):
    """Puts the kernels into a folder under the names that a kernel includes them by."""
    for name in FAMILIES:
        text = (KERNELS / f"{name}.hpp.j2").read_text()
        assert not any(mark in text for mark in ("{" + "{", "{" + "%", "{" + "#")), (
            f"{name}: looks like Jinja"
        )
        assert text.count("\n") <= 400
        (folder / f"{name}.hpp").write_text(text)


def compile_cpp(folder, source, target, *flags):
    command = ["g++", *FLAGS, *flags, f"-I{folder}", str(source), "-o", str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def cpu_has(flag):
    try:
        return flag in pathlib.Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


class Kernels:
    """The compiled driver; tensors are passed as pointers, Python floats as C floats."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))

    def __call__(self, name, *arguments):
        def c(x):
            if isinstance(x, torch.Tensor):
                return ctypes.c_void_p(x.data_ptr())
            if isinstance(x, torch.dtype):
                return ctypes.c_int(CODE[x])
            if isinstance(x, float):
                return ctypes.c_float(x)
            if isinstance(x, (list, tuple)):
                return (ctypes.c_int * len(x))(*x)
            return ctypes.c_int64(x) if isinstance(x, int) else x

        return getattr(self.library, "t_" + name)(*map(c, arguments))


@pytest.fixture(scope="module", params=share(list(BUILDS), 4))
def kernels(request, tmp_path_factory):
    if request.param == "avx2" and not cpu_has("avx2"):
        pytest.skip("this CPU has no AVX2")
    folder = tmp_path_factory.mktemp("tiles")
    spread_out(folder)
    compile_cpp(
        folder,
        HERE / "tile_kernels.cpp",
        folder / "tiles.so",
        "-O3",
        "-shared",
        "-fPIC",
        *BUILDS[request.param],
    )
    return Kernels(folder / "tiles.so")


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def padded(x, extra=5, fill=NAN):
    """The same rows in a wider tensor filled with NaN, so that reading past a row shows."""
    wide = torch.full((x.shape[0], x.shape[1] + extra), fill, dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    return wide


def close(got, want, tolerance):
    got, want = got.double(), want.double()
    assert torch.equal(got.isnan(), want.isnan())
    different = ~((got == want) | got.isnan())
    error = (got - want).abs()[different]
    bound = torch.as_tensor(tolerance, dtype=torch.float64).expand_as(got)[different]
    assert bool((error <= bound).all()), f"worst error / tolerance {(error / bound).max():.3g}"


def all_halves(dtype):
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


# ---- types -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_load_every_value(kernels, dtype):
    x = all_halves(dtype)
    y = torch.empty(x.numel())
    kernels("load", dtype, x, y, x.numel())
    close(y, x.float(), 0)
    kernels("load", dtype, x, y, 7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_rounds_like_torch(kernels, dtype):
    bits = torch.randint(-(2**31), 2**31, (1 << 20,), generator=torch.Generator().manual_seed(1)).to(
        torch.int32
    )
    halves = torch.cat([all_halves(torch.float16).float(), all_halves(torch.bfloat16).float()])
    ties = torch.cat(
        [halves.view(torch.int32) + d for d in (0, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)]
    )
    x = torch.cat(
        [
            bits.view(torch.float32),
            ties.view(torch.float32),
            torch.tensor([65519.9, 65520.0, 2.0**-25, 1.01 * 2.0**-25, NAN, INF, -INF, -0.0]),
        ]
    )
    y = torch.empty(x.numel(), dtype=dtype)
    kernels("store", dtype, x, y, x.numel())
    want = x.to(dtype)
    assert torch.equal(y.isnan(), want.isnan())
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(y.view(integer)[~y.isnan()], want.view(integer)[~want.isnan()])


def units(got, want):
    """Error in units in the last place of the float32 result."""
    want32 = want.float()
    place = torch.maximum(
        2.0 ** (want32.abs().double().clamp_min(2.0**-126).log2().floor() - 23),
        torch.tensor(2.0**-149, dtype=torch.float64),
    )
    return ((got.double() - want).abs() / place)[want32.isfinite()].max().item()


def test_maths(kernels):
    def call(which, x):
        y = torch.empty_like(x)
        kernels("maths", which, x, y, x.numel())
        return y

    special = torch.tensor(
        [0.0, -0.0, INF, -INF, NAN, 1e30, -1e30, 88.72283, 88.7229, -87.4, -103.9, -104.1, 1e-30]
    )
    x = torch.cat([torch.linspace(-105, 89, 2_000_003), special])
    finite = x.double()
    assert units(call(0, x), finite.exp()) <= 2
    assert call(0, special)[:5].tolist()[:4] == [1, 1, INF, 0] and call(0, special)[4].isnan()
    assert call(0, torch.tensor([88.73, -104.2])).tolist() == [INF, 0]
    y = torch.cat([torch.linspace(-12, 12, 2_000_003), special])
    d = y.double()
    assert units(call(1, y), d.tanh()) <= 4
    close(call(1, y), d.tanh(), 2e-7)
    keep = y != -INF  # gelu(-inf) is nan in torch too
    for which, mode in ((2, "tanh"), (3, "none")):
        close(
            call(which, y)[keep],
            torch.nn.functional.gelu(d, approximate=mode)[keep],
            (3e-7 * d.abs()).clamp_min(1e-30)[keep],
        )
    close(call(4, y), torch.relu(y), 0)
    close(call(5, y)[keep], torch.nn.functional.silu(d)[keep], (4e-7 * d.abs()).clamp_min(1e-30)[keep])
    close(call(6, y), d.sigmoid(), 2e-7)
    close(call(7, y), d.erf(), (4e-7 * d.erf().abs()).clamp_max(2e-7))


# ---- matrix products ---------------------------------------------------------------------------------------

SIZES = (
    (1, 1, 1),
    (1, 70, 300),
    (2, 9, 33),
    (3, 8, 64),
    (5, 17, 47),
    (13, 37, 129),
    (64, 96, 256),
    (67, 131, 1100),
    (129, 65, 520),
)


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_gemm(kernels, types):
    for (m, n, k), ta, tb in itertools.product(SIZES, (False, True), (False, True)):
        a, b = normal(m, k, dtype=types[0], seed=m), normal(k, n, dtype=types[1], seed=n)
        want, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        stored_a, stored_b = padded(a.T if ta else a), padded(b.T if tb else b, 3)
        acc = torch.full((m, n + 2), 0.5)
        lda, ldb = stored_a.shape[1], stored_b.shape[1]
        step = k if k < 100 else 100 + k // 3
        kernels("gemm", acc, n + 2, types[0], stored_a, lda, ta, types[1], stored_b, ldb, tb, m, n, k, step)
        close(acc[:, :n], want + 0.5, size * 2e-7 + 2e-7)
        assert bool((acc[:, n:] == 0.5).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_nan_and_inf_stay_in_their_row_and_column(kernels, dtype):
    for ta, tb in itertools.product((False, True), (False, True)):
        a, b = normal(20, 75, dtype=dtype), normal(75, 37, dtype=dtype, seed=1)
        a[7, 74], b[3, 36], a[2, 0] = NAN, NAN, INF
        sa, sb = (a.T if ta else a).contiguous(), (b.T if tb else b).contiguous()
        acc = torch.zeros(20, 37)
        kernels("gemm", acc, 37, dtype, sa, sa.shape[1], ta, dtype, sb, sb.shape[1], tb, 20, 37, 75, 75)
        close(acc, a.double() @ b.double(), 1e-3)


# ---- convolution -------------------------------------------------------------------------------------------

CONVS = (  # B, H, W, C, N, R, S, stride, padding, dilation, tile
    (1, 8, 8, 16, 24, 3, 3, (1, 1), (1, 1), (1, 1), (1, 4, 4, 16, 16)),
    (2, 9, 11, 3, 10, 3, 3, (1, 1), (1, 1), (1, 1), (2, 4, 8, 8, 3)),
    (2, 13, 10, 20, 9, 2, 4, (2, 3), (1, 2), (1, 1), (1, 3, 2, 8, 8)),
    (1, 15, 15, 33, 17, 3, 5, (2, 1), (4, 4), (3, 2), (1, 5, 4, 17, 16)),
    (3, 6, 7, 40, 21, 1, 1, (1, 1), (0, 0), (1, 1), (2, 4, 4, 64, 64)),
    (1, 20, 20, 3, 8, 7, 7, (2, 2), (3, 3), (1, 1), (1, 8, 8, 64, 64)),
    (1, 5, 5, 300, 40, 3, 3, (1, 1), (1, 1), (1, 1), (1, 8, 8, 64, 512)),
)


def reference_conv(x, w, stride, padding, dilation):
    first = (x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2))
    return torch.nn.functional.conv2d(*first, None, stride, padding, dilation).permute(0, 2, 3, 1)


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_conv(kernels, types):
    for B, H, W, C, N, R, S, stride, padding, dilation, tile in CONVS:
        x, w = normal(B, H, W, C, dtype=types[0]), normal(N, R, S, C, dtype=types[1], seed=1)
        how, d, e = (stride, padding, dilation), x.double(), w.double()
        want, size = reference_conv(d, e, *how), reference_conv(d.abs(), e.abs(), *how)
        P, Q = want.shape[1:3]
        y = torch.full((B, P, Q, N), NAN)
        kernels(
            "conv",
            y,
            types[0],
            x,
            types[1],
            w,
            (B, H, W, C, N, R, S, C, P, Q, *stride, *padding, *dilation),
            tile,
        )
        close(y, want, size * 2e-7 + 1e-7)


# ---- attention ---------------------------------------------------------------------------------------------


def reference_attention(q, k, v, scale, limit):
    s = q.double() @ k.double().T * scale
    if limit is not None:
        rows, columns = torch.arange(s.shape[0])[:, None], torch.arange(s.shape[1])[None]
        s = s.masked_fill(columns > rows + limit, -INF)
    return torch.nan_to_num(s.softmax(-1), nan=0.0) @ v.double()


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_attention(kernels, types):
    cases = itertools.product(
        ((1, 1), (1, 77), (5, 5), (16, 100), (33, 64), (9, 130)),
        (8, 64, 80),
        (None, "causal", 0, 3, -4, 1000),
        (16, 64),
    )
    for (nq, nk), D, limit, block in cases:
        limit = nk - nq if limit == "causal" else limit
        q, k, v = (
            normal(r, D, dtype=t, seed=i)
            for i, (r, t) in enumerate(((nq, types[0]), (nk, types[1]), (nk, types[1])))
        )
        out = torch.full((nq, D + 3), NAN)
        wide = [padded(t) for t in (q, k, v)]
        kernels(
            "attention",
            out,
            D + 3,
            types[0],
            wide[0],
            D + 5,
            types[1],
            wide[1],
            D + 5,
            wide[2],
            D + 5,
            nq,
            nk,
            D,
            D**-0.5,
            limit or 0,
            limit is not None,
            block,
        )
        close(out[:, :D], reference_attention(q, k, v, D**-0.5, limit), 3e-6)


def test_attention_large_scores_and_unseen_keys(kernels):
    nq, nk, D = 6, 40, 16
    q, k, v = normal(nq, D) * 1000, normal(nk, D, seed=1), normal(nk, D, seed=2)
    k[30:], v[30:] = NAN, INF  # behind the last limit: 24 + 5
    out = torch.empty(nq, D)
    kernels("attention", out, D, torch.float32, q, D, torch.float32, k, D, v, D, nq, nk, D, 1.0, 24, 1, 16)
    close(out, reference_attention(q, k[:30], v[:30], 1.0, 24), 2e-3)
    k[3, 0] = NAN
    kernels("attention", out, D, torch.float32, q, D, torch.float32, k, D, v, D, nq, nk, D, 1.0, 1, 1, 16)
    assert not out[:2].isnan().any() and out[2:].isnan().all()


# ---- rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax(kernels, dtype):
    for (rows, cols), scale, limit in itertools.product(
        ((1, 1), (3, 7), (5, 100), (17, 333)), (1.0, 0.25, -1.5), (None, 0, 4, -3)
    ):
        x = normal(rows, cols, dtype=dtype) * 8
        s = x.double() * scale
        if limit is not None:
            s = s.masked_fill(torch.arange(cols)[None] > torch.arange(rows)[:, None] + limit, -INF)
        out = torch.full((rows, cols + 2), NAN)
        kernels(
            "softmax",
            out,
            cols + 2,
            dtype,
            padded(x),
            cols + 5,
            rows,
            cols,
            scale,
            limit or 0,
            limit is not None,
        )
        close(out[:, :cols], torch.nan_to_num(s.softmax(-1), nan=0.0), 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(kernels, dtype):
    for rows, cols in ((1, 1), (3, 7), (4, 100), (5, 1000)):
        x, w, b = (
            normal(rows, cols, dtype=dtype) + 3,
            normal(cols, dtype=dtype, seed=1),
            normal(cols, dtype=dtype, seed=2),
        )
        d, out = x.double(), torch.empty(rows, cols)
        kernels("rms_norm", out, cols, dtype, padded(x), cols + 5, w, rows, cols, 1e-5)
        close(out, d / (d.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w.double(), 1e-5)
        kernels("layer_norm", out, cols, dtype, padded(x), cols + 5, w, b, rows, cols, 1e-5)
        close(out, torch.nn.functional.layer_norm(d, (cols,), w.double(), b.double(), 1e-5), 2e-5)
        x[0, cols // 2] = NAN
        kernels("layer_norm", out, cols, dtype, padded(x), cols + 5, w, b, rows, cols, 1e-5)
        assert out[0].isnan().all() and not out[1:].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rope(kernels, dtype):
    for rows, heads, D, first, seq, base, theta in (
        (5, 3, 8, 2, 4, 0, 10000.0),
        (33, 2, 128, 0, 64, 100_000, 500000.0),
        (3, 1, 6, 0, 3, 7, 1e4),
        (2, 2, 80, 9, 10, 1_000_000, 1e4),
    ):
        x = normal(rows, heads * D, dtype=dtype)
        position = (torch.arange(rows, dtype=torch.float64) + first) % seq + base
        angle = position[:, None] * theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        lo, hi = x.double().view(rows, heads, D).chunk(2, -1)
        want = torch.cat([lo * c - hi * s, hi * c + lo * s], -1).view(rows, heads * D)
        out = torch.empty(rows, heads * D)
        kernels(
            "rope",
            out,
            heads * D,
            dtype,
            padded(x),
            heads * D + 5,
            rows,
            heads,
            D,
            first,
            seq,
            base,
            ctypes.c_double(theta),
        )
        close(out, want, 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy(kernels, dtype):
    x, out = normal(5, 37, dtype=dtype), torch.zeros(5, 50, dtype=dtype)
    kernels("copy", dtype, out, 50, x, 37, 5, 37)
    assert torch.equal(out[:, :37], x) and not out[:, 37:].any()


# ---- pools -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_pools(kernels, dtype):
    for B, H, W, C, window, stride, padding in (
        (2, 8, 8, 20, (2, 2), (2, 2), (0, 0)),
        (3, 9, 7, 5, (3, 3), (2, 2), (1, 1)),
        (1, 10, 6, 33, (4, 3), (3, 1), (2, 1)),
    ):
        x = normal(B, H, W, C, dtype=dtype) - 10
        x[0, 3, 2, 1], x[0, 4, 4, 2], x[0, 0, 0, 3] = NAN, INF, -INF
        want = torch.nn.functional.max_pool2d(
            x.double().permute(0, 3, 1, 2), window, stride, padding
        ).permute(0, 2, 3, 1)
        P, Q = want.shape[1:3]
        shape, b0, c0 = (B, H, W, C, *window, *stride, *padding), B - 1, 1
        for box in ((0, 0, 0, 0, B, P, Q, C), (b0, 1, 1, c0, 1, P - 1, Q - 1, C - c0)):
            nb, np, nq, nc = box[4:]
            out = torch.empty(nb, np, nq, nc)
            kernels("max_pool", out, nc, dtype, x, shape, box)
            close(out, want[box[0] :, box[1] :, box[2] :, box[3] :], 0)
        out = torch.empty(1, C - c0)
        kernels("avg_pool", out, C - c0, dtype, x, H, W, C, b0, c0, 1, C - c0)
        close(out, x[b0:, :, :, c0:].double().mean((1, 2)), 5e-6)


# ---- races -------------------------------------------------------------------------------------------------

RACE = r"""
#include "types.hpp"
#include "gemm.hpp"
#include "conv2d.hpp"
#include "rows.hpp"
#include "attention.hpp"
#include "pool.hpp"
#include <cstdlib>
#include <thread>
#include <vector>
using namespace tg;
// The writer of rows from `shift` of x runs beside a kernel that reads rows 0 … 31:
// a race unless shift is 32.
template <class T> void race(int what, int shift) {
  std::vector<T> x(64 * 64), w(64 * 64);
  std::vector<float> row(64 * 64), out(64 * 64);
  std::thread writer([&] { store(row.data(), x.data() + shift * 64, 32 * 64); });
  Scratch s;
  if (what == 0) gemm_step(s, out.data(), 64, x.data(), 64, false, w.data(), 64, true, 32, 32, 64);
  if (what == 1) gemm_step(s, out.data(), 64, w.data(), 64, false, x.data(), 64, true, 32, 32, 64);
  if (what == 2) gemm_step(s, out.data(), 64, w.data(), 64, false, x.data(), 64, false, 32, 64, 32);
  if (what == 3) conv_step(s, out.data(), 32, x.data(), w.data(),
                           ConvShape{1, 4, 8, 64, 32, 1, 1, 64, 4, 8, 1, 1, 0, 0, 1, 1},
                           0, 0, 0, 0, 1, 4, 8, 32, 0, 64);
  if (what == 8) conv_step(s, out.data(), 32, x.data(), w.data(),
                           ConvShape{1, 4, 8, 64, 32, 1, 1, 64, 4, 8, 1, 1, 0, 0, 1, 1},
                           0, 0, 0, 0, 1, 2, 8, 32, 0, 64);
  if (what == 4) softmax_rows(out.data(), 64, x.data(), 64, 32, 64, 1.0f);
  if (what == 5) max_pool_tile(s, out.data(), 64, x.data(), PoolShape{1, 4, 8, 64, 2, 2, 2, 2, 0, 0},
                               0, 0, 0, 0, 1, 2, 4, 64);
  if (what == 6) copy_rows(w.data(), 64, x.data(), 64, 32, 64);
  if (what == 7) {
    const AttentionTile t = attention_begin(s, 0, w.data(), 64, 4, 64, 1.0f);
    attention_step(s, t, w.data(), 64, x.data(), 64, 32, 0);
    attention_end(t, out.data(), 64);
  }
  writer.join();
}
int main(int, char** argv) {
  const int what = std::atoi(argv[1]), shift = std::atoi(argv[3]);
  if (argv[2][0] == '0') race<float>(what, shift);
  if (argv[2][0] == '1') race<bf16>(what, shift);
  if (argv[2][0] == '2') race<f16>(what, shift);
}
"""


def test_thread_sanitizer_sees_tensor_accesses(tmp_path):
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() {}")
    if subprocess.run(
        ["g++", "-fsanitize=thread", str(probe), "-o", str(tmp_path / "probe")],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("no ThreadSanitizer runtime")
    if subprocess.run([str(tmp_path / "probe")], check=False, capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run here")
    spread_out(tmp_path)
    (tmp_path / "race.cpp").write_text(RACE)
    compile_cpp(
        tmp_path,
        tmp_path / "race.cpp",
        tmp_path / "race",
        "-O2",
        "-march=native",
        "-fsanitize=thread",
        "-pthread",
    )
    for what, dtype in itertools.product(range(9), range(3)):
        for shift, racy in ((0, True), (32, False)):
            done = subprocess.run(
                [str(tmp_path / "race"), str(what), str(dtype), str(shift)],
                check=False,
                capture_output=True,
                text=True,
            )
            assert ("data race" in done.stderr) == racy, (what, dtype, shift, done.stderr[:2000])
