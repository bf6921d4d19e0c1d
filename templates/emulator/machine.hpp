// The machine: launches of CTAs of warps of threads, and the scheduler that says who goes on.
#pragma once
#include <string>
#include <vector>

#include "clock.hpp"
#include "fiber.hpp"
#include "ptx.hpp"

namespace emu {
struct Cta;
struct Launch;
struct Thread;
struct Warpgroup;

// Where an access was made: the place in the program, and the tile that was worked on.
struct Site {
  const void* pc;
  int agent;
  int launch, cta, warp, lane;
  int op, at[4];
};

// Threads that wait for something to happen, each with the number of its wait.
struct Waiter {
  Thread* thread;
  unsigned wait;
};
struct Queue {
  std::vector<Waiter> threads;
};

// A barrier of `count` arrivals, again and again. All who leave know what all who arrived published.
struct Meeting {
  int arrived = 0;
  unsigned generation = 0;
  Clock gathering, left_with;
  Queue waiting;
};

// What the lanes of a warp show each other, by turns, so that one meeting an exchange is enough.
struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  int ready = -1;  // its place among those that may go on, or -1
  Meeting meeting;
  const void* shown[2][32];
  unsigned runnable = 0;  // lanes that may go on
};

struct Store;  // a bulk store on its way

struct BulkGroup {
  std::vector<Store*> stores;
};

struct Copy {  // cp.async
  unsigned to;
  const void* from;
  int bytes;
};

struct Thread {
  Fiber fiber;
  Cta* cta = nullptr;
  Warp* warp = nullptr;
  Warpgroup* group = nullptr;
  int index = 0, lane = 0, agent = 0, turn = 0;
  bool done = false;
  // what it waits for, for a report; where
  const char* waits_for = nullptr;
  const void* waits_at = nullptr;
  unsigned waits_on = 0, waits_phase = 0, waits = 0;

  Clock known;        // what it knows of others
  uint32_t tick = 1;  // its own time: one more after each release
  uint32_t fenced_global = 0, fenced_shared = 0;  // its own writes until then are seen by the async proxy

  // bulk stores, from the first one on
  int reading = -1, writing = -1;  // agents
  std::vector<BulkGroup> bulk;     // committed groups; the last one is still open
  uint32_t read = 0, written = 0;  // groups of which that is known

  std::vector<std::vector<Copy>> copies{1};

  bool fenced = false;    // wgmma.fence since registers were last given back
  uint32_t mma_done = 0;  // groups of wgmma that it has waited for

  const unsigned* polled = nullptr;
  unsigned polled_value = 0;
  int op = -1, at[4] = {0, 0, 0, 0};
};

struct Mbarrier {
  int count = 0, pending = 0, agent = 0;
  long bytes = 0;  // expected and not here
  uint32_t phase = 0;
  bool published = false;  // by fence.mbarrier_init
  int maker = 0;
  uint32_t made = 0;
  Clock arriving, done;
  Queue waiting;
};

struct Cell;

struct Cta {
  Launch* launch = nullptr;
  int block = 0, rank = 0, live = 0;  // rank: in the cluster
  bool dependents = false;            // launched, or all threads gone
  std::vector<unsigned char> shared;
  std::vector<Cell> cells;
  std::vector<Mbarrier*> barriers;  // by address / 8
  unsigned data_end = UINT32_MAX;   // where the first of them lies: what is multiplied lies before
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup*> groups;
  Meeting named[16];
  Meeting* cluster = nullptr;
  Cta* const* peers = nullptr;
};

struct Launch {
  const Request* request = nullptr;
  int number = 0, first_agent = 0, live = 0;  // CTAs not gone
  bool started = false, over = false;
  std::vector<Cta*> ctas;
  std::vector<Meeting*> clusters;
  Clock at_end;
  Queue waiting;  // for its end
};

// Something that happens beside all threads: a copy, an arrival on its way to another CTA.
struct Async {
  virtual ~Async() = default;
  virtual void run() = 0;
  virtual bool touches(const Cta*) const { return false; }  // whether that CTA must still be there
  bool ran = false;
  Thread* by = nullptr;
};

// Lanes of a warp mostly learn the same from the same: it is found out once.
struct Learnt {
  Clock before, from, after;
};

struct KnownSite {
  const void* pc;
  int agent, op, at[4];
  uint32_t site;
};

// How a run is driven.
struct Adversary {
  enum Turns { ROUND_ROBIN, RANDOM };
  enum Copies { AT_ONCE, AT_LAST, ANY_TIME };
  int turns, copies;
  int starved_warp, starved_cta;  // -1: none
  unsigned seed;
};

struct Machine {
  Adversary adversary{};
  std::vector<Launch> launches;
  std::vector<Warp*> ready;
  std::vector<Async*> asyncs;
  std::vector<Async*> gone;  // run, and to be deleted at the end
  std::vector<Site> sites;
  Fiber scheduler;
  std::string wrong;
  uint64_t time = 1000000000;
  unsigned random_state = 1;
  size_t round = 0;
  bool waited_long = false;  // time has been moved on since anything happened
  Queue pollers;
  std::vector<int> launch_of;  // each agent's
  Learnt learnt[16], fenced[2];
  unsigned learnings = 0;
  std::vector<KnownSite> known_sites{1024};

  unsigned random() {
    random_state ^= random_state << 13, random_state ^= random_state >> 17, random_state ^= random_state << 5;
    return random_state;
  }
};

inline Machine* machine;

[[noreturn]] void fail(const std::string& what);
// A place in the program, for a report: who asked for the run makes a line of it.
inline std::string here(const void* pc) { return " {" + std::to_string((uintptr_t)pc) + "}"; }
void yield();                                          // others may go on
void block(Queue& queue, const char* why, const void* pc, unsigned on = 0, unsigned phase = 0);  // until woken
void wake(Queue& queue);
void make_ready(Thread& t);
void begin(Async* async, Thread& by);  // at once, or later
void finish(Async* async);             // now, if it has not happened
void meet(Meeting& m, int count, bool waits, Section from, Section to, const char* why, const void* pc);
uint32_t site_of(const Thread& t, const void* pc);
int new_agent(const Launch& launch);
inline void point() {  // where another thread may come in between
  if (machine->adversary.turns == Adversary::RANDOM && machine->random() % 8 == 0) yield();
}

// --- what a thread knows --------------------------------------------------------------------------------------------

bool knows(const Thread& t, Section s, int agent, uint32_t epoch);
void publish(Thread& t, Clock& to, int from = ORDERED, int until = SECTIONS);
void learn(Thread& t, const Clock& from);
void fence(Thread& t, Section s);
}  // namespace emu
