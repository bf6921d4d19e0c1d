// What the text of a kernel calls in place of PTX, one function an instruction, and CUDA's own names. The machine
// behind it is emulator.cpp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __constant__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ EMU_ARCHITECTURE
#define threadIdx emu::Index{(unsigned)emu::place.thread, 0, 0}
#define blockIdx emu::Index{(unsigned)emu::place.block, 0, 0}
#define gridDim emu::Index{(unsigned)emu::place.blocks, 1, 1}
#define blockDim emu::Index{(unsigned)emu::place.threads, 1, 1}
#define EMU_HERE __attribute__((always_inline)) inline

namespace emu {
struct Index {
  unsigned x, y, z;
};

// Of the thread that runs.
struct Place {
  int thread, threads, block, blocks, rank;  // rank: of the CTA in its cluster
  unsigned char* shared;
};
extern Place place;

// One parameter struct of a kernel after the other, and what may be touched.
struct Region {
  const char* name;
  void* base;
  uint64_t bytes;
  int written, counters;  // whether the launch writes it; how many words of it are counters, zero at the
                          // end; those behind them count launches
};

struct Request {
  void (*kernel)(void* const* parameters);
  void* const* const* parameters;  // of each launch
  int grid, block, cluster, shared_bytes, launches, programmatic;
  const Region* regions;
  int region_count;
  int turns, copies, starved_warp, starved_cta;
  unsigned seed;
};

struct TensorMap {
  unsigned char* base;
  int32_t rank, swizzle;  // bytes of a row of it: 128, 64, or 0 without
  int32_t shape[5], box[5], traversal[5], bytes;  // bytes: of an element
  int64_t pitch[4];
  int32_t pixels;  // in im2col mode: that one copy moves, and the corners of the box in which they begin
  int8_t lower[2], upper[2];
};

enum Sem { WEAK, RELAXED, ACQUIRE, RELEASE, ACQ_REL };
enum Scope { OF_CTA, OF_CLUSTER, OF_GPU, OF_SYS };
enum Cache { THROUGH_L1, CG, NC };
enum Factor { BF16, F16, TF32, E4M3 };  // of a product

// --- the machine's side ---------------------------------------------------------------------------------------------

void load_global(Sem, Scope, Cache, const void* p, void* to, int bytes);
void store_global(Sem, Scope, void* p, const void* from, int bytes);
unsigned add_global(Sem, Scope, unsigned* p, unsigned by);
void load_shared(unsigned at, void* to, int bytes);
void store_shared(unsigned at, const void* from, int bytes);
void fence_async(bool global);
void fence_mbarrier_init();
void barrier_init(unsigned at, unsigned count);
void barrier_arrive(Sem, Scope, unsigned at, unsigned bytes);
bool barrier_wait(Sem, unsigned at, unsigned parity, bool may_hold);
void named_barrier(unsigned id, unsigned count, bool waits);
void cluster_arrive(Sem);
void cluster_wait();
unsigned map_address(unsigned at, unsigned cta);
void store_async(unsigned to, unsigned bar, const void* from, int bytes);
void bulk_load(unsigned to, const void* map, unsigned bar, unsigned ctas, const int* at, int rank);
void bulk_store(const void* map, unsigned from, const int* at, int rank);
void bulk_commit();
void bulk_wait(int pending, bool read);
void copy_async(unsigned to, const void* from, int bytes);
void copies_commit();
void copies_wait(int pending);
void mma_fence();
void mma_commit();
void mma_wait(int pending);
void warpgroup_mma(int n, Factor type, float* d, int count, uint64_t a, const unsigned* a_registers, uint64_t b,
    bool across);
void warp_mma(Factor type, float* d, const unsigned* a, const unsigned* b);
unsigned tf32(float x);  // rounded, halves away from zero
void store_matrix(unsigned at, const unsigned* v, int count, bool transposed);
void load_matrix(unsigned at, unsigned* v, int count, bool transposed);
unsigned show(unsigned v, int from);  // a lane's word, once all lanes have shown theirs
void meet_warp();
void meet_cta();
bool elected();
void dependents();
void depend();
uint64_t nanoseconds();
unsigned sm();
void trap();
void tile(int op, const int* at);

// --- the text's side ------------------------------------------------------------------------------------------------

template <class T, class... Out>
EMU_HERE void ld_global(Sem sem, Scope scope, Cache cache, const void* p, Out&... out) {
  T v[sizeof...(Out)];
  load_global(sem, scope, cache, p, v, sizeof v);
  int n = 0;
  ((out = (Out)v[n++]), ...);
}
template <class T, class... In>
EMU_HERE void st_global(Sem sem, Scope scope, const void* p, In... in) {
  const T v[] = {(T)in...};
  store_global(sem, scope, const_cast<void*>(p), v, sizeof v);
}
template <class T, class... Out>
EMU_HERE void ld_shared(unsigned at, Out&... out) {
  T v[sizeof...(Out)];
  load_shared(at, v, sizeof v);
  int n = 0;
  ((out = (Out)v[n++]), ...);
}
template <class T, class... In>
EMU_HERE void st_shared(unsigned at, In... in) {
  const T v[] = {(T)in...};
  store_shared(at, v, sizeof v);
}
template <class... In>
EMU_HERE void st_async(unsigned to, unsigned bar, In... in) {
  const float v[] = {in...};
  store_async(to, bar, v, sizeof v);
}
template <class... In>
EMU_HERE void tensor_load(unsigned to, const void* map, unsigned bar, unsigned ctas, In... in) {
  const int at[] = {(int)in...};
  bulk_load(to, map, bar, ctas, at, sizeof...(In));
}
template <class... In>
EMU_HERE void tensor_store(const void* map, unsigned from, In... in) {
  const int at[] = {(int)in...};
  bulk_store(map, from, at, sizeof...(In));
}
unsigned movmatrix(unsigned v);  // two numbers of a lane's row of an 8 x 8 block -> two of its column
template <bool TRANSPOSED, class... V>
EMU_HERE void stmatrix(unsigned at, V... v) {
  const unsigned w[] = {v...};
  store_matrix(at, w, sizeof...(V), TRANSPOSED);
}
template <bool TRANSPOSED, class... V>
EMU_HERE void ldmatrix(unsigned at, V&... v) {
  unsigned w[sizeof...(V)];
  load_matrix(at, w, sizeof...(V), TRANSPOSED);
  int n = 0;
  ((v = w[n++]), ...);
}

// --- numbers --------------------------------------------------------------------------------------------------------

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
inline unsigned bf16_of(float f) { return f != f ? 0x7fff : (bits(f) + 0x7fff + (bits(f) >> 16 & 1)) >> 16; }
inline float of_bf16(unsigned v) { return f32(v << 16); }
inline float of_f16(unsigned v) {
  const unsigned short half = (unsigned short)v;
  _Float16 h;
  memcpy(&h, &half, 2);
  return (float)h;
}
// Four bits of exponent, three of mantissa, no infinity (Micikevicius et al., arXiv 2209.05433).
inline float of_e4m3(unsigned v) {
  const int exponent = v >> 3 & 15, mantissa = v & 7;
  const float size = (v & 127) == 127 ? NAN : exponent ? std::ldexp(8.0f + mantissa, exponent - 10)
                                                       : std::ldexp((float)mantissa, -9);
  return v & 128 ? -size : size;
}
inline unsigned f16_of(float f) {
  const _Float16 h = (_Float16)f;
  unsigned short v;
  memcpy(&v, &h, 2);
  return v;
}
inline unsigned two_bf16(float high, float low) { return bf16_of(high) << 16 | bf16_of(low); }
inline unsigned two_f16(float high, float low) { return f16_of(high) << 16 | f16_of(low); }
// a · b + c, two numbers each: rounded once where float, which holds twice a product's bits, rounds none.
inline unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  const auto of = [=](int by) { return std::fma(of_bf16(a >> by), of_bf16(b >> by), of_bf16(c >> by)); };
  return two_bf16(of(16), of(0));
}
inline unsigned fma_f16x2(unsigned a, unsigned b, unsigned c) {
  const auto of = [=](int by) { return std::fma(of_f16(a >> by), of_f16(b >> by), of_f16(c >> by)); };
  return two_f16(of(16), of(0));
}
inline float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? 0.0f : x; }
}  // namespace emu

