// What the memory allows: the least loops that touch the rows which a kernel must touch, and do nothing else.
// Compiled by benchmarks/_limits.py. Every loop is run with several prefetch distances and thread splits by its caller,
// which takes the fastest: a limit is what the machine can do, not what one setting of a loop reaches.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {
typedef float Lanes __attribute__((vector_size(64)));

// Asks for all lines of a row.
template <int BYTES, bool WRITE> inline void ask(const char* row) {
#pragma GCC unroll 16
  for (int at = 0; at < BYTES; at += 64) __builtin_prefetch(row + at, WRITE, 3);
}

// The rows index[0..n) summed into registers.
template <int BYTES> float read_some(const char* rows, const int64_t* index, int64_t n, int64_t ahead) {
  constexpr int n_parts = BYTES / 64;
  Lanes sums[n_parts] = {};
  for (int64_t k = 0; k < std::min(ahead, n); ++k) ask<BYTES, false>(rows + index[k] * BYTES);
  for (int64_t k = 0; k < n; ++k) {
    ask<BYTES, false>(rows + index[std::min(k + ahead, n - 1)] * BYTES);
    const char* row = rows + index[k] * BYTES;
#pragma GCC unroll 16
    for (int i = 0; i < n_parts; ++i) {
      Lanes x;
      std::memcpy(&x, row + 64 * i, 64);
      sums[i] += x;
    }
  }
  float total = 0;
  for (const Lanes& sum : sums)
    for (int i = 0; i < 16; ++i) total += sum[i];
  return total;
}

// Rows index[0..n), and one value each, read and written: x becomes x + step.
template <int BYTES>
void touch_some(char* rows, float* state, const int64_t* index, int64_t n, int64_t ahead, float step) {
  auto ask_both = [&](int64_t row) {
    ask<BYTES, true>(rows + row * BYTES);
    __builtin_prefetch(state + row, 1, 3);
  };
  for (int64_t k = 0; k < std::min(ahead, n); ++k) ask_both(index[k]);
  for (int64_t k = 0; k < n; ++k) {
    ask_both(index[std::min(k + ahead, n - 1)]);
    char* row = rows + index[k] * BYTES;
    state[index[k]] += step;
#pragma GCC unroll 16
    for (int i = 0; i < BYTES / 64; ++i) {
      Lanes x;
      std::memcpy(&x, row + 64 * i, 64);
      x += step;
      std::memcpy(row + 64 * i, &x, 64);
    }
  }
}

// Calls f(first, count) for each piece of [0, n), pieces taken by whichever of the threads is free.
template <class F> void pieces(int64_t n, int n_threads, F&& f) {
  const int count = n_threads == 1 ? 1 : 8 * n_threads;
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, 1)
  for (int piece = 0; piece < count; ++piece) {
    const int64_t first = n * piece / count;
    f(first, n * (piece + 1) / count - first);
  }
}

template <class F> bool with_bytes(int64_t bytes, F&& f) {
  if (bytes == 64) f(std::integral_constant<int, 64>{});
  else if (bytes == 256) f(std::integral_constant<int, 256>{});
  else return false;
  return true;
}
}  // namespace

extern "C" {

// Reads n rows of `bytes` (64 or 256) in the order of index; the sum keeps the compiler from leaving the reads out.
bool read_rows(const char* rows, const int64_t* index, int64_t n, int64_t bytes, int64_t ahead, int n_threads,
               float* sum) {
  float total = 0;
  const bool known = with_bytes(bytes, [&](auto size) {
    pieces(n, n_threads, [&](int64_t first, int64_t count) {
      const float part = read_some<decltype(size)::value>(rows, index + first, count, ahead);
#pragma omp atomic
      total += part;
    });
  });
  *sum = total;
  return known;
}

// Reads and writes n distinct rows of `bytes` (64 or 256) and one state of each, in the order of index.
bool touch_rows(char* rows, float* state, const int64_t* index, int64_t n, int64_t bytes, int64_t ahead, int n_threads,
                float step) {
  return with_bytes(bytes, [&](auto size) {
    pieces(n, n_threads, [&](int64_t first, int64_t count) {
      touch_some<decltype(size)::value>(rows, state, index + first, count, ahead, step);
    });
  });
}

// Copies `bytes`, a multiple of 64: what a byte read and written in order costs.
void copy_bytes(const char* from, char* to, int64_t bytes, int n_threads) {
  pieces(bytes / 64, n_threads, [&](int64_t first, int64_t count) {
    std::memcpy(to + 64 * first, from + 64 * first, static_cast<size_t>(64 * count));
  });
}
}
