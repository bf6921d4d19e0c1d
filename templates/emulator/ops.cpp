// Loads, stores, atomics, fences, and what the lanes of a warp do together.
#include <cmath>

#include "memory.hpp"

namespace emu {
Thread& now();

// --- global memory --------------------------------------------------------------------------------------------------

static Word* word_of(Memory& m, const void* p) {
  return m.words.empty() ? nullptr : &m.words[((const unsigned char*)p - (const unsigned char*)m.region->base) / 4];
}

// Whether all who may touch the word are in the scope. To those who are not, an access is a weak one.
static bool spans(Scope scope) {
  const Request& r = *now().cta->launch->request;
  return scope >= OF_GPU || r.grid == (scope == OF_CTA ? 1 : r.cluster);
}

void load_global(Sem sem, Scope scope, Cache cache, const void* p, void* to, int bytes) {
  const void* const pc = __builtin_return_address(0);
  const bool weak = sem == WEAK || !spans(scope);
  if (sem != WEAK) point();
  Thread& me = now();
  if ((uintptr_t)p % bytes) fail("load of " + std::to_string(bytes) + " bytes: address" + here(pc));
  Memory& m = memory_at(p, bytes, "load", pc);
  Cell* const cells = global_cells(m, p);
  Word* const word = word_of(m, p);
  if (word && sem != ACQUIRE) {  // who sees the same again waits for a change
    const unsigned seen = *(const unsigned*)p;
    if (me.polled == p && me.polled_value == seen) {
      machine->pollers.threads.push_back({&me, me.waits + 1});
      block(word->waiting, "a semaphore", pc, (unsigned)(((const unsigned*)p - (const unsigned*)m.region->base)));
    }
    me.polled = (const unsigned*)p, me.polled_value = *(const unsigned*)p;
  }
  const bool stale = cells && cache != CG && weak && cells->write.epoch &&
                     machine->launch_of[cells->write.agent] == me.cta->launch->number;
  if (stale)
    fail(std::string("race: a load of ") + m.region->name +
         (cache == NC ? " by the non-coherent path" : " through L1") +
         ", which may hold what was there before this launch wrote it" + here(pc));
  const uint16_t half = bytes == 2 ? ((uintptr_t)p % 4 ? HIGH : LOW) : 0;
  // a relaxed look at data is used for nothing
  if (cells && (weak || word)) read_cells(cells, cells_of((uintptr_t)p, bytes), true, {me, me.agent, me.tick,
      (uint16_t)((weak ? 0 : ATOMIC) | half), pc});
  if (sem == ACQUIRE && !weak && word) learn(me, word->released), me.polled = nullptr;
  memcpy(to, p, bytes);
}

void store_global(Sem sem, Scope scope, void* p, const void* from, int bytes) {
  const void* const pc = __builtin_return_address(0);
  const bool weak = sem == WEAK || !spans(scope);
  if (sem != WEAK) point();
  Thread& me = now();
  if ((uintptr_t)p % bytes) fail("store of " + std::to_string(bytes) + " bytes: address" + here(pc));
  Memory& m = memory_at(p, bytes, "store", pc);
  Cell* const cells = global_cells(m, p);
  if (!cells) fail(std::string("store to ") + m.region->name + ", which the launch does not write" + here(pc));
  const uint16_t half = bytes == 2 ? ((uintptr_t)p % 4 ? HIGH : LOW) : 0;
  const Toucher who{me, me.agent, me.tick, (uint16_t)((weak ? 0 : ATOMIC) | half), pc};
  write_cells(cells, cells_of((uintptr_t)p, bytes), true, who);
  memcpy(p, from, bytes);
  if (Word* const word = word_of(m, p)) {
    set_word(*word, cells, who);
    word->released = Clock();
    wake(word->waiting);
  }
}

unsigned add_global(Sem sem, Scope scope, unsigned* p, unsigned by) {
  const void* const pc = __builtin_return_address(0);
  const bool weak = !spans(scope);
  point();
  Thread& me = now();
  Memory& m = memory_at(p, 4, "atomic", pc);
  Word* const word = word_of(m, p);
  if (!word) fail("an atomic on what is no counter" + here(pc));
  const Toucher who{me, me.agent, me.tick, (uint16_t)(weak ? 0 : ATOMIC), pc};
  write_cells(global_cells(m, p), 1, true, who);
  count_word(*word, who);
  if (!weak && (sem == ACQUIRE || sem == ACQ_REL)) learn(me, word->released);
  if (!weak && (sem == RELEASE || sem == ACQ_REL)) publish(me, word->released);
  const unsigned before = *p;
  *p += by;
  wake(word->waiting);
  return before;
}

void fence_async(bool global) { fence(now(), global ? GLOBAL : SHARED); }

// --- shared memory --------------------------------------------------------------------------------------------------

static uint16_t half_of(unsigned at, int bytes) { return bytes == 2 ? (at % 4 ? HIGH : LOW) : 0; }

static void load_shared(unsigned at, void* to, int bytes, const void* pc) {
  Thread& me = now();
  if (at % bytes) fail("ld.shared: address" + here(pc));
  read_cells(shared_cells(*me.cta, at, bytes, pc), cells_of(at, bytes), false, {me, me.agent, me.tick, half_of(at,
      bytes), pc});
  memcpy(to, &me.cta->shared[at], bytes);
}

static void store_shared(unsigned at, const void* from, int bytes, const void* pc) {
  Thread& me = now();
  if (at % bytes) fail("st.shared: address" + here(pc));
  write_cells(shared_cells(*me.cta, at, bytes, pc), cells_of(at, bytes), false, {me, me.agent, me.tick, half_of(at,
      bytes), pc},
              !memcmp(&me.cta->shared[at], from, bytes));
  memcpy(&me.cta->shared[at], from, bytes);
}

void load_shared(unsigned at, void* to, int bytes) { load_shared(at, to, bytes, __builtin_return_address(0)); }
void store_shared(unsigned at, const void* from, int bytes) { store_shared(at, from, bytes,
    __builtin_return_address(0)); }

// cp.async: what it brings may come at once or when it is waited for; nobody may look before.
void copy_async(unsigned to, const void* from, int bytes) {
  const void* const pc = __builtin_return_address(0);
  Thread& me = now();
  if (to % 16 || (uintptr_t)from % 16) fail("cp.async: address" + here(pc));
  write_cells(shared_cells(*me.cta, to, 16, pc), 4, false, {me, me.agent, me.tick, PENDING, pc});
  if (bytes) {
    Memory& m = memory_at(from, bytes, "cp.async", pc);
    if (Cell* const cells = global_cells(m, from)) read_cells(cells, cells_of((uintptr_t)from, bytes), true, {me,
        me.agent, me.tick, 0, pc});
  }
  memset(&me.cta->shared[to], 0xff, 16);
  me.copies.back().push_back({to, from, bytes});
}

void copies_commit() { now().copies.emplace_back(); }

void copies_wait(int pending) {
  Thread& me = now();
  auto& groups = me.copies;
  for (; (int)groups.size() - 1 > pending; groups.erase(groups.begin()))
    for (const Copy& c : groups.front()) {
      unsigned char* const to = &me.cta->shared[c.to];
      memset(to, 0, 16);
      if (c.bytes) memcpy(to, c.from, c.bytes);
      for (unsigned n = 0; n < 4; ++n) {
        Access& w = me.cta->cells[c.to / CELL + n].write;
        if (w.agent == me.agent) w.kind &= ~PENDING, w.epoch = me.tick;
      }
    }
}

// --- warps ----------------------------------------------------------------------------------------------------------

// Show the other lanes `mine`, and see all of theirs.
static const void** exchange(const void* mine, const char* why, const void* pc) {
  Thread& me = now();
  Warp& w = *me.warp;
  auto& shown = w.shown[w.meeting.generation & 1];
  shown[me.lane] = mine;
  meet(w.meeting, 32, true, SECTIONS, SECTIONS, why, pc);
  return shown;
}

void meet_warp() {
  meet(now().warp->meeting, 32, true, ORDERED, SECTIONS, "the other lanes of its warp at __syncwarp",
      __builtin_return_address(0));
}

unsigned show(unsigned v, int from) {
  const void** const all = exchange((const void*)(uintptr_t)v, "the other lanes of its warp at shfl",
      __builtin_return_address(0));
  return (unsigned)(uintptr_t)all[from % 32];
}

unsigned movmatrix(unsigned v) {
  const void** const all = exchange((const void*)(uintptr_t)v, "the other lanes of its warp at movmatrix",
      __builtin_return_address(0));
  const int row = now().lane / 4, column = 2 * (now().lane % 4);  // of the transposed block
  const auto number = [&](int from) {
    const unsigned word = (unsigned)(uintptr_t)all[4 * from + row / 2];
    return row % 2 ? word >> 16 : word & 0xffff;
  };
  return number(column) | number(column + 1) << 16;
}

void store_matrix(unsigned at, const unsigned* v, int count, bool transposed) {
  const void* const pc = __builtin_return_address(0);
  struct Given {
    unsigned at;
    unsigned v[4];
  };
  Thread& me = now();
  Given mine{at, {}};
  memcpy(mine.v, v, 4 * count);
  const void** const all = exchange(&mine, "the other lanes of its warp at stmatrix", pc);
  const auto row = [&](int lane) {
    const unsigned at = ((const Given*)all[lane])->at;
    if (at % 16) fail("stmatrix: address" + here(pc));
    return at;
  };
  for (int i = 0; i < count; ++i) {  // each lane writes its own two columns of each matrix, or rows
    if (!transposed) {
      store_shared(row(8 * i + me.lane / 4) + 4 * (me.lane % 4), &v[i], 4, pc);
      continue;
    }
    for (int k = 0; k < 2; ++k) {
      const uint16_t one = v[i] >> 16 * k;
      store_shared(row(8 * i + 2 * (me.lane % 4) + k) + 2 * (me.lane / 4), &one, 2, pc);
    }
  }
  exchange(nullptr, "the other lanes of its warp at stmatrix", pc);  // `mine` is looked at no more
}

void load_matrix(unsigned at, unsigned* v, int count, bool transposed) {
  const void* const pc = __builtin_return_address(0);
  Thread& me = now();
  const void** const all = exchange((const void*)(uintptr_t)at, "the other lanes of its warp at ldmatrix", pc);
  for (int i = 0; i < count; ++i) {
    const unsigned row = (unsigned)(uintptr_t)all[8 * i + me.lane / 4];
    if (row % 16) fail("ldmatrix: address" + here(pc));
    if (!transposed) {
      load_shared(row + 4 * (me.lane % 4), &v[i], 4, pc);
      continue;
    }
    uint16_t pair[2];  // rows 2·(lane % 4) and the next, of column lane / 4
    for (int k = 0; k < 2; ++k) {
      const unsigned from = (unsigned)(uintptr_t)all[8 * i + 2 * (me.lane % 4) + k];
      if (from % 16) fail("ldmatrix: address" + here(pc));
      load_shared(from + 2 * (me.lane / 4), &pair[k], 2, pc);
    }
    v[i] = pair[0] | (unsigned)pair[1] << 16;
  }
}

unsigned tf32(float x) {
  unsigned v;
  memcpy(&v, &x, 4);
  return x - x == 0.0f ? (v + 0x1000) & 0xffffe000 : v;
}

void warp_mma(Factor type, float* d, const unsigned* a, const unsigned* b) {
  struct Given {
    unsigned a[4], b[2];
  };
  Thread& me = now();
  Given mine;
  memcpy(mine.a, a, 16), memcpy(mine.b, b, 8);
  const void* const pc = __builtin_return_address(0);
  const void** const all = exchange(&mine, "the other lanes of its warp at mma", pc);
  // a register holds two numbers of 16 bits, or one whose 13 last bits do not count
  const int held = type == TF32 ? 1 : 2;
  const auto value = [&](unsigned v, int upper) {
    float x;
    v = type == TF32 ? v & 0xffffe000 : upper ? v >> 16 : v & 0xffff;
    memcpy(&x, &v, 4);
    return type == TF32 ? x : type == F16 ? of_f16(v) : of_bf16(v);
  };
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    const int row = me.lane / 4 + 8 * (i / 2), column = 2 * (me.lane % 4) + i % 2;
    sums[i] = d[i];
    for (int k = 0; k < 8 * held; ++k) {
      const int holder = k % (4 * held) / held, part = k / (4 * held);
      sums[i] += value(((const Given*)all[row % 8 * 4 + holder])->a[row / 8 + 2 * part], k % held) *
                 value(((const Given*)all[column * 4 + holder])->b[part], k % held);
    }
  }
  memcpy(d, sums, 16);
  exchange(nullptr, "the other lanes of its warp at mma", pc);
}

