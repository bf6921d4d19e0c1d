#include "memory.hpp"

#include <cstdio>
#include <set>

namespace emu {
extern std::vector<Memory> memories;
std::vector<Memory> memories;

Memory& memory_at(const void* p, uint64_t bytes, const char* what, const void* pc) {
  for (Memory& m : memories) {
    const auto offset = (const unsigned char*)p - (const unsigned char*)m.region->base;
    if (offset >= 0 && (uint64_t)offset < m.region->bytes) {
      if (offset + bytes <= m.region->bytes) return m;
      fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset) + " of " +
           m.region->name + ", which has " + std::to_string(m.region->bytes) + here(pc));
    }
  }
  fail(std::string(what) + " outside of all tensors" + here(pc));
}

Cell* shared_cells(Cta& cta, unsigned at, unsigned bytes, const void* pc) {
  if (at + (uint64_t)bytes > cta.shared.size())
    fail("shared memory: " + std::to_string(bytes) + " bytes at " + std::to_string(at) + ", it has " +
         std::to_string(cta.shared.size()) + here(pc));
  return &cta.cells[at / CELL];
}

Cell* global_cells(Memory& m, const void* p) {
  return m.cells.empty() ? nullptr : &m.cells[((const unsigned char*)p - (const unsigned char*)m.region->base) / CELL];
}

static std::string place_of(const Cell* c) {
  for (const Memory& m : memories)
    if (!m.cells.empty() && c >= &m.cells.front() && c <= &m.cells.back())
      return std::string(m.region->name) + " byte " + std::to_string((c - &m.cells.front()) * CELL);
  for (const Launch& l : machine->launches)
    for (const Cta* cta : l.ctas)
      if (c >= &cta->cells.front() && c <= &cta->cells.back())
        return "shared memory of CTA " + std::to_string(cta->block) + " at " +
               std::to_string((c - &cta->cells.front()) * CELL);
  return "memory";
}

// "[site] " is made words of by who asked for the run: it knows the lines.
static std::string told(uint32_t site) {
  const Site& s = machine->sites[site];
  char text[160];
  snprintf(text, sizeof text, "{%llu|%d|%d|%d|%d|%d|%d,%d,%d,%d}", (unsigned long long)(uintptr_t)s.pc, s.launch, s.cta,
           s.warp, s.lane, s.op, s.at[0], s.at[1], s.at[2], s.at[3]);
  return text;
}

static std::set<Doubt> doubts;  // of the run before and of this one
static std::string first_doubt;

static uint64_t place_in_memory(const Cell* c) {
  for (size_t n = 0; n < memories.size(); ++n)
    if (!memories[n].cells.empty() && c >= &memories[n].cells.front() && c <= &memories[n].cells.back())
      return (uint64_t)n << 40 | (uint64_t)(c - &memories[n].cells.front()) * CELL / 16;
  return 0;
}

bool doubted(const void* p, int agent, uint32_t epoch) {
  if (doubts.empty()) return false;
  for (size_t n = 0; n < memories.size(); ++n) {
    const auto offset = (const unsigned char*)p - (const unsigned char*)memories[n].region->base;
    if (offset >= 0 && (uint64_t)offset < memories[n].region->bytes)
      return doubts.count({(uint64_t)n << 40 | (uint64_t)offset / 16, agent, epoch});
  }
  return false;
}

[[noreturn]] static void race(const Cell* c, const char* what, const Access& before, const char* earlier,
    const Toucher& who,
                              const char* why) {
  fail(std::string("race: ") + place_of(c) + ": " + what + " " + told(site_of(who.by, who.pc)) +
      " is not ordered after " +
       earlier + " " + told(before.site) + why);
}

static void doubt(const Cell* c, int agent, uint32_t epoch, const char* what, const char* earlier, uint32_t before,
                  const Toucher& who) {
  if (doubts.insert({place_in_memory(c), agent, epoch}).second && first_doubt.empty())
    first_doubt = std::string("race: ") + place_of(c) + ": " + what + " " + told(site_of(who.by, who.pc)) +
                  " is not ordered after " + earlier + " " + told(before) + ", and what was read is used";
}

static Section needed(bool global, uint16_t earlier, uint16_t now) {
  if (!(now & ASYNC)) return VISIBLE;
  return global ? GLOBAL : earlier & ASYNC ? VISIBLE : SHARED;
}

// Whether they touch one half each.
static bool apart(const Access& a, const Toucher& who) {
  return (a.kind & LOW && who.kind & HIGH) || (a.kind & HIGH && who.kind & LOW);
}

static bool seen(const Access& a, bool global, const Toucher& who) {
  if (a.kind & PENDING) return false;
  if (a.kind & who.kind & ATOMIC || apart(a, who)) return true;
  return knows(who.by, needed(global, a.kind, who.kind), a.agent, a.epoch);
}

