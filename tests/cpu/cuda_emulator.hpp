// A GPU in one host thread, for the text of the portable kernel: every CUDA thread is a fiber, warps run in random order, for random
// times. cp.async lands only when somebody waits for it, and leaves garbage in its place until then: who reads too early, or a stage
// that is overwritten too early, gives NaN. Semaphores are plain words; a run without progress ends with an error.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx emu::Index { emu::now->thread }
#define blockIdx emu::Index { emu::now->cta->block }
#define gridDim emu::grid

namespace emu {
struct Index {
  int x;
};

struct Copy {
  unsigned to;
  const void* from;
  int bytes;
};

struct Barrier {
  int arrived = 0, generation = 0;
};

struct Warp {
  Barrier barrier;
  unsigned words[2][32][6];  // what lanes show each other, by turns, so that one barrier an exchange is enough
};

struct Cta;

struct Fiber {
  ucontext_t context;
  Cta* cta = nullptr;
  int thread = 0, turn = 0;
  bool done = false;
  std::vector<std::vector<Copy>> groups{ {} };
};

struct Cta {
  int block = 0;
  std::vector<unsigned char> shared;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
};

inline ucontext_t scheduler;
inline Fiber* now;
inline struct { unsigned x; } grid;
inline long idle;          // turns since anything happened
inline const char* wrong;  // what no GPU would have let pass

inline void yield() { swapcontext(&now->context, &scheduler); }

inline void fail(const char* what) {
  wrong = what;
  while (true) yield();
}

inline void meet(Barrier& b, int count) {
  const int generation = b.generation;
  if (++b.arrived == count) {
    b.arrived = 0, ++b.generation, idle = 0;
  } else {
    while (b.generation == generation) yield();
  }
}

inline unsigned char* shared(unsigned at, unsigned bytes) {
  if (at % bytes || at + bytes > now->cta->shared.size()) fail("shared memory: address");
  return now->cta->shared.data() + at;
}

// All lanes' words, once all have shown theirs.
template <class... Words> auto& exchange(Words... words) {
  Warp& warp = now->cta->warps[now->thread / 32];
  auto& shown = warp.words[now->turn ^= 1];
  int n = 0;
  ((shown[now->thread % 32][n++] = words), ...);
  meet(warp.barrier, 32);
  return shown;
}

inline void wait_for_copies(int pending) {
  auto& groups = now->groups;
  for (; (int)groups.size() - 1 > pending; groups.erase(groups.begin()))
    for (const Copy& c : groups.front()) {
      unsigned char* to = shared(c.to, 16);
      memset(to, 0, 16);
      if (c.bytes) memcpy(to, c.from, c.bytes);
    }
}

inline float f32(unsigned v) {
  float f;
  memcpy(&f, &v, 4);
  return f;
}

inline unsigned bits(float f) {
  unsigned v;
  memcpy(&v, &f, 4);
  return v;
}

struct Bf16 {
  static float value(unsigned v, int upper) { return f32(upper ? v & 0xffff0000u : v << 16); }
  static unsigned half(float f) { return std::isnan(f) ? 0x7fff : (bits(f) + 0x7fff + (bits(f) >> 16 & 1)) >> 16; }
};

struct F16 {
  static float value(unsigned v, int upper) {
    const unsigned short half = upper ? v >> 16 : v;
    _Float16 h;
    memcpy(&h, &half, 2);
    return h;
  }
  static unsigned half(float f) {
    const _Float16 h = (_Float16)f;
    unsigned short v;
    memcpy(&v, &h, 2);
    return v;
  }
};

template <class T> unsigned pack(float x, float y) { return T::half(x) | T::half(y) << 16; }

// PTX ISA, matrix fragments of mma.m16n8k16 and ldmatrix
template <class T> void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  auto& w = exchange(a[0], a[1], a[2], a[3], b[0], b[1]);
  const int lane = now->thread % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int holder = k % 8 / 2;
      d[i] += T::value(w[row % 8 * 4 + holder][row / 8 + 2 * (k / 8)], k % 2) * T::value(w[column * 4 + holder][4 + k / 8], k % 2);
    }
  }
}

template <int COUNT> void load_matrix(unsigned (&v)[COUNT], unsigned at) {
  auto& w = exchange(at);
  const int lane = now->thread % 32;
  for (int i = 0; i < COUNT; ++i) memcpy(&v[i], shared(w[8 * i + lane / 4][0], 16) + 4 * (lane % 4), 4);
}

// All CTAs side by side; null, or what went wrong.
template <class Body> const char* run(int ctas_count, int threads, int bytes, int seed, Body) {
  unsigned state = 2654435761u * (seed + 1);
  const auto random = [&] { return state ^= state << 13, state ^= state >> 17, state ^= state << 5; };
  std::vector<Cta> ctas(ctas_count);
  constexpr size_t stack = 1 << 16;
  char* const stacks = (char*)malloc(stack * ctas_count * threads);  // committed where it is used
  grid.x = ctas_count, idle = 0, wrong = nullptr;
  for (int b = 0; b < ctas_count; ++b) {
    Cta& c = ctas[b];
    c.block = b, c.shared.assign(bytes, 0xff), c.fibers.resize(threads), c.warps.resize(threads / 32);
    for (Fiber& f : c.fibers) {
      f.cta = &c, f.thread = (int)(&f - c.fibers.data());
      getcontext(&f.context);
      f.context.uc_stack.ss_sp = &stacks[stack * (b * threads + f.thread)], f.context.uc_stack.ss_size = stack;
      makecontext(&f.context, Body::run, 0);
    }
  }
  const int warps = threads / 32;
  for (int ended = 0; ended < ctas_count * threads && !wrong;) {
    const int w = random() % (ctas_count * warps);
    for (int slices = random() % 64; slices >= 0 && !wrong; --slices)
      for (int lane = 0; lane < 32; ++lane) {
        now = &ctas[w / warps].fibers[w % warps * 32 + lane];
        if (now->done) continue;
        swapcontext(&scheduler, &now->context);
        ended += now->done;
      }
    if (++idle > 5000) wrong = "no progress";
  }
  free(stacks);
  return wrong;
}
}  // namespace emu

inline void __syncthreads() { emu::meet(emu::now->cta->barrier, (int)emu::now->cta->fibers.size()); }
inline unsigned __shfl_xor_sync(unsigned, unsigned v, int by) { return emu::exchange(v)[emu::now->thread % 32 ^ by][0]; }
inline float __shfl_xor_sync(unsigned, float v, int by) { return emu::f32(emu::exchange(emu::bits(v))[emu::now->thread % 32 ^ by][0]); }
inline void __syncwarp() { emu::exchange(0u); }
inline float __uint_as_float(unsigned v) { return emu::f32(v); }
inline float __int_as_float(int v) { return emu::f32((unsigned)v); }
inline unsigned __float_as_uint(float v) { return emu::bits(v); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
