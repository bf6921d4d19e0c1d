// C entry points to the tile kernels for test_tile_kernels.py. dtype codes: 0 float32, 1 bfloat16, 2 float16.
#include "types.hpp"
#include "gemm.hpp"
#include "conv2d.hpp"
#include "rows.hpp"
#include "attention.hpp"
#include "pool.hpp"

using namespace tg;

template <class F>
static void typed(int dtype, const void* p, F f) {
  if (dtype == 0) f(static_cast<const float*>(p));
  if (dtype == 1) f(static_cast<const bf16*>(p));
  if (dtype == 2) f(static_cast<const f16*>(p));
}

extern "C" {

int t_vector_length() { return VL; }
int t_native_bf16() { return TG_DPBF16; }

void t_load(int dtype, const void* src, float* dst, int64_t n) {
  typed(dtype, src, [&](auto* p) { load(p, dst, n); });
}
void t_store(int dtype, const float* src, void* dst, int64_t n) {
  typed(dtype, dst, [&](auto* p) { store(src, const_cast<std::remove_cv_t<std::remove_reference_t<decltype(*p)>>*>(p),
      n); });
}
void t_maths(int which, const float* x, float* y, int64_t n) {
  const auto map = [&](auto f) {
    for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
  };
  if (which == 0) map([](float v) { return tg::exp(v); });
  if (which == 1) map([](float v) { return tg::tanh(v); });
  if (which == 2) map([](float v) { return gelu_tanh(v); });
  if (which == 3) map([](float v) { return gelu_erf(v); });
  if (which == 4) map([](float v) { return relu(v); });
  if (which == 5) map([](float v) { return silu(v); });
  if (which == 6) map([](float v) { return sigmoid(v); });
  if (which == 7) map([](float v) { return tg::erf(v); });
}
void t_gemm(float* acc, int64_t ldacc, int ta, const void* a, int64_t lda, int trans_a, int tb, const void* b,
    int64_t ldb, int trans_b,
            int m, int n, int k, int step) {
  Scratch s;
  typed(ta, a, [&](auto* pa) {
    typed(tb, b, [&](auto* pb) {
      for (int k0 = 0; k0 < k; k0 += step)
        gemm_step(s, acc, ldacc, pa + (trans_a ? k0 * lda : k0), lda, trans_a, pb + (trans_b ? k0 : k0 * ldb), ldb,
            trans_b, m, n,
                  tg::min(step, k - k0));
    });
  });
}
// shape: the 16 ints of ConvShape; tile: tb, th, tw, tn, tc. y: [B, P, Q, N] floats.
void t_conv(float* y, int tx, const void* x, int tw, const void* w, const int* shape, const int* tile) {
  const int* v = shape;
  const ConvShape s{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14],
                    v[15]};
  Scratch scratch;
  typed(tx, x, [&](auto* px) {
    typed(tw, w, [&](auto* pw) {
      for (int b = 0; b < s.B; b += tile[0])
        for (int p = 0; p < s.P; p += tile[1])
          for (int q = 0; q < s.Q; q += tile[2])
            for (int n = 0; n < s.N; n += tile[3]) {
              const int nb = tg::min(tile[0], s.B - b), np = tg::min(tile[1], s.P - p), nq = tg::min(tile[2], s.Q - q);
              const int nn = tg::min(tile[3], s.N - n), ld = nn + 3;
              float* acc = scratch.get(0, size_t(nb) * np * nq * ld);
              for (int i = 0; i < nb * np * nq * ld; ++i) acc[i] = 0;
              for (int c = 0; c < s.C; c += tile[4])
                conv_step(scratch, acc, ld, px, pw, s, b, p, q, n, nb, np, nq, nn, c, tg::min(tile[4], s.C - c));
              for (int i = 0; i < nb * np * nq; ++i) {
                const int pixel = ((b + i / (np * nq)) * s.P + p + i / nq % np) * s.Q + q + i % nq;
                for (int j = 0; j < nn; ++j) y[int64_t(pixel) * s.N + n + j] = acc[i * ld + j];
              }
            }
    });
  });
}
void t_attention(float* out, int64_t ldout, int tq, const void* q, int64_t ldq, int tkv, const void* k, int64_t ldk,
    const void* v,
                 int64_t ldv, int nq, int nk, int D, float scale, int64_t limit, int masked, int block) {
  Scratch s;
  typed(tq, q, [&](auto* pq) {
    typed(tkv, k, [&](auto* pk) {
      const auto* pv = static_cast<decltype(pk)>(v);
      const AttentionTile t = attention_begin(s, 0, pq, ldq, nq, D, scale);
      for (int k0 = 0; k0 < nk; k0 += block)
        attention_step(s, t, pk + k0 * ldk, ldk, pv + k0 * ldv, ldv, tg::min(block, nk - k0), k0,
            masked ? limit : NO_MASK);
      attention_end(t, out, ldout);
    });
  });
}
void t_softmax(float* out, int64_t ldout, int t, const void* x, int64_t ldx, int rows, int cols, float scale,
    int64_t limit, int masked) {
  typed(t, x, [&](auto* p) { softmax_rows(out, ldout, p, ldx, rows, cols, scale, masked ? limit : NO_MASK); });
}
void t_rms_norm(float* out, int64_t ldout, int t, const void* x, int64_t ldx, const void* w, int rows, int cols,
    float eps) {
  Scratch s;
  typed(t, x, [&](auto* p) { rms_norm_rows(s, out, ldout, p, ldx, static_cast<decltype(p)>(w), rows, cols, eps); });
}
void t_layer_norm(float* out, int64_t ldout, int t, const void* x, int64_t ldx, const void* w, const void* b,
    int rows, int cols, float eps) {
  Scratch s;
  typed(t, x, [&](auto* p) {
    layer_norm_rows(s, out, ldout, p, ldx, static_cast<decltype(p)>(w), static_cast<decltype(p)>(b), rows, cols, eps);
  });
}
void t_rope(float* out, int64_t ldout, int t, const void* x, int64_t ldx, int rows, int heads, int D, int64_t first,
    int64_t seq,
            int64_t base, double theta) {
  Scratch s;
  typed(t, x, [&](auto* p) { rope_rows(s, out, ldout, p, ldx, rows, heads, D, first, seq, base, theta); });
}
void t_copy(int t, void* dst, int64_t ldd, const void* src, int64_t lds, int rows, int cols) {
  typed(t, src, [&](auto* p) { copy_rows(static_cast<std::remove_cv_t<std::remove_reference_t<decltype(*p)>>*>(dst),
      ldd, p, lds, rows, cols); });
}
// shape: B, H, W, C, R, S, stride_h, stride_w, pad_h, pad_w; box: b0, p0, q0, c0, nb, np, nq, nc
void t_max_pool(float* out, int64_t ldout, int t, const void* x, const int* v, const int* b) {
  Scratch s;
  const PoolShape shape{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]};
  typed(t, x, [&](auto* p) { max_pool_tile(s, out, ldout, p, shape, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]); });
}
void t_avg_pool(float* out, int64_t ldout, int t, const void* x, int H, int W, int C, int b0, int c0, int nb, int nc) {
  Scratch s;
  typed(t, x, [&](auto* p) { global_avg_pool_tile(s, out, ldout, p, H, W, C, b0, c0, nb, nc); });
}
}
