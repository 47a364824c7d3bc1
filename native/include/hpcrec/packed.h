// Numbers packed to as many bits as the largest of each block takes. See hpcrec/kernels/reference_packed.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hpcrec {

constexpr int64_t packed_block = 128;     // numbers that share a width
constexpr int64_t most_packed_bits = 56;  // of a number: with the up to 7 bits before it, a word of 64
constexpr int64_t whole_word_bits = 64;   // of each number of a block that has one of more bits

inline int64_t packed_blocks(int64_t n) {
  return (n + packed_block - 1) / packed_block;
}

// Bytes of n numbers packed; and packed as what lies between them.
struct PackedBytes {
  int64_t plain, rising;
};
PackedBytes packed_bytes(const int64_t* numbers, int64_t n);
// Packs them into out, which has to be as long as `packed_bytes` says.
void pack_numbers(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, int64_t size);
// Packs them from `out` on and returns where they end; null where that is behind `end`. What lies between there and
// `end` may be overwritten.
uint8_t* append_packed(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, const uint8_t* end);
// Bits that each of n numbers takes where they share a width.
int64_t packed_width(const int64_t* numbers, int64_t n, bool rising);
void unpack_numbers(const uint8_t* packed, int64_t size, int64_t n, bool rising, int64_t* out);

// Whether blocks have numbers of so many bits.
inline bool is_packed_width(int64_t bits) {
  return bits >= 0 && (bits <= most_packed_bits || bits == whole_word_bits);
}

// Calls put(i, number) for n packed numbers that begin at `at`, in order, and returns where they end; null as soon as
// they are not inside [at, end), or of a width that no block has.
template <class Put> const uint8_t* read_packed(const uint8_t* at, const uint8_t* end, int64_t n, Put&& put) {
  constexpr int64_t word = sizeof(uint64_t);
  if (end - at < packed_blocks(n)) return nullptr;
  const uint8_t* widths = at;
  at += packed_blocks(n);
  for (int64_t first = 0; first < n; first += packed_block) {
    const int64_t bits = *widths++, in_block = std::min(packed_block, n - first), bytes = (in_block * bits + 7) / 8;
    if (!is_packed_width(bits) || end - at < bytes) return nullptr;
    if (bits == whole_word_bits) {
      for (int64_t i = 0; i < in_block; ++i, at += word) {
        uint64_t found;
        std::memcpy(&found, at, word);
        put(first + i, found);
      }
      continue;
    }
    const uint8_t* from = at;
    uint8_t copy[packed_block * most_packed_bits / 8 + word];
    if (end - at < bytes + word) {  // a number is read as a whole word, which may end behind the last one
      std::memcpy(copy, at, bytes);
      std::memset(copy + bytes, 0, word);
      from = copy;
    }
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    for (int64_t i = 0; i < in_block; ++i) {
      uint64_t found;
      std::memcpy(&found, from + (i * bits >> 3), word);
      put(first + i, found >> (i * bits & 7) & mask);
    }
    at += bytes;
  }
  return at;
}

// Where n packed numbers that begin at `at` end, by their widths alone; null as above.
inline const uint8_t* skip_packed(const uint8_t* at, const uint8_t* end, int64_t n) {
  if (end - at < packed_blocks(n)) return nullptr;
  const uint8_t* widths = at;
  at += packed_blocks(n);
  for (int64_t first = 0; first < n; first += packed_block) {
    const int64_t bits = *widths++, bytes = (std::min(packed_block, n - first) * bits + 7) / 8;
    if (!is_packed_width(bits) || end - at < bytes) return nullptr;
    at += bytes;
  }
  return at;
}

}  // namespace hpcrec
