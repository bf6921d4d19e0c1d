#include "wgmma.hpp"

#include <cmath>

#include "memory.hpp"

namespace emu {
Thread& now();

// Where thread t holds sum n of its registers: row and column of the product.
static int row_of(int t, int n) { return t / 32 * 16 + t % 32 / 4 + n % 4 / 2 * 8; }
static int column_of(int t, int n) { return n / 4 * 8 + 2 * (t % 4) + n % 2; }

static float& at(Sums& s, int t, int n) { return s.rows[(size_t)row_of(t, n) * 2 * s.count + column_of(t, n)]; }

// Those of which thread t holds a part in registers d; null where it has none on its way.
static Sums* sums_of(Warpgroup& g, const float* d, int count, int t) {
  for (Sums* s : g.sums)
    if (s->registers[t] == d && s->count == count) return s;
  return nullptr;
}

// Sixteen bytes of an operand are looked at. Rows of a tile with fewer than 64 may lie behind all data: they are
// multiplied, and nobody uses what comes of it.
static bool looked_at(Cta& cta, unsigned at, const Toucher& who) {
  if (at + 16 > cta.data_end) return false;
  read_cells(shared_cells(cta, at, 16, who.pc), 4, false, who);
  return true;
}

// How many numbers two bytes of an operand hold, and the i-th of them.
static int numbers_in_two_bytes(Factor type) { return type == E4M3 ? 2 : 1; }
static float number(unsigned two_bytes, int i, Factor type) {
  if (type == E4M3) return of_e4m3(two_bytes >> 8 * i & 0xff);
  return type == F16 ? of_f16(two_bytes) : of_bf16(two_bytes);
}

// Eight columns of K of a row, by two bytes each; `step`: from one number of K to the next.
static void take_eight(Cta& cta, unsigned place, Factor type, bool there, float* to, int step) {
  const int each = numbers_in_two_bytes(type);
  for (int i = 0; i < 8; ++i) {
    unsigned short v;
    memcpy(&v, &cta.shared[place + 2 * i], 2);
    for (int n = 0; n < each; ++n) to[(each * i + n) * step] = there ? number(v, n, type) : NAN;
  }
}

// An operand in shared memory by its descriptor: rows of 16 columns of K, by two bytes each, or, `across`, 16 rows of K
// of `rows` columns.
struct Operand {
  unsigned start, leading, stride, row_bytes;
  explicit Operand(uint64_t d)
      : start((unsigned)(d & 0x3fff) << 4), leading((unsigned)(d >> 16 & 0x3fff) << 4),
          stride((unsigned)(d >> 32 & 0x3fff) << 4), row_bytes(d >> 62 == 1 ? 128 : 64) {
    if (d >> 62 != 1 && d >> 62 != 2) fail("wgmma: an operand in another swizzle than that of 128 or 64 bytes");
  }
  unsigned place(int row, int k, bool across) const {
    if (across) return swizzled(start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2, 128);
    return swizzled(start + row / 8 * stride + row % 8 * row_bytes + k * 2, row_bytes);
  }
};

static void take(Cta& cta, const Operand& from, int rows, bool across, Factor type, const Toucher& who, float* to,
    int pitch_row, int pitch_k) {
  if (across) {
    for (int k = 0; k < 16; ++k)
      for (int row = 0; row < rows; row += 8) {  // 16 bytes lie together
        const unsigned place = from.place(row, k, true);
        const bool there = looked_at(cta, place, who);
        take_eight(cta, place, type, there, to + row * pitch_row + k * pitch_k, pitch_row);
      }
    return;
  }
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < 16; k += 8) {
      const unsigned place = from.place(row, k, false);
      const bool there = looked_at(cta, place, who);
      take_eight(cta, place, type, there, to + row * pitch_row + k * numbers_in_two_bytes(type) * pitch_k, pitch_k);
    }
}

void mma_fence() { now().fenced = true; }

void mma_commit() {
  Thread& me = now();
  Warpgroup& g = *me.group;
  if (++g.commits == 128) g.commits = 0, ++g.committed;
}

void mma_wait(int pending) {
  Thread& me = now();
  Warpgroup& g = *me.group;
  const int t = me.index % 128;
  // the group that this thread committed last may still lack others' commits
  const uint32_t mine = g.committed + (g.commits > 0);
  const uint32_t done = mine > (uint32_t)pending ? mine - pending : 0;
  if (done > me.mma_done) me.mma_done = done;
  for (Sums* s : g.sums) {
    if (!s->held[t] || s->group > done) continue;
    for (int n = 0; n < s->count; ++n) s->registers[t][n] = at(*s, t, n);
    s->held[t] = false;
    me.fenced = false;
  }
}

void warpgroup_mma(int n, Factor type, float* d, int count, uint64_t a, const unsigned* a_registers, uint64_t b,
    bool across) {
  const void* const pc = __builtin_return_address(0);
  Thread& me = now();
  Warpgroup& g = *me.group;
  const int t = me.index % 128;
  if (count != n / 2) fail("wgmma: registers");
  {
    const Sums* const s = sums_of(g, d, count, t);
    if (!(s && s->held[t]) && !me.fenced) fail("wgmma without wgmma.fence after its registers were touched" + here(pc));
  }
  g.d[t] = d;
  if (a_registers) memcpy(g.a[t], a_registers, 16);
  const bool last = g.meeting.arrived == 127;
  if (last) {
    Cta& cta = *me.cta;
    Sums* s = sums_of(g, g.d[0], count, 0);
    if (!s) {
      s = new Sums;
      s->count = count, s->rows.assign(64 * 2 * count, 0);
      g.sums.push_back(s);
    }
    for (int i = 0; i < 128; ++i) {
      s->registers[i] = g.d[i];
      if (s->held[i]) continue;
      for (int k = 0; k < count; ++k) at(*s, i, k) = g.d[i][k], g.d[i][k] = NAN;
      s->held[i] = true;
    }
    const uint32_t group = g.committed + 1;
    s->group = group;
    static float left[64][32], right[32][256];
    const int summed = 16 * numbers_in_two_bytes(type);
    if (a_registers) {
      for (int i = 0; i < 128; ++i)
        for (int r = 0; r < 4; ++r)
          for (int h = 0; h < 2; ++h) {
            const unsigned v = g.a[i][r] >> 16 * h & 0xffff;
            left[i / 32 * 16 + i % 32 / 4 + r % 2 * 8][2 * (i % 4) + h + r / 2 * 8] = number(v, 0, type);
          }
    } else {
      for (int w = 0; w < 4; ++w) {  // each warp reads its rows
        Operand from(a);
        from.start += w * 2 * from.stride;
        take(cta, from, 16, false, type, {cta.threads[me.index / 128 * 128 + 32 * w], g.agent, group, ASYNC, pc},
            left[16 * w], 32, 1);
      }
    }
    // all warps read the columns: what one of them does not know is a race
    for (int w = 0; w < 4; ++w)
      take(cta, Operand(b), n, across, type, {cta.threads[me.index / 128 * 128 + 32 * w], g.agent, group, ASYNC, pc},
          right[0], 1, 256);
    for (int row = 0; row < 64; ++row) {
      float* const sums = &s->rows[(size_t)row * n];
      for (int k = 0; k < summed; ++k) {
        const float x = left[row][k];
        const float* const y = right[k];
        for (int c = 0; c < n; ++c) sums[c] += x * y[c];
      }
    }
  }
  meet(g.meeting, 128, true, SECTIONS, SECTIONS, "the other threads of its warpgroup at wgmma", pc);
}
}  // namespace emu
