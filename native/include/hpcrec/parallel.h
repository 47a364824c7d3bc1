// How a kernel uses threads: as many as the calling thread has asked for, by fixed splits of the work.
// No kernel's bits depend on the number of threads: each output is computed by one thread, in one order.
#pragma once
#ifdef HPCREC_STD_THREADS
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace hpcrec {

// Threads that the kernel calls of this (calling) thread use; 1 until set.
int threads();
void set_threads(int n);

// Threads for `work` element operations: one where a team would cost more than it saves, else all. Never a few: the
// runtime ends the threads that a smaller team leaves out, and starts them again for the next large one.
inline int team(int64_t work) {
  constexpr int64_t grain = 4096;
  return work < grain * threads() ? 1 : threads();
}

// Calls f(member, members) on each of n threads. HPCREC_STD_THREADS: without OpenMP, for ThreadSanitizer.
template <class F> void parallel(int n, F&& f) {
  if (n <= 1) {
    f(0, 1);
    return;
  }
#ifdef HPCREC_STD_THREADS
  std::vector<std::thread> others;
  for (int member = 1; member < n; ++member) others.emplace_back([&f, member, n] { f(member, n); });
  f(0, n);
  for (std::thread& other : others) other.join();
#else
#pragma omp parallel num_threads(n)
  f(omp_get_thread_num(), omp_get_num_threads());
#endif
}

// Pieces that parallel_pieces cuts work into.
inline int pieces_of(int n) {
  return n <= 1 ? 1 : 4 * n;
}

// Calls f(piece, pieces) for each piece, on n threads, each taking the next piece when it is free: a core that
// is shared with something else (a progress thread) then does less instead of being waited for.
template <class F> void parallel_pieces(int n, F&& f) {
  const int pieces = pieces_of(n);
  std::atomic<int> next{0};
  parallel(n, [&](int, int) {
    for (int piece = next++; piece < pieces; piece = next++) f(piece, pieces);
  });
}

struct Range {
  int64_t first, last;
};

// Contiguous share of [0, n) of a member, or of a piece.
inline Range share(int64_t n, int member, int members) {
  return {n * member / members, n * (member + 1) / members};
}

// Member's share of the n bags that `offsets` bounds, by ids (plus one a bag) rather than by bags.
inline Range share_bags(const int64_t* offsets, int64_t n, int member, int members) {
  // Offsets may be anything here: they are added as what cannot overflow, and looked at by the kernel.
  auto work = [&](int64_t v) {
    return static_cast<int64_t>(static_cast<uint64_t>(offsets[v]) - static_cast<uint64_t>(offsets[0]) + v);
  };
  const uint64_t total = static_cast<uint64_t>(work(n));
  auto cut = [&](int64_t goal) {
    int64_t low = 0, high = n;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work(middle) < goal) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  auto goal_of = [&](int m) { return static_cast<int64_t>(total * m) / members; };
  return {member == 0 ? 0 : cut(goal_of(member)), member + 1 == members ? n : cut(goal_of(member + 1))};
}

}  // namespace hpcrec
