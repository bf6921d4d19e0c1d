#include <algorithm>
#include <cstdio>

#include "memory.hpp"
#include "wgmma.hpp"

namespace emu {
Place place;
extern std::vector<Memory> memories;
static Thread* now_;
Thread& now() { return *now_; }

// --- fibers ---------------------------------------------------------------------------------------------------------

[[noreturn]] void fail(const std::string& what) {
  if (machine->wrong.empty()) machine->wrong = what;
  for (;;) now_->fiber.go(machine->scheduler);
}

void yield() {
  Thread& me = *now_;
  me.warp->runnable |= 1u << me.lane;
  me.fiber.go(machine->scheduler);
}

void make_ready(Thread& t) {
  Warp& w = *t.warp;
  t.waits_for = nullptr;
  w.runnable |= 1u << t.lane;
  if (w.ready < 0) w.ready = (int)machine->ready.size(), machine->ready.push_back(&w);
}

void block(Queue& queue, const char* why, const void* pc, unsigned on, unsigned phase) {
  Thread& me = *now_;
  me.waits_for = why, me.waits_at = pc, me.waits_on = on, me.waits_phase = phase;
  queue.threads.push_back({&me, ++me.waits});
  me.fiber.go(machine->scheduler);
}

void wake(Queue& queue) {
  machine->waited_long = false;
  std::vector<Waiter> woken;
  woken.swap(queue.threads);
  for (const Waiter& w : woken)
    if (w.thread->waits_for && w.thread->waits == w.wait) make_ready(*w.thread);
}

void begin(Async* async, Thread& by) {
  async->by = &by;
  if (machine->adversary.copies == Adversary::AT_ONCE) {
    async->run();
    async->ran = true;
    machine->gone.push_back(async);
  } else {
    machine->asyncs.push_back(async);
  }
}

void finish(Async* async) {
  if (async->ran) return;
  async->ran = true;
  async->run();
  auto& all = machine->asyncs;
  const auto found = std::find(all.begin(), all.end(), async);
  if (found != all.end()) all.erase(found);
  machine->gone.push_back(async);
}

// --- knowledge ------------------------------------------------------------------------------------------------------

int new_agent(const Launch& launch) {
  if ((int)machine->launch_of.size() == agents) fail("too many agents");
  machine->launch_of.push_back(launch.number);
  return (int)machine->launch_of.size() - 1;
}

bool knows(const Thread& t, Section s, int agent, uint32_t epoch) {
  if (agent == t.agent) {
    if (s <= VISIBLE) return true;
    if ((s == GLOBAL ? t.fenced_global : t.fenced_shared) >= epoch) return true;
  } else if (agent == t.reading) {
    if (s == ORDERED && t.read >= epoch) return true;
  } else if (agent == t.writing) {
    if (s <= VISIBLE && t.written >= epoch) return true;
  } else if (t.group && agent == t.group->agent) {
    if (s == ORDERED && t.mma_done >= epoch) return true;
  }
  return t.known.get(s, agent) >= epoch;
}

// What a thread knows by itself, into a clock.
static void own_part(const Thread& t, Clock& to, int from, int until) {
  if (from <= ORDERED && ORDERED < until) {
    to.raise(ORDERED, t.agent, t.tick);
    if (t.read) to.raise(ORDERED, t.reading, t.read);
    if (t.written) to.raise(ORDERED, t.writing, t.written);
    if (t.group && t.mma_done) to.raise(ORDERED, t.group->agent, t.mma_done);
  }
  if (from <= VISIBLE && VISIBLE < until) {
    to.raise(VISIBLE, t.agent, t.tick);
    if (t.written) to.raise(VISIBLE, t.writing, t.written);
  }
  if (until == SECTIONS) {
    if (t.fenced_global) to.raise(FENCED, t.agent, t.fenced_global);
    if (t.written) to.raise(FENCED, t.writing, t.written);
    if (t.fenced_shared) to.raise(SHARED, t.agent, t.fenced_shared);
  }
}

void publish(Thread& t, Clock& to, int from, int until) {
  to.join(t.known, from, until);
  own_part(t, to, from, until);
  ++t.tick;
}

void learn(Thread& t, const Clock& from) {
  if (t.known.same(from) || from.same(Clock())) return;
  for (const Learnt& l : machine->learnt)
    if (t.known.same(l.before) && from.same(l.from)) {
      t.known = l.after;
      return;
    }
  Learnt& l = machine->learnt[machine->learnings++ % 16];
  l.before = t.known, l.from = from;
  t.known.join(from);
  l.after = t.known;
}

void fence(Thread& t, Section s) {
  Learnt& l = machine->fenced[s == SHARED];
  if (t.written) t.known.raise(VISIBLE, t.writing, t.written), t.known.raise(FENCED, t.writing, t.written);
  if (!t.known.same(l.before)) {
    l.before = t.known, l.after = t.known;
    l.after.fence(s, s == GLOBAL ? FENCED : VISIBLE);
  }
  t.known = l.after;
  (s == GLOBAL ? t.fenced_global : t.fenced_shared) = t.tick++;
}

void meet(Meeting& m, int count, bool waits, Section from, Section to, const char* why, const void* pc) {
  Thread& me = *now_;
  if (from < to) publish(me, m.gathering, from, to);
  const unsigned generation = m.generation;
  if (++m.arrived == count) {
    m.arrived = 0, ++m.generation;
    m.left_with = m.gathering, m.gathering = Clock();
    wake(m.waiting);
  } else if (waits) {
    while (m.generation == generation) block(m.waiting, why, pc);
  }
  if (waits) learn(me, m.left_with);
}

uint32_t site_of(const Thread& t, const void* pc) {
  KnownSite& k = machine->known_sites[((uintptr_t)pc * 31 + t.agent * 7) % 1024];
  if (k.pc == pc && k.agent == t.agent && k.op == t.op && !memcmp(k.at, t.at, sizeof t.at)) return k.site;
  k.pc = pc, k.agent = t.agent, k.op = t.op, memcpy(k.at, t.at, sizeof t.at);
  k.site = (uint32_t)machine->sites.size();
  machine->sites.push_back({pc, t.agent, t.cta->launch->number, t.cta->block, t.index / 32, t.lane, t.op,
                            {t.at[0], t.at[1], t.at[2], t.at[3]}});
  return k.site;
}

// --- a run ----------------------------------------------------------------------------------------------------------

static void leave(Thread& me) {
  Cta& cta = *me.cta;
  Launch& launch = *cta.launch;
  me.done = true;
  if (--cta.live == 0) {
    cta.dependents = true;
    for (const Async* a : machine->asyncs)
      if (!a->ran && a->touches(&cta)) fail("CTA " + std::to_string(cta.block) +
          " has left, and something is still on its way to or from its shared memory");
    for (const Mbarrier* b : cta.barriers)
      if (b && b->bytes) fail("CTA " + std::to_string(cta.block) + " has left, and a barrier still waits for " +
          std::to_string(b->bytes) + " bytes");
    if (--launch.live == 0) {
      for (size_t n = 0; n < machine->asyncs.size();) {
        Async* const a = machine->asyncs[n];
        if (a->by->cta->launch == &launch) finish(a), n = 0;
        else ++n;
      }
      for (size_t n = 0; n < machine->launch_of.size(); ++n)
        if (machine->launch_of[n] <= launch.number)
          for (int s = ORDERED; s < SECTIONS; ++s) launch.at_end.raise((Section)s, (int)n, UINT32_MAX);
      launch.over = true;
      wake(launch.waiting);
    }
  }
}

static void thread_main() {
  Thread& me = *now_;
  const Launch& launch = *me.cta->launch;
  launch.request->kernel(launch.request->parameters[launch.number]);
  leave(me);
  for (;;) me.fiber.go(machine->scheduler);
}

static void make_cta(Launch& launch, int block, char* stack) {
  const Request& r = *launch.request;
  Cta* const cta = new Cta;
  cta->launch = &launch, cta->block = block, cta->rank = block % r.cluster, cta->live = r.block;
  cta->shared.assign(r.shared_bytes, 0xff);  // NaN
  cta->cells.resize((r.shared_bytes + CELL - 1) / CELL);
  cta->barriers.resize(r.shared_bytes / 8 + 1);
  cta->threads.resize(r.block);
  cta->warps.resize(r.block / 32);
  for (int n = 0; n < r.block / 128; ++n) cta->groups.push_back(new Warpgroup(new_agent(launch)));
  for (int n = 0; n < r.block; ++n) {
    Thread& t = cta->threads[n];
    t.cta = cta, t.index = n, t.lane = n % 32, t.agent = new_agent(launch);
    t.warp = &cta->warps[n / 32], t.group = cta->groups[n / 128];
    t.warp->cta = cta, t.warp->index = n / 32;
    t.fiber.start(stack + (size_t)n * Fiber::STACK, thread_main);
  }
  launch.ctas.push_back(cta);
}

static void start(Launch& launch) {
  launch.started = true;
  for (Cta* cta : launch.ctas)
    for (Thread& t : cta->threads) make_ready(t);
}

// A launch starts when the one before has ended, or, where it may, when all CTAs of that have let it.
static void start_those_that_may() {
  for (size_t n = 1; n < machine->launches.size(); ++n) {
    Launch &launch = machine->launches[n], &before = machine->launches[n - 1];
    if (launch.started || !before.started) continue;
    bool may = before.over;
    if (launch.request->programmatic) {
      may = true;
      for (const Cta* cta : before.ctas) may &= cta->dependents;
      // one launch ahead at most
      may &= n < 2 || machine->launches[n - 2].over;
    } else if (may) {
      for (Cta* cta : launch.ctas)
        for (Thread& t : cta->threads) t.known = before.at_end;
    }
    if (may) start(launch);
  }
}

static bool starved(const Warp& w) {
  const Adversary& a = machine->adversary;
  return w.index == a.starved_warp || w.cta->block == a.starved_cta;
}

static Warp* choose() {
  auto& ready = machine->ready;
  if (ready.empty()) return nullptr;
  const size_t from = machine->adversary.turns == Adversary::RANDOM ? machine->random() : machine->round++;
  for (size_t n = 0; n < ready.size(); ++n) {
    Warp* const w = ready[(from + n) % ready.size()];
    if (!starved(*w)) return w;
  }
  return nullptr;
}

static void run(Warp& w) {
  auto& ready = machine->ready;
  unsigned lanes = w.runnable;
  w.runnable = 0;
  for (; lanes; lanes &= lanes - 1) {
    if (!machine->wrong.empty()) return;
    Thread* const t = &w.cta->threads[32 * w.index + __builtin_ctz(lanes)];
    now_ = t;
    place = {t->index, (int)t->cta->threads.size(), t->cta->block, (int)t->cta->launch->ctas.size(), t->cta->rank,
             t->cta->shared.data()};
    machine->scheduler.go(t->fiber);
  }
  if (!w.runnable) {
    ready[w.ready] = ready.back(), ready[w.ready]->ready = w.ready;
    ready.pop_back(), w.ready = -1;
  }
}

static void run_async(size_t n) {
  auto& all = machine->asyncs;
  Async* const a = all[n];
  all.erase(all.begin() + n);
  now_ = a->by;
  a->ran = true;
  a->run();
  machine->gone.push_back(a);
}

// Of things on their way the oldest, the newest or any, as the seed has it.
static size_t one_of(size_t count) {
  const unsigned how = machine->adversary.seed / 2 % 3;
  return how == 0 ? 0 : how == 1 ? count - 1 : machine->random() % count;
}

static std::string standing_still() {
  std::string text = "no progress:";
  int told = 0;
  for (const Launch& l : machine->launches)
    for (const Cta* cta : l.ctas)
      for (const Thread& t : cta->threads)
        if (!t.done && t.waits_for && (t.lane == 0 || !t.warp->cta->threads[t.index - 1].waits_for) && told++ < 24) {
          char part[256];
          snprintf(part, sizeof part, "\n  {%llu|%d|%d|%d|%d|%d|%d,%d,%d,%d} waits for %s",
              (unsigned long long)(uintptr_t)t.waits_at,
                   l.number, cta->block, t.index / 32, t.lane, t.op, t.at[0], t.at[1], t.at[2], t.at[3], t.waits_for);
          text += part;
          if (t.waits_on) text += " at " + std::to_string(t.waits_on) + ", phase " + std::to_string(t.waits_phase);
        }
  return text;
}

// Nobody can go on: all pollers look at the clock again, once.
static bool wait_long() {
  if (machine->waited_long || machine->pollers.threads.empty()) return false;
  machine->time += 1000000000000ull;
  wake(machine->pollers);
  machine->waited_long = true;
  return !machine->ready.empty();
}

static void drive() {
  long turns = 0;
  while (machine->wrong.empty() && !machine->launches.back().over) {
    start_those_that_may();
    if (++turns > 200000000) {
      machine->wrong = "no end";
      break;
    }
    auto& asyncs = machine->asyncs;
    if (!asyncs.empty() && machine->adversary.copies == Adversary::ANY_TIME && machine->random() % 4 == 0)
      run_async(machine->random() % asyncs.size());
    else if (Warp* const w = choose()) run(*w);
    else if (!asyncs.empty()) run_async(one_of(asyncs.size()));
    else if (!machine->ready.empty()) run(*machine->ready[machine->random() % machine->ready.size()]);
    else if (!wait_long()) machine->wrong = standing_still();
    machine->time += 20;
  }
}

static void at_rest() {
  for (const Launch& l : machine->launches)
    for (const Cta* cta : l.ctas)
      for (size_t n = 0; n < cta->barriers.size(); ++n)
        if (const Mbarrier* const b = cta->barriers[n])
          if (b->bytes) machine->wrong = "a barrier of CTA " + std::to_string(cta->block) + " at " +
              std::to_string(8 * n) + " still waits for bytes";
  for (const Memory& m : memories)
    if (m.region->counters)
      for (uint64_t n = 0; n < m.region->bytes / 4 && machine->wrong.empty(); ++n) {
        const unsigned found = ((const unsigned*)m.region->base)[n];
        const unsigned expected = n < (uint64_t)m.region->counters ? 0 : machine->launches.size();
        if (found != expected) machine->wrong = "counter word " + std::to_string(n) + " is " + std::to_string(found) +
            " at the end, expected " + std::to_string(expected);
      }
}

static void forget(Machine& m) {
  for (Async* a : m.asyncs) delete a;
  for (Async* a : m.gone) delete a;
  for (Launch& l : m.launches) {
    for (Cta* cta : l.ctas) {
      for (Mbarrier* b : cta->barriers) delete b;
      for (Warpgroup* g : cta->groups) delete g;
      for (Cell& c : cta->cells) delete c.more;
      delete cta;
    }
    for (Meeting* c : l.clusters) delete c;
  }
  for (Memory& mem : memories)
    for (Cell& c : mem.cells) delete c.more;
  memories.clear();
}
}  // namespace emu

