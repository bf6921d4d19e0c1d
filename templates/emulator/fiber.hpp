// A CUDA thread as a fiber: a stack of its own, and a switch of a few nanoseconds.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
// emu_switch(from, to): keeps what a call must keep on this stack, and its pointer in *from;
// goes on with the stack `to`.
extern "C" void emu_switch(void** from, void* to);
asm(R"(
.text
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#include <ucontext.h>
#endif

namespace emu {
class Fiber {
 public:
  static constexpr size_t STACK = 1 << 17;

  void start(char* stack, void (*entry)()) {
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(stack + STACK - 64);  // 16-byte aligned as after a call
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int n = 0; n < 6; ++n) *--top = nullptr;
    at_ = top;
#else
    getcontext(&at_);
    at_.uc_stack.ss_sp = stack, at_.uc_stack.ss_size = STACK, at_.uc_link = nullptr;
    makecontext(&at_, entry, 0);
#endif
  }
  // From this one to another.
  void go(Fiber& to) {
#if defined(__x86_64__)
    emu_switch(&at_, to.at_);
#else
    swapcontext(&at_, &to.at_);
#endif
  }

 private:
#if defined(__x86_64__)
  void* at_ = nullptr;
#else
  ucontext_t at_;
#endif
};

inline char* stacks(size_t count) {
  void* const p = mmap(nullptr, count * Fiber::STACK, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}
}  // namespace emu
