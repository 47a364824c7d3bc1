#include "emulator.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hpcrec::emulated {

Place here;

namespace {

constexpr size_t stack_bytes = 256 * 1024;
constexpr unsigned most_threads = 1024;

#ifdef __x86_64__
// Changes stacks, and keeps what a call has to: swapcontext would ask the kernel for the signal mask each time.
extern "C" void hpcrec_emulated_switch(void** from, void* to);
asm(R"(
.text
.type hpcrec_emulated_switch, @function
hpcrec_emulated_switch:
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
.size hpcrec_emulated_switch, . - hpcrec_emulated_switch
)");
struct Context {
  void* stack = nullptr;

  void prepare(char* memory, void (*entry)()) {
    // As if `entry` had been called: it finds its own return address, which it never takes, above an aligned frame.
    auto* top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(memory) + stack_bytes) & ~uintptr_t{15});
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    stack = top;
  }
  void change_to(Context& other) { hpcrec_emulated_switch(&stack, other.stack); }
};
#else
struct Context {
  ucontext_t context;

  void prepare(char* memory, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = memory;
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void change_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

// Runs one thread of a block after the other, for as long as no kernel breaks off.
struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack{new char[stack_bytes]};
  bool ended = true;
};

// Who has come to a meeting. Threads only go forward, so each look goes on where the one before ended.
struct Roll {
  uint64_t complete = 0;  // meetings that all have come to
  unsigned next = 0;      // threads before it have come to the meeting after those, or need not

  template <class Absent> bool all_came(uint64_t meeting, unsigned n_threads, const Absent& absent) {
    if (meeting <= complete) return true;
    for (; next < n_threads; ++next)
      if (absent(next)) return false;
    complete = meeting;
    next = 0;
    return true;
  }
};

// One meeting of the lanes of a mask. A lane can be one meeting ahead of another at most, so two sets of values do.
struct Meeting {
  uint64_t values[2][warp_lanes] = {};
  uint64_t entered[warp_lanes] = {};  // meetings that a lane has come to
  Roll roll;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  Context scheduler;
  unsigned current = 0, n = 0;
  uint64_t progress = 0;                              // grows when a thread gets past a wait, or ends
  std::vector<uint64_t> barriers;                     // that a thread has come to
  Roll roll;                                          // of the barriers
  std::vector<std::map<unsigned, Meeting>> meetings;  // of each warp, by mask
  const std::function<void()>* body = nullptr;
  std::exception_ptr error;
};
Block block;
std::mutex busy;

void yield() {
  block.fibers[block.current]->context.change_to(block.scheduler);
}

void fiber_main() {
  for (;;) {
    try {
      (*block.body)();
    } catch (...) {
      block.error = std::current_exception();
    }
    block.fibers[block.current]->ended = true;
    ++block.progress;
    yield();
  }
}

void run_block(unsigned n_threads, bool reversed) {
  while (block.fibers.size() < n_threads) {
    block.fibers.emplace_back(new Fiber);
    block.fibers.back()->context.prepare(block.fibers.back()->stack.get(), fiber_main);
  }
  block.n = n_threads;
  block.barriers.assign(n_threads, 0);
  block.roll = {};
  block.meetings.assign((n_threads + warp_lanes - 1) / warp_lanes, {});
  for (unsigned t = 0; t < n_threads; ++t) block.fibers[t]->ended = false;
  for (unsigned left = n_threads; left > 0;) {
    const uint64_t before = block.progress;
    for (unsigned i = 0; i < n_threads; ++i) {
      const unsigned t = reversed ? n_threads - 1 - i : i;
      Fiber& fiber = *block.fibers[t];
      if (fiber.ended) continue;
      block.current = t;
      here.thread = {t, 0, 0};
      block.scheduler.change_to(fiber.context);
      if (block.error) std::rethrow_exception(std::exchange(block.error, nullptr));
      left -= fiber.ended;
    }
    if (left > 0 && block.progress == before)
      throw std::logic_error("emulated kernel: " + std::to_string(left) + " of " + std::to_string(n_threads) +
                             " threads of block " + std::to_string(here.block.x) +
                             " wait at a barrier that the others do not come to");
  }
}

}  // namespace

void run(dim3 grid, dim3 threads, const std::function<void()>& body) {
  const std::lock_guard<std::mutex> alone(busy);
  const char* order = std::getenv("HPCREC_EMULATED_ORDER");
  const bool reversed = order && std::string(order) == "reversed";
  if (threads.x > most_threads || threads.y != 1 || threads.z != 1)
    throw std::logic_error("emulated kernel: blocks are of at most 1024 threads, in one dimension");
  block.body = &body;
  here.block_dim = threads;
  here.grid_dim = grid;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        here.block = {reversed ? grid.x - 1 - x : x, y, z};
        try {
          run_block(threads.x, reversed);
        } catch (...) {
          block.fibers.clear();  // they are in the middle of the kernel
          throw;
        }
      }
}

void block_barrier() {
  const unsigned me = block.current;
  const uint64_t mine = ++block.barriers[me];
  ++block.progress;
  // As CUDA has it, threads that have ended are not waited for.
  const auto absent = [&](unsigned t) { return !block.fibers[t]->ended && block.barriers[t] < mine; };
  while (!block.roll.all_came(mine, block.n, absent)) yield();
  ++block.progress;
}

const uint64_t* exchange(unsigned mask, uint64_t value) {
  const unsigned me = block.current, lane = me % warp_lanes, first = me - lane;
  if (!(mask >> lane & 1)) throw std::logic_error("emulated kernel: a lane is not in the mask that it gave");
  Meeting& meeting = block.meetings[me / warp_lanes][mask];
  const uint64_t mine = ++meeting.entered[lane];
  meeting.values[mine & 1][lane] = value;
  ++block.progress;
  const auto absent = [&](unsigned i) { return (mask >> i & 1) && meeting.entered[i] < mine; };
  while (!meeting.roll.all_came(mine, std::min(warp_lanes, block.n - first), absent)) yield();
  ++block.progress;
  return meeting.values[mine & 1];
}

void run_wrong(int which) {
  run({1, 1, 1}, {64, 1, 1}, [which] {
    const unsigned t = here.thread.x;
    if (which == 0 && t % 2 == 0) return;
    if (which == 0) exchange(0xffffffffu, t);
    if (which == 1 && t == 3) return;
    if (which == 1) exchange(0xffffffffu, t);
    if (which == 2) exchange(t == 5 ? 1u : ~0u, t);
  });
}

}  // namespace hpcrec::emulated