namespace emu {
std::string doubts_of_run();
void forget_doubts();
}  // namespace emu

// again: with NaN in place of what the run before read in doubt. Gives 1 where there is something new in doubt.
extern "C" int emu_run(const emu::Request* request, int again, char* wrong, int room) {
  using namespace emu;
  if (!again) forget_doubts();
  Machine m;
  machine = &m;
  const Request& r = *request;
  m.adversary = {r.turns, r.copies, r.starved_warp, r.starved_cta, r.seed};
  m.random_state = 2654435761u * (r.seed + 1) | 1;
  const int threads = r.grid * r.block;
  agents = r.launches * (threads + r.grid * (r.block / 128 + 96 + 16));
  for (int n = 0; n < r.region_count; ++n) {
    memories.push_back({&r.regions[n], {}, {}});
    Memory& mem = memories.back();
    if (mem.region->written) mem.cells.resize((mem.region->bytes + CELL - 1) / CELL);
    if (mem.region->counters) mem.words.resize(mem.region->bytes / 4);
  }
  const size_t all = (size_t)r.launches * threads;
  char* const stack = stacks(all);
  m.launches.resize(r.launches);
  for (int n = 0; n < r.launches; ++n) {
    Launch& launch = m.launches[n];
    launch.request = request, launch.number = n, launch.live = r.grid;
    for (int block = 0; block < r.grid; ++block)
      make_cta(launch, block, stack + ((size_t)n * threads + (size_t)block * r.block) * Fiber::STACK);
    for (int block = 0; block < r.grid; block += r.cluster) {
      launch.clusters.push_back(new Meeting);
      for (int rank = 0; rank < r.cluster; ++rank)
        launch.ctas[block + rank]->cluster = launch.clusters.back(), launch.ctas[block +
            rank]->peers = &launch.ctas[block];
    }
  }
  start(m.launches[0]);
  drive();
  if (m.wrong.empty()) {
    for (size_t n = 0; n < m.asyncs.size(); ++n) m.asyncs[n]->run(), m.asyncs[n]->ran = true;
         // stores that nobody waits for
    at_rest();
  }
  const std::string doubt = doubts_of_run();
  const bool in_doubt = m.wrong.empty() && !doubt.empty();
  snprintf(wrong, room, "%s", in_doubt ? doubt.c_str() : m.wrong.c_str());
  forget(m);
  munmap(stack, all * Fiber::STACK);
  machine = nullptr;
  return in_doubt;
}
