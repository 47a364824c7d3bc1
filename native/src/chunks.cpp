// Chunks by their addresses: read into a buffer that stays in the second-level cache, summed and converted there.
#include "hpcrec/chunks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "hpcrec/check.h"

namespace hpcrec {
namespace {

constexpr uint64_t modulus = 0xFFFF;

// Two little-endian words of 16 bits a lane, summed apart.
typedef uint32_t Lanes __attribute__((vector_size(32)));
constexpr int n_lanes = 8, n_vectors = 2;
constexpr int step_words = 2 * n_lanes * n_vectors;
constexpr int64_t step_bytes = 2 * step_words;
// Steps until a lane is emptied: with n of them its sum of sums is at most n (n + 1) / 2 * 0xFFFF, below 2^32.
constexpr int64_t block_steps = 256;

struct Sums {
  uint64_t sum, sum_of_sums;
};

// Word i of a block of w words is in the sum of sums w - i times.
Sums sum_block(const uint8_t* data, int64_t steps) {
  Lanes low[n_vectors] = {}, high[n_vectors] = {}, lows[n_vectors] = {}, highs[n_vectors] = {};
  for (int64_t step = 0; step < steps; ++step, data += step_bytes) {
#pragma GCC unroll 2
    for (int v = 0; v < n_vectors; ++v) {
      Lanes x;
      std::memcpy(&x, data + v * sizeof x, sizeof x);
      low[v] += x & static_cast<uint32_t>(modulus);
      lows[v] += low[v];
      high[v] += x >> 16;
      highs[v] += high[v];
    }
  }
  Sums out{0, 0};
  // A lane's own sum of sums counts its word of step j (steps - j) times: each is step_words, less its place in one.
  for (int v = 0; v < n_vectors; ++v)
    for (int lane = 0; lane < n_lanes; ++lane) {
      const uint64_t place = 2 * (v * n_lanes + lane), first = low[v][lane], second = high[v][lane];
      out.sum += first + second;
      out.sum_of_sums += step_words * (static_cast<uint64_t>(lows[v][lane]) + highs[v][lane]);
      out.sum_of_sums -= place * first + (place + 1) * second;
    }
  return out;
}

bool read_all(int file, uint8_t* to, int64_t n, int64_t at) {
  while (n > 0) {
    const ssize_t got = ::pread(file, to, static_cast<size_t>(n), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got, n -= got, at += got;
  }
  return true;
}

constexpr int64_t block_bytes = 1 << 17, checksum_bytes = 4;

uint8_t* buffer() {
  thread_local std::unique_ptr<uint8_t[]> memory(new uint8_t[block_bytes + checksum_bytes]);
  return memory.get();
}

uint32_t little_endian(const uint8_t* p) {
  return p[0] | p[1] << 8 | p[2] << 16 | static_cast<uint32_t>(p[3]) << 24;
}

void place(const uint8_t* from, int64_t n_bytes, bool widen, uint8_t* to) {
  if (!widen) {
    std::memcpy(to, from, n_bytes);
    return;
  }
  const auto* narrow = reinterpret_cast<const int32_t*>(from);
  auto* wide = reinterpret_cast<int64_t*>(to);
  for (int64_t i = 0; i < n_bytes / 4; ++i) wide[i] = narrow[i];
}

// Bytes [low, high) of one chunk.
bool read_chunk(const Chunked& from, int64_t chunk, int64_t low, int64_t high, bool widen, uint8_t* out) {
  const bool check = from.checked && !from.checked[chunk];
  if (!check && !widen) return read_all(from.file, out, high - low, from.at[chunk] + low);
  uint8_t* const memory = buffer();
  Fletcher found;
  const int64_t end = check ? from.items * from.item_bytes : high;
  for (int64_t at = check ? 0 : low; at < end; at += block_bytes) {
    const int64_t n = std::min(block_bytes, end - at);
    const int64_t more = check && at + n == end ? checksum_bytes : 0;
    if (!read_all(from.file, memory, n + more, from.at[chunk] + at)) return false;
    if (check) found.add(memory, n);
    const int64_t first = std::max(at, low), last = std::min(at + n, high);
    if (first < last) place(memory + (first - at), last - first, widen, out + (first - low) * (widen ? 2 : 1));
    if (more && found.value() != little_endian(memory + n)) return false;
  }
  if (check) from.checked[chunk] = 1;
  return true;
}

}  // namespace

void Fletcher::add(const uint8_t* data, int64_t n) {
  const auto join = [this](Sums block, int64_t words) {
    any_ = any_ || block.sum != 0;
    sum_of_sums_ = (sum_of_sums_ + sum_ * (static_cast<uint64_t>(words) % modulus) + block.sum_of_sums) % modulus;
    sum_ = (sum_ + block.sum) % modulus;
  };
  while (n >= step_bytes) {
    const int64_t steps = std::min(block_steps, n / step_bytes);
    join(sum_block(data, steps), steps * step_words);
    data += steps * step_bytes, n -= steps * step_bytes;
  }
  for (; n > 0; data += 2, n -= 2) {
    const uint64_t word = data[0] | (n > 1 ? data[1] << 8 : 0);
    join({word, word}, 1);
  }
}

uint32_t Fletcher::value() const {
  // HDF5 sums big-endian words. To swap the bytes of a word is to multiply it by 2^8, modulo 2^16 - 1.
  const auto folded = [this](uint64_t sum) {
    const auto swapped = static_cast<uint32_t>((sum << 8) % modulus);
    return any_ && swapped == 0 ? static_cast<uint32_t>(modulus) : swapped;
  };
  return folded(sum_of_sums_) << 16 | folded(sum_);
}

bool read_chunks(const Chunked& from, int64_t start, int64_t n, bool widen, uint8_t* out) {
  if (n == 0) return true;
  const int64_t first = start / from.items, last = (start + n - 1) / from.items;
  require_below("chunk_at", from.at + first, last - first + 1, int64_t{1} << 62);
  for (int64_t chunk = first; chunk <= last; ++chunk) {
    const int64_t base = chunk * from.items;
    const int64_t low = std::max(start - base, int64_t{0}), high = std::min(start + n - base, from.items);
    if (!read_chunk(from, chunk, low * from.item_bytes, high * from.item_bytes, widen, out)) return false;
    out += (high - low) * from.item_bytes * (widen ? 2 : 1);
  }
  return true;
}

}  // namespace hpcrec
