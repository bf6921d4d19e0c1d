// Vector clocks: what an agent knows to have happened.
//
// Agents are CUDA threads and what works beside them: an mbarrier's copies, a thread's bulk stores, a group's wgmma.
// A clock holds one number of each agent in five sections, for what has happened need not be visible to all:
//   ORDERED  it has happened: an earlier read cannot see a later write
//   VISIBLE  a write of it is seen by loads of threads, the generic proxy
//   FENCED   a write of it to global memory has been fenced by itself (fence.proxy.async.global), or is a bulk store
//   GLOBAL   such a write is seen by the async proxy: who has acquired it has fenced as well. PTX gives no complete
//            rule for how a generic write becomes visible to another CTA's bulk copy: kernels keep both fences, and
//            both are asked for here
//   SHARED   a write of it to shared memory is seen by the async proxy (fence.proxy.async.shared::cta)
// (PTX ISA: memory consistency model, causality order; proxies.)
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emu {
enum Section { ORDERED, VISIBLE, FENCED, GLOBAL, SHARED, SECTIONS };

inline int agents;  // of this run

// A clock is made of blocks, and blocks are shared by all who know the same: lanes of a warp mostly do.
struct Block {
  static constexpr int SIZE = 64;
  int holders;
  uint32_t at[SIZE];

  static Block* zero() {
    Block* const b = static_cast<Block*>(calloc(1, sizeof(Block)));
    b->holders = 1;
    return b;
  }
  Block* held() {
    ++holders;
    return this;
  }
  void drop() {
    if (--holders == 0) free(this);
  }
  bool covers(const Block& other) const {
    uint32_t missing = 0;
    for (int n = 0; n < SIZE; ++n) missing |= at[n] < other.at[n];
    return !missing;
  }
};

// One's own to change: `b`, or a copy of it.
inline Block* own(Block*& b) {
  if (!b) return b = Block::zero();
  if (b->holders == 1) return b;
  Block* const copy = static_cast<Block*>(malloc(sizeof(Block)));
  memcpy(copy, b, sizeof(Block)), copy->holders = 1;
  b->drop();
  return b = copy;
}

// a = max(a, b)
inline void join(Block*& a, Block* b) {
  if (a == b || !b) return;
  if (!a) {
    a = b->held();
  } else if (!a->covers(*b)) {
    if (b->covers(*a)) {
      a->drop(), a = b->held();
    } else {
      Block* const mine = own(a);
      for (int n = 0; n < Block::SIZE; ++n) mine->at[n] = mine->at[n] > b->at[n] ? mine->at[n] : b->at[n];
    }
  }
}

struct ClockData {
  int holders;
  Block* blocks[1];  // [section][agent / SIZE]
};

class Clock {
 public:
  Clock() = default;
  Clock(const Clock& other) : data_(other.data_) {
    if (data_) ++data_->holders;
  }
  Clock(Clock&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Clock& operator=(Clock other) noexcept {
    ClockData* const mine = data_;
    data_ = other.data_, other.data_ = mine;
    return *this;
  }
  ~Clock() {
    if (!data_ || --data_->holders) return;
    for (int n = 0; n < SECTIONS * width(); ++n)
      if (data_->blocks[n]) data_->blocks[n]->drop();
    free(data_);
  }
  uint32_t get(Section s, int agent) const {
    const Block* const b = data_ ? data_->blocks[s * width() + agent / Block::SIZE] : nullptr;
    return b ? b->at[agent % Block::SIZE] : 0;
  }
  bool same(const Clock& other) const { return data_ == other.data_; }
  void raise(Section s, int agent, uint32_t to) {
    if (get(s, agent) < to) emu::own(mine()->blocks[s * width() + agent / Block::SIZE])->at[agent % Block::SIZE] = to;
  }
  // Sections [from, to) of the other.
  void join(const Clock& other, int from = ORDERED, int to = SECTIONS) {
    if (!other.data_ || data_ == other.data_) return;
    if (!data_ && from == ORDERED && to == SECTIONS) {
      *this = other;
      return;
    }
    ClockData* const a = mine();
    for (int n = from * width(); n < to * width(); ++n) emu::join(a->blocks[n], other.data_->blocks[n]);
  }
  // What has happened by section `from` is seen by the async proxy too.
  void fence(Section s, Section from) {
    if (!data_) return;
    ClockData* const a = mine();
    for (int n = 0; n < width(); ++n) emu::join(a->blocks[s * width() + n], a->blocks[from * width() + n]);
  }

 private:
  static int width() { return (agents + Block::SIZE - 1) / Block::SIZE; }
  ClockData* mine() {
    const size_t bytes = sizeof(ClockData) + sizeof(Block*) * SECTIONS * width();
    if (data_ && data_->holders == 1) return data_;
    ClockData* const copy = static_cast<ClockData*>(data_ ? malloc(bytes) : calloc(1, bytes));
    if (data_) {
      memcpy(copy, data_, bytes), --data_->holders;
      for (int n = 0; n < SECTIONS * width(); ++n)
        if (copy->blocks[n]) ++copy->blocks[n]->holders;
    }
    copy->holders = 1;
    return data_ = copy;
  }
  ClockData* data_ = nullptr;
};
}  // namespace emu
