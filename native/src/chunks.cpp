// Chunks by their addresses: read into a buffer that stays in the second-level cache, summed and converted there.
#include "hpcrec/chunks.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

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

// Numbers as the caller has them, and whether they are where they may be; both are the output's to say.
struct Output {
  bool widen;      // int32 to int64
  uint64_t limit;  // 0: any

  // Whether all of n numbers of 8 bytes are below the limit.
  bool allowed(const uint8_t* numbers, int64_t n) const {
    return limit == 0 || all_below(reinterpret_cast<const int64_t*>(numbers), n, static_cast<int64_t>(limit));
  }

  bool place(const uint8_t* from, int64_t n_bytes, uint8_t* to) const {
    if (!widen) {
      std::memcpy(to, from, n_bytes);
      return allowed(to, n_bytes / 8);
    }
    const auto* narrow = reinterpret_cast<const int32_t*>(from);
    auto* wide = reinterpret_cast<int64_t*>(to);
    // Negative numbers are from 2^31 on.
    const auto bound = static_cast<uint32_t>(limit ? std::min(limit, uint64_t{1} << 31) : 0);
    uint32_t outside = 0;
    for (int64_t i = 0; i < n_bytes / 4; ++i) {
      wide[i] = narrow[i];
      outside |= static_cast<uint32_t>(static_cast<uint32_t>(narrow[i]) >= bound);
    }
    return limit == 0 || !outside;
  }
};

enum class Found { right, wrong, nothing };

// Bytes [low, high) of one chunk.
Found read_chunk(const Chunked& from, int64_t chunk, int64_t chunk_bytes, int64_t low, int64_t high,
                 const Output& output, uint8_t* out) {
  const bool check = !from.checked[chunk];
  if (!check && !output.widen) {
    if (!read_all(from.file, out, high - low, from.at[chunk] + low)) return Found::nothing;
    return output.allowed(out, (high - low) / 8) ? Found::right : Found::wrong;
  }
  uint8_t* const memory = buffer();
  Fletcher found;
  bool right = true;
  const int64_t end = check ? chunk_bytes : high;
  for (int64_t at = check ? 0 : low; at < end; at += block_bytes) {
    const int64_t n = std::min(block_bytes, end - at);
    const int64_t more = check && at + n == end ? checksum_bytes : 0;
    if (!read_all(from.file, memory, n + more, from.at[chunk] + at)) return Found::nothing;
    if (check) found.add(memory, n);
    const int64_t first = std::max(at, low), last = std::min(at + n, high);
    if (first < last)
      right &= output.place(memory + (first - at), last - first, out + (first - low) * (output.widen ? 2 : 1));
    if (more && found.value() != little_endian(memory + n)) return Found::nothing;
  }
  if (check) from.checked[chunk] = 1;
  return right ? Found::right : Found::wrong;
}

bool read_piece(const Chunked& from, const Wanted& piece, const Output& output, uint8_t* out) {
  bool right = true;
  for (int64_t number = piece.start, left = piece.n; left > 0;) {
    const int64_t low = number % piece.items, n = std::min(left, piece.items - low);
    const Found found = read_chunk(from, piece.first + number / piece.items, piece.items * piece.item_bytes,
                                   low * piece.item_bytes, (low + n) * piece.item_bytes, output, out);
    if (found == Found::nothing) return false;
    right &= found == Found::right;
    out += n * piece.item_bytes * (output.widen ? 2 : 1);
    number += n, left -= n;
  }
  return right;
}

constexpr int64_t last_byte = int64_t{1} << 62;

void check(const Chunked& from, const Wanted& piece, int64_t i, int64_t room, int64_t out_item_bytes) {
  const auto refuse = [i](const char* found) {
    throw std::invalid_argument("wanted[" + std::to_string(i) + "]: " + found);
  };
  if (piece.first < 0 || piece.chunks < 0 || piece.first > from.n || piece.chunks > from.n - piece.first)
    refuse("its chunks are not among those of the file");
  if (piece.items < 1 || piece.items > INT32_MAX) refuse("a chunk has no numbers, or too many");
  if (piece.item_bytes != out_item_bytes && (piece.item_bytes != 4 || out_item_bytes != 8))
    refuse("its numbers are neither as long as those of out, nor int32 for int64");
  if (piece.limit < 0 || (piece.limit > 0 && out_item_bytes != 8)) refuse("it has a limit that numbers cannot have");
  if (piece.n < 0 || piece.n > room) refuse("there is not as much room in out");
  if (piece.start < 0 || piece.start > last_byte ||
      (piece.n > 0 && (piece.start + piece.n - 1) / piece.items >= piece.chunks))
    refuse("its numbers are not in its chunks");
  if (piece.n > 0) {
    const int64_t low = piece.start / piece.items, high = (piece.start + piece.n - 1) / piece.items + 1;
    require_below("chunk_at", from.at + piece.first + low, high - low, last_byte);
  }
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

int64_t read_chunks(const Chunked& from, const Wanted* wanted, int64_t n, uint8_t* out, int64_t out_items,
                    int64_t out_item_bytes) {
  int64_t room = out_items;
  for (int64_t i = 0; i < n; ++i) {
    check(from, wanted[i], i, room, out_item_bytes);
    room -= wanted[i].n;
  }
  if (room) throw std::invalid_argument("wanted: out has room for more numbers");
  for (int64_t i = 0; i < n; ++i) {
    const Output output{wanted[i].item_bytes != out_item_bytes, static_cast<uint64_t>(wanted[i].limit)};
    if (!read_piece(from, wanted[i], output, out)) return i;
    out += wanted[i].n * out_item_bytes;
  }
  return n;
}

}  // namespace hpcrec