// --- CUDA's names ---------------------------------------------------------------------------------------------------

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
EMU_HERE void __syncwarp() { emu::meet_warp(); }
EMU_HERE void __syncthreads() { emu::meet_cta(); }
EMU_HERE unsigned __funnelshift_r(unsigned low, unsigned high, int by) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (by & 31));
}
EMU_HERE unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const unsigned long long both = (unsigned long long)high << 32 | low;
  unsigned v = 0;
  for (int i = 0; i < 4; ++i) v |= (unsigned)(both >> (which >> 4 * i & 7) * 8 & 255) << 8 * i;
  return v;
}
EMU_HERE unsigned __shfl_sync(unsigned, unsigned v, int from) { return emu::show(v, from); }
EMU_HERE int __shfl_sync(unsigned, int v, int from) { return (int)emu::show((unsigned)v, from); }
EMU_HERE float __shfl_sync(unsigned, float v, int from) { return emu::f32(emu::show(emu::bits(v), from)); }
EMU_HERE unsigned __shfl_xor_sync(unsigned, unsigned v, int by) { return emu::show(v, emu::place.thread % 32 ^ by); }
EMU_HERE float __shfl_xor_sync(unsigned, float v, int by) {
  return emu::f32(emu::show(emu::bits(v), emu::place.thread % 32 ^ by));
}
EMU_HERE unsigned __shfl_down_sync(unsigned, unsigned v, int by) {
  const int lane = emu::place.thread % 32;
  return emu::show(v, lane + by < 32 ? lane + by : lane);
}
EMU_HERE unsigned long long __cvta_generic_to_shared(const void* p) {
  return (unsigned long long)(static_cast<const unsigned char*>(p) - emu::place.shared);
}
inline void __nanosleep(unsigned) {}
inline float __uint_as_float(unsigned v) { return emu::f32(v); }
inline float __int_as_float(int v) { return emu::f32((unsigned)v); }
inline unsigned __float_as_uint(float v) { return emu::bits(v); }
inline int __float_as_int(float v) { return (int)emu::bits(v); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
