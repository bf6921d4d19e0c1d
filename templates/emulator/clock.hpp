// Vector clocks: what an agent knows to have happened.
//
// Agents are CUDA threads and what works beside them: an mbarrier's copies, a thread's bulk stores, a warpgroup's wgmma.
// A clock holds one number of each agent in four sections, for what has happened need not be visible to all:
//   ORDERED  it has happened: an earlier read cannot see a later write
//   VISIBLE  a write of it is seen by loads of threads, the generic proxy
//   GLOBAL   a generic write of it to global memory is seen by the async proxy as well (fence.proxy.async.global)
//   SHARED   the same for shared memory (fence.proxy.async.shared::cta)
// (PTX ISA: memory consistency model, causality order; proxies.)
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emu {
enum Section { ORDERED, VISIBLE, GLOBAL, SHARED, SECTIONS };

inline int agents;  // of this run

// Shared by all who know the same; changed only while one holds it.
struct ClockData {
  int holders;
  uint32_t at[1];  // [section][agent]
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
    if (data_ && --data_->holders == 0) free(data_);
  }
  uint32_t get(Section s, int agent) const { return data_ ? data_->at[s * agents + agent] : 0; }
  bool same(const Clock& other) const { return data_ == other.data_; }
  void raise(Section s, int agent, uint32_t to) {
    if (get(s, agent) < to) own()->at[s * agents + agent] = to;
  }
  void join(const Clock& other) { join(other, ORDERED, SECTIONS); }
  // Sections [from, to) of the other.
  void join(const Clock& other, int from, int to) {
    if (!other.data_ || data_ == other.data_) return;
    if (!data_ && from == ORDERED && to == SECTIONS) {
      *this = other;
      return;
    }
    const uint32_t* const b = other.data_->at;
    if (data_ && covers(b, from * agents, to * agents)) return;
    uint32_t* const a = own()->at;
    for (int n = from * agents; n < to * agents; ++n) a[n] = a[n] > b[n] ? a[n] : b[n];
  }
  // What is VISIBLE is seen by the async proxy too.
  void fence(Section s) {
    if (!data_) return;
    uint32_t* const a = own()->at;
    for (int n = 0; n < agents; ++n) {
      const uint32_t seen = a[VISIBLE * agents + n];
      if (a[s * agents + n] < seen) a[s * agents + n] = seen;
    }
  }

 private:
  bool covers(const uint32_t* b, int from, int to) const {
    uint32_t missing = 0;
    for (int n = from; n < to; ++n) missing |= data_->at[n] < b[n];
    return !missing;
  }
  ClockData* own() {
    const size_t bytes = sizeof(ClockData) + sizeof(uint32_t) * SECTIONS * agents;
    if (data_ && data_->holders == 1) return data_;
    ClockData* const copy = static_cast<ClockData*>(data_ ? malloc(bytes) : calloc(1, bytes));
    if (data_) memcpy(copy, data_, bytes), --data_->holders;
    copy->holders = 1;
    return data_ = copy;
  }
  ClockData* data_ = nullptr;
};
}  // namespace emu
