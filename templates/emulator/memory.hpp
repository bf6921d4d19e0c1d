// Memory with a record of who touched it last: every four bytes of shared memory, and of the tensors and counters that
// a launch writes. An access that is not ordered after the one before it is a race, and ends the run.
#pragma once
#include <string>
#include <vector>

#include "machine.hpp"

namespace emu {
constexpr unsigned CELL = 4;

enum Kind : uint16_t {
  ASYNC = 1,     // by the async proxy
  ATOMIC = 2,    // relaxed or stronger
  PENDING = 4,   // cp.async that nobody has waited for
  LOW = 8,       // two bytes of the four
  HIGH = 16,
  BOX = 32,      // by a bulk copy, whose box may span more than anybody uses
};

struct Access {
  uint32_t epoch = 0;  // 0: none
  int agent = 0;
  uint32_t site = 0;
  uint16_t kind = 0;
};

struct Cell {
  Access write, reads[2];
  Access also;  // who wrote the same beside it: to have seen one of the two is enough
  std::vector<Access>* more = nullptr;  // reads by further agents
};

// Words that are counted in: what a release has left there for those who acquire, and who has counted since the word
// was set.
struct Word {
  Clock released;
  std::vector<Access> counts;
  Queue waiting;
};

struct Memory {  // a region of global memory
  const Region* region;
  std::vector<Cell> cells;
  std::vector<Word> words;
};

// Who touches what. `epoch`: the agent's time.
struct Toucher {
  Thread& by;
  int agent;
  uint32_t epoch;
  uint16_t kind;
  const void* pc;
};

Memory& memory_at(const void* p, uint64_t bytes, const char* what, const void* pc);
// A bulk copy that reads what is written meanwhile is no race where nobody uses it. Such bytes are noted; a second run
// brings NaN in their place, and must give the same results.
struct Doubt {
  uint64_t place;  // of 16 bytes
  int agent;
  uint32_t epoch;
  bool operator<(const Doubt& other) const {
    if (place != other.place) return place < other.place;
    return agent != other.agent ? agent < other.agent : epoch < other.epoch;
  }
};
bool doubted(const void* p, int agent, uint32_t epoch);

void read_cells(Cell* first, size_t count, bool global, const Toucher& who);
// same: the bytes are what was there.
void write_cells(Cell* first, size_t count, bool global, const Toucher& who, bool same = false);
void count_word(Word& w, const Toucher& who);
void set_word(Word& w, const Cell* c, const Toucher& who);  // all who counted are to be known to have

// The cells of shared memory [at, at + bytes) of a CTA; fails outside of it.
Cell* shared_cells(Cta& cta, unsigned at, unsigned bytes, const void* pc);
Cell* global_cells(Memory& m, const void* p);  // null where nobody writes
// A place in shared memory by the swizzle of rows of 128 bytes: bits 4 … 6 of the address are turned by bits 7 … 9; of
// 64 bytes: bits 4 and 5 by bits 7 and 8; of 0: as it is.
inline unsigned swizzled(unsigned at, unsigned row) { return row ? at ^ (at >> 7 & (row / 16 - 1)) << 4 : at; }

inline size_t cells_of(uint64_t at, uint64_t bytes) { return (at % CELL + bytes + CELL - 1) / CELL; }
}  // namespace emu
