// mbarriers, and what counts on them: bulk tensor copies, stores and arrivals that go to other CTAs.
#include "memory.hpp"

namespace emu {
Thread& now();
constexpr unsigned REMOTE = 1 << 24;  // an address in another CTA of the cluster: REMOTE · (rank + 1) + address

static Cta& cta_of(Thread& me, unsigned& at) {
  if (at < REMOTE) return *me.cta;
  Cta* const other = me.cta->peers[at / REMOTE - 1];
  at %= REMOTE;
  if (other->live == 0) fail("CTA " + std::to_string(other->block) + " has left, and its shared memory is written");
  return *other;
}

unsigned map_address(unsigned at, unsigned cta) {
  if ((int)cta >= now().cta->launch->request->cluster) fail("mapa: no CTA " + std::to_string(cta) + " in the cluster");
  return at % REMOTE + REMOTE * (cta + 1);
}

// --- mbarriers ------------------------------------------------------------------------------------------------------

// copies: what arrives there is of the async proxy, which is to see that it was initialized
static Mbarrier& barrier_at(Thread& me, Cta& cta, unsigned at, const void* pc, bool copies = false) {
  if (at % 8 || at + 8 > cta.shared.size() || !cta.barriers[at / 8])
    fail("no mbarrier at " + std::to_string(at) + " of CTA " + std::to_string(cta.block) + here(pc));
  Mbarrier& b = *cta.barriers[at / 8];
  const bool known = knows(me, VISIBLE, b.maker, b.made) || (b.published && cta.block != me.cta->block);
  if (!known) fail("the mbarrier at " + std::to_string(at) + " is used before it is known to be there" + here(pc));
  if (copies && !b.published && !knows(me, SHARED, b.maker, b.made))
    fail("no fence tells the async proxy of the mbarrier at " + std::to_string(at) + here(pc));
  return b;
}

static void advance(Mbarrier& b) {
  if (b.pending < 0) fail("more arrivals at a barrier than it counts: " + std::to_string(b.count));
  if (b.pending || b.bytes) return;
  ++b.phase, b.pending = b.count;
  b.done = b.arriving;
  b.done.raise(ORDERED, b.agent, b.phase), b.done.raise(VISIBLE, b.agent, b.phase);
  b.arriving = Clock();
  wake(b.waiting);
}

void barrier_init(unsigned at, unsigned count) {
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  if (at % 8 || at + 8 > me.cta->shared.size()) fail("mbarrier.init: address" + here(pc));
  Mbarrier*& b = me.cta->barriers[at / 8];
  if (!b) b = new Mbarrier, b->agent = new_agent(*me.cta->launch);
  b->count = b->pending = (int)count;
  if (at < me.cta->data_end) me.cta->data_end = at;
  b->maker = me.agent, b->made = me.tick;
}

void fence_mbarrier_init() {
  Thread& me = now();
  for (Mbarrier* b : me.cta->barriers)
    if (b && b->maker == me.agent) b->published = true;
}

struct Arrival : Async {  // on its way to another CTA
  Cta* cta;
  Mbarrier* bar;
  Clock with;
  unsigned bytes;
  void run() override {
    bar->bytes += bytes, --bar->pending;
    bar->arriving.join(with);
    advance(*bar);
  }
  bool touches(const Cta* c) const override { return c == cta; }
};

void barrier_arrive(Sem sem, Scope scope, unsigned at, unsigned bytes) {
  point();
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  const bool remote = at >= REMOTE && at / REMOTE - 1 != (unsigned)me.cta->rank;
  Cta& cta = cta_of(me, at);
  Mbarrier& b = barrier_at(me, cta, at, pc);
  Arrival* const a = new Arrival;
  a->cta = &cta, a->bar = &b, a->bytes = bytes, a->by = &me;
  // a release of the CTA's scope tells another CTA that reads are over, and shows it nothing
  if (sem == RELEASE) publish(me, a->with, ORDERED, remote && scope == OF_CTA ? VISIBLE : SECTIONS);
  if (remote) return begin(a, me);
  a->run(), a->ran = true;
  machine->gone.push_back(a);
}

bool barrier_wait(Sem sem, unsigned at, unsigned parity, bool may_hold) {
  point();
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  Mbarrier& b = barrier_at(me, *me.cta, at, pc);
  if ((b.phase & 1) == (parity & 1)) {
    if (!may_hold) return false;
    block(b.waiting, "an mbarrier", pc, at, parity);
    if ((b.phase & 1) == (parity & 1)) return false;
  }
  if (sem != RELAXED) learn(me, b.done);
  return true;
}

// --- between CTAs of a cluster --------------------------------------------------------------------------------------

struct SentWords : Async {
  Cta* cta;
  Mbarrier* bar;
  unsigned to;
  unsigned char words[16];
  Clock with;
  uint32_t phase;
  void run() override {
    memcpy(&cta->shared[to], words, 16);
    if (bar->phase + 1 != phase) fail("st.async: its bytes are counted for another phase");
    bar->bytes -= 16;
    bar->arriving.join(with, ORDERED, VISIBLE);  // its words were there to be sent
    advance(*bar);
  }
  bool touches(const Cta* c) const override { return c == cta; }
};

void store_async(unsigned to, unsigned bar, const void* from, int bytes) {
  point();
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  SentWords* const s = new SentWords;
  Cta& cta = cta_of(me, to);
  if (&cta_of(me, bar) != &cta) fail("st.async: the barrier is another CTA's");
  s->cta = &cta, s->to = to, s->bar = &barrier_at(me, cta, bar, pc, true), s->phase = s->bar->phase + 1;
  memcpy(s->words, from, bytes);
  publish(me, s->with, ORDERED, VISIBLE);
  write_cells(shared_cells(cta, to, bytes, pc), bytes / CELL, false, {me, s->bar->agent, s->phase, ASYNC, pc});
  begin(s, me);
}

void cluster_arrive(Sem sem) {
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  const Request& r = *me.cta->launch->request;
  if (sem == RELEASE)
    for (size_t n = 0; n < machine->asyncs.size();) {
      Async* const a = machine->asyncs[n];
      if (a->by == &me && dynamic_cast<Arrival*>(a)) finish(a), n = 0;
      else ++n;
    }
  me.turn = (int)me.cta->cluster->generation;
  meet(*me.cta->cluster, r.cluster * r.block, false, sem == RELEASE ? ORDERED : SECTIONS, SECTIONS, "", pc);
}

void cluster_wait() {
  Thread& me = now();
  Meeting& m = *me.cta->cluster;
  while ((int)m.generation == me.turn) block(m.waiting, "the other CTA of its cluster", __builtin_return_address(0));
  learn(me, m.left_with);
}

// --- bulk tensor copies ---------------------------------------------------------------------------------------------

// Some neighbours, 16 bytes at a time, for the swizzle: see over_box. inside: whether there is such a row.
template <class F>
static void over_row(const TensorMap& m, int at, int count, bool inside, const unsigned char* row, unsigned& place,
    F f) {
  const int unit = m.bytes;
  for (int first = 0; first < count;) {
    const int n = count - first < 16 / unit ? count - first : 16 / unit;
    const unsigned to = swizzled(place, m.swizzle);
    const int x = at + first;
    int there = inside ? m.shape[0] - x : 0;
    there = there < 0 ? 0 : there > n ? n : there;
    const int before = x < 0 ? (-x < n ? -x : n) : 0;
    f(to, n * unit, inside && there > before ? row + (int64_t)x * unit : nullptr, before * unit, there * unit);
    place += n * unit, first += n;
  }
}

// The same in im2col mode: one pixel of each of the patches from the one at `at` on, line by line, image by image.
// at: channel, pixel, line, image; pixel and line of the filter.
template <class F>
static void over_patches(const TensorMap& m, const int* at, unsigned shared, F f) {
  unsigned place = shared;
  int x = at[1], y = at[2], image = at[3];
  for (int n = 0; n < m.pixels; ++n) {
    const int where[3] = {x + at[4], y + at[5], image};
    bool inside = true;
    const unsigned char* row = m.base;
    for (int d = 1; d < 4; ++d) {
      inside &= where[d - 1] >= 0 && where[d - 1] < m.shape[d];
      row += (int64_t)where[d - 1] * m.pitch[d - 1];
    }
    over_row(m, at[0], m.box[0], inside, row, place, f);
    x += m.traversal[1];
    if (x < m.shape[1] + m.upper[0]) continue;
    x = m.lower[0], y += m.traversal[2];
    if (y < m.shape[2] + m.upper[1]) continue;
    y = m.lower[1], ++image;
  }
}

// The rows of a box, one after the other: f(place in shared memory, bytes, where in global memory or null).
template <class F>
static void over_box(const TensorMap& m, const int* at, unsigned shared, F f) {
  if (m.pixels) return over_patches(m, at, shared, f);
  int count[5] = {1, 1, 1, 1, 1};
  for (int d = 0; d < m.rank; ++d) count[d] = (m.box[d] + m.traversal[d] - 1) / m.traversal[d];
  unsigned place = shared;
  for (int e = 0; e < count[4]; ++e)
    for (int l = 0; l < count[3]; ++l)
      for (int k = 0; k < count[2]; ++k)
        for (int j = 0; j < count[1]; ++j) {
          const int index[5] = {0, j, k, l, e};
          bool inside = true;
          const unsigned char* row = m.base;
          for (int d = 1; d < m.rank; ++d) {
            const int x = at[d] + index[d] * m.traversal[d];
            inside &= x >= 0 && x < m.shape[d];
            row += (int64_t)x * m.pitch[d - 1];
          }
          over_row(m, at[0], count[0], inside, row, place, f);
        }
}

struct Loading : Async {
  Cta* cta;  // whose thread asked
  TensorMap map;
  int at[6];
  unsigned to, bar, ctas, bytes;
  uint32_t phases[16];
  int first;  // the agent that its reads are noted by, and when
  uint32_t noted;
  template <class F>
  void each(F f) {
    if (ctas == 0) return f(*cta, 0);
    for (int n = 0; n < cta->launch->request->cluster; ++n)
      if (ctas >> n & 1) f(*cta->peers[n], n);
  }
  void run() override {
    each([&](Cta& c, int n) {
      over_box(map, at, to, [&](unsigned place, int size, const unsigned char* from, int before, int there) {
        unsigned char* const p = &c.shared[place];
        memset(p, 0, size);
        if (!from) return;
        if (doubted(from + before, first, noted)) memset(p + before, 0xff, there - before);
        else memcpy(p + before, from + before, there - before);
      });
      Mbarrier& b = *c.barriers[bar / 8];
      if (b.phase + 1 != phases[n]) fail("a bulk copy's bytes are counted for another phase of the barrier at " +
          std::to_string(bar));
      b.bytes -= bytes;
      advance(b);
    });
  }
  bool touches(const Cta* c) const override {
    bool found = false;
    const_cast<Loading*>(this)->each([&](Cta& mine, int) { found |= &mine == c; });
    return found;
  }
};

// A copy begins at a whole 16-byte unit of a row; elsewhere the GPU reports an illegal instruction.
static void check_column(const TensorMap& m, const int* at, const void* pc) {
  if ((int64_t)at[0] * m.bytes % 16) fail("bulk copy: column " + std::to_string(at[0]) + " of " +
      std::to_string(m.bytes) + " bytes each is within a 16-byte unit" + here(pc));
}

void bulk_load(unsigned to, const void* map, unsigned bar, unsigned ctas, const int* at, int rank) {
  point();
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  Loading* const l = new Loading;
  memcpy(&l->map, map, sizeof(TensorMap)), memcpy(l->at, at, rank * sizeof(int));
  const TensorMap& m = l->map;
  const int expected = m.pixels ? m.rank + 2 : m.rank;
  if (rank != expected) fail("bulk copy: " + std::to_string(rank) + " coordinates for a map that takes " +
      std::to_string(expected) + here(pc));
  if (m.pixels && (at[1] < m.lower[0] || at[2] < m.lower[1]))
    fail("bulk copy: patches begin outside of their box" + here(pc));
  check_column(m, at, pc);
  if (to % 128) fail("bulk copy: shared memory at " + std::to_string(to) + ", no multiple of 128" + here(pc));
  l->cta = me.cta, l->to = to, l->bar = bar, l->ctas = ctas, l->bytes = m.bytes;
  if (m.pixels) l->bytes *= m.pixels * m.box[0];
  else
    for (int d = 0; d < rank; ++d) l->bytes *= (m.box[d] + m.traversal[d] - 1) / m.traversal[d];
  bool first = true;
  l->first = -1;
  l->each([&](Cta& c, int n) {
    if (c.live == 0) fail("CTA " + std::to_string(c.block) + " has left, and its shared memory is written");
    Mbarrier& b = barrier_at(me, c, bar, pc, true);
    l->phases[n] = b.phase + 1;
    if (first) l->first = b.agent, l->noted = b.phase + 1;
    shared_cells(c, to, l->bytes, pc);
    over_box(m, at, to, [&](unsigned place, int size, const unsigned char* from, int before, int there) {
      write_cells(shared_cells(c, place, size, pc), size / CELL, false, {me, b.agent, b.phase + 1, ASYNC, pc});
      if (!from || !first) return;
      Memory& mem = memory_at(from + before, there - before, "bulk copy", pc);
      if (Cell* const cells = global_cells(mem, from + before))
        read_cells(cells, cells_of((uintptr_t)(from + before), there - before), true, {me, b.agent, b.phase + 1,
            ASYNC | BOX, pc});
    });
    first = false;
  });
  begin(l, me);
}

// --- bulk tensor stores ---------------------------------------------------------------------------------------------

struct Store {  // two things happen: shared memory is read, global memory is written
  struct Part : Async {
    Store* store;
    void (*act)(Store&);
    void run() override { act(*store); }
    bool touches(const Cta* c) const override { return !store->taken && c == store->cta; }
  };
  Cta* cta;
  TensorMap map;
  int at[5];
  unsigned from;
  bool taken = false;
  std::vector<unsigned char> bytes;
  Part *read = nullptr, *write = nullptr;
};

static void take(Store& s) {
  if (s.taken) return;
  s.taken = true;
  over_box(s.map, s.at, s.from, [&](unsigned place, int size, const unsigned char*, int, int) {
    s.bytes.insert(s.bytes.end(), &s.cta->shared[place], &s.cta->shared[place] + size);
  });
}

static void put(Store& s) {
  take(s);
  size_t n = 0;
  over_box(s.map, s.at, s.from, [&](unsigned, int size, const unsigned char* to, int before, int there) {
    if (to) memcpy(const_cast<unsigned char*>(to) + before, &s.bytes[n + before], there - before);
    n += size;
  });
}

static void bulk_agents(Thread& me) {
  if (me.reading < 0) me.reading = new_agent(*me.cta->launch), me.writing = new_agent(*me.cta->launch),
      me.bulk.resize(1);
}

void bulk_store(const void* map, unsigned from, const int* at, int rank) {
  point();
  Thread& me = now();
  const void* const pc = __builtin_return_address(0);
  bulk_agents(me);
  Store* const s = new Store;
  memcpy(&s->map, map, sizeof(TensorMap)), memcpy(s->at, at, rank * sizeof(int));
  s->cta = me.cta, s->from = from;
  const uint32_t group = (uint32_t)me.bulk.size();
  if (s->map.rank != rank || from % 128) fail("bulk store: coordinates or address" + here(pc));
  check_column(s->map, at, pc);
  if ((int64_t)s->map.shape[0] * s->map.bytes % 16)  // loads are cut off number by number, stores are not
    fail("bulk store: rows end within a 16-byte unit, and all of it would be written" + here(pc));
  over_box(s->map, at, from, [&](unsigned place, int size, const unsigned char* to, int before, int there) {
    read_cells(shared_cells(*me.cta, place, size, pc), size / CELL, false, {me, me.reading, group, ASYNC, pc});
    if (!to) return;
    Memory& mem = memory_at(to + before, there - before, "bulk store", pc);
    if (!mem.region->written) fail(std::string("bulk store to ") + mem.region->name +
        ", which the launch does not write");
    write_cells(global_cells(mem, to + before), cells_of((uintptr_t)(to + before), there - before), true, {me,
        me.writing, group, ASYNC, pc});
  });
  me.bulk.back().stores.push_back(s);
  s->read = new Store::Part, s->read->store = s, s->read->act = take;
  s->write = new Store::Part, s->write->store = s, s->write->act = put;
  begin(s->read, me), begin(s->write, me);
}

void bulk_commit() {
  Thread& me = now();
  bulk_agents(me);
  me.bulk.emplace_back();
}

void bulk_wait(int pending, bool read) {
  point();
  Thread& me = now();
  if (me.bulk.empty()) return;
  const int done = (int)me.bulk.size() - 1 - pending;
  for (int n = 0; n < done; ++n)
    for (Store* s : me.bulk[n].stores) finish(read ? s->read : s->write);
  if (done <= 0) return;
  if ((int)me.read < done) me.read = done;
  if (!read && (int)me.written < done) me.written = done;
}
}  // namespace emu
