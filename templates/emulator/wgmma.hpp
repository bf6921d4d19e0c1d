// Products of a warpgroup. They happen when all its threads have issued them; their registers hold NaN until the thread
// has waited for them (PTX ISA: wgmma, asynchronous multiply-and-accumulate).
#pragma once
#include <vector>

#include "machine.hpp"

namespace emu {
// The sums of one product, while they are on their way: those of all threads.
struct Sums {
  float* registers[128] = {};
  bool held[128] = {};     // whether they are here and not in the thread's registers
  int count = 0;           // of a thread
  uint32_t group = 0;      // the last that adds to them
  std::vector<float> rows;  // [64][2 · count]
};

struct Warpgroup {
  explicit Warpgroup(int agent) : agent(agent) {}
  const int agent;
  uint32_t committed = 0;  // groups
  int commits = 0;         // threads that have committed the open group
  Meeting meeting;
  std::vector<Sums*> sums;
  // what the threads give to the product that they issue
  float* d[128] = {};
  unsigned a[128][4] = {};
  ~Warpgroup() {
    for (Sums* s : sums) delete s;
  }
};
}  // namespace emu