static const char* reason(const Access& a, const Toucher& who) {
  if (a.kind & PENDING) return ": the copy has not been waited for";
  return who.kind & ASYNC && !(a.kind & ASYNC) && knows(who.by, VISIBLE, a.agent, a.epoch)
             ? ": no proxy fence stands between them"
             : "";
}

void read_cells(Cell* first, size_t count, bool global, const Toucher& who) {
  const uint32_t site = site_of(who.by, who.pc);
  Access good;  // the last write that was found to be seen
  for (Cell* c = first; c < first + count; ++c) {
    const Access& w = c->write;
    if (w.epoch && !(w.agent == good.agent && w.kind == good.kind && w.epoch <= good.epoch)) {
      const bool good_one = seen(w, global, who) || (c->also.epoch && seen(c->also, global, who));
      if (!good_one && who.kind & BOX && global) {
        doubt(c, who.agent, who.epoch, "read", "the write", w.site, who);
        continue;
      }
      if (!good_one) race(c, "read", w, "the write", who, reason(w, who));
      if (!c->also.epoch) good = w;
    }
    if (who.kind & ATOMIC) continue;  // a poll: whoever writes the word next need not have seen it
    const Access mine{who.epoch, who.agent, site, who.kind};
    Access* to = nullptr;
    for (Access& r : c->reads)
      if (!r.epoch || r.agent == who.agent) {
        to = &r;
        break;
      }
    if (!to) {
      if (!c->more) c->more = new std::vector<Access>;
      for (Access& r : *c->more)
        if (r.agent == who.agent) to = &r;
    }
    if (to) *to = mine;
    else c->more->push_back(mine);
  }
}

// A write after an asynchronous one, or after an atomic, need only be ordered after it: its bytes have been counted by
// a barrier, its value has come back.
static bool overwrites(const Access& a, bool global, const Toucher& who) {
  if (a.kind & who.kind & ATOMIC) return true;
  return a.kind & (ASYNC | ATOMIC) && !(a.kind & PENDING) ? knows(who.by, ORDERED, a.agent, a.epoch) : seen(a, global,
      who);
}

void write_cells(Cell* first, size_t count, bool global, const Toucher& who, bool same) {
  const uint32_t site = site_of(who.by, who.pc);
  Access good, read;
  const auto check = [&](Cell* c, const Access& r) {
    if (!r.epoch || (r.agent == read.agent && r.epoch <= read.epoch && r.kind == read.kind)) return;
    if (!(r.kind & who.kind & ATOMIC) && !(r.agent == who.agent) && !knows(who.by, ORDERED, r.agent, r.epoch)) {
      if (!(r.kind & BOX && global)) race(c, "write", r, "the read", who, "");
      doubt(c, r.agent, r.epoch, "write", "the read", r.site, who);
      return;
    }
    read = r;
  };
  for (Cell* c = first; c < first + count; ++c) {
    const Access& w = c->write;
    if (w.epoch && !(w.agent == good.agent && w.kind == good.kind && w.epoch <= good.epoch)) {
      if (!overwrites(w, global, who)) {
        if (!same) race(c, "write", w, "the write", who, reason(w, who));
        c->also = {who.epoch, who.agent, site, who.kind};
        continue;
      }
      good = w;
    }
    c->also.epoch = 0;
    for (Access& r : c->reads)
      if (!apart(r, who)) check(c, r), r.epoch = 0;
    if (c->more) {
      std::vector<Access> left;  // of the other half
      for (const Access& r : *c->more) {
        if (apart(r, who)) left.push_back(r);
        else check(c, r);
      }
      if (left.empty()) delete c->more, c->more = nullptr;
      else c->more->swap(left);
    }
    c->write = {who.epoch, who.agent, site, who.kind};
  }
}

void count_word(Word& w, const Toucher& who) {
  const Access mine{who.epoch, who.agent, site_of(who.by, who.pc), who.kind};
  for (Access& a : w.counts)
    if (a.agent == who.agent) {
      a = mine;
      return;
    }
  w.counts.push_back(mine);
}

// A count that nobody has heard of may arrive later than what the word is set to, and stay in it.
void set_word(Word& w, const Cell* c, const Toucher& who) {
  for (const Access& a : w.counts)
    if (!knows(who.by, ORDERED, a.agent, a.epoch)) race(c, "write", a, "the count", who, "");
  w.counts.clear();
}

// Of the run that ends: whether its bulk copies read what may have been written meanwhile, and where first.
std::string doubts_of_run() {
  std::string found;
  found.swap(first_doubt);
  return found;
}
void forget_doubts() { doubts.clear(), first_doubt.clear(); }
}  // namespace emu