bool elected() {
  exchange(nullptr, "the other lanes of its warp at elect", __builtin_return_address(0));
  return now().lane == (int)(machine->adversary.seed % 32);
}

// --- CTAs and launches ----------------------------------------------------------------------------------------------

void named_barrier(unsigned id, unsigned count, bool waits) {
  if (id > 15 || count % 32) fail("barrier.cta: number or count");
  meet(now().cta->named[id], (int)count, waits, ORDERED, SECTIONS, "barrier.cta", __builtin_return_address(0));
}

void meet_cta() {
  meet(now().cta->named[0], (int)now().cta->threads.size(), true, ORDERED, SECTIONS, "__syncthreads",
      __builtin_return_address(0));
}

void dependents() { now().cta->dependents = true; }

void depend() {
  Thread& me = now();
  if (me.cta->launch->number == 0) return;
  Launch& before = machine->launches[me.cta->launch->number - 1];
  while (!before.over) block(before.waiting, "the launch before", __builtin_return_address(0));
  learn(me, before.at_end);
}

uint64_t nanoseconds() { return machine->time; }

// Any, often the same for several CTAs.
unsigned sm() { return (place.block * 5 + machine->adversary.seed) % (place.blocks * 2 / 3 + 1); }

void trap() { fail("trap: a role has waited for longer than any semaphore may be waited for" +
    here(__builtin_return_address(0))); }

void tile(int op, const int* at) {
  Thread& me = now();
  me.op = op, memcpy(me.at, at, sizeof me.at);
}
}  // namespace emu
