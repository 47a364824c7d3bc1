// CRC32C: by the processor's instruction, in three streams, where it has one; else eight bytes at a time from tables.
//
// The instruction gives a result each cycle and takes three, so one stream leaves two thirds of them unused. Three
// thirds of a piece are taken at once; a checksum is linear, so that of the first is carried past the bytes behind it
// by a table for that many zeros, and then joined by exclusive or.
#include "hpcrec/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#define HPCREC_CRC_INSTRUCTION 1
#endif

namespace hpcrec {
namespace {
constexpr uint32_t polynomial = 0x82f63b78;  // bits reversed
using Table = std::array<std::array<uint32_t, 256>, 8>;

Table make_table() {
  Table table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? (crc >> 1) ^ polynomial : crc >> 1;
    table[0][i] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t i = 0; i < 256; ++i) table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255];
  return table;
}
const Table table = make_table();

uint32_t byte_by_byte(const uint8_t* data, int64_t n, uint32_t crc) {
  for (int64_t i = 0; i < n; ++i) crc = (crc >> 8) ^ table[0][(crc ^ data[i]) & 255];
  return crc;
}

#ifdef HPCREC_CRC_INSTRUCTION
constexpr int64_t stream_bytes = 1344;  // three of them are a page of 4 KiB, but for 64 bytes and what is left out

// What a checksum becomes by `stream_bytes` zeros, by its bytes.
using Zeros = std::array<std::array<uint32_t, 256>, 4>;
Zeros make_zeros() {
  std::array<uint32_t, 32> of_bit{};
  const uint8_t none[stream_bytes] = {};
  for (size_t bit = 0; bit < 32; ++bit) of_bit[bit] = byte_by_byte(none, stream_bytes, uint32_t{1} << bit);
  Zeros zeros{};
  for (size_t k = 0; k < 4; ++k)
    for (size_t i = 0; i < 256; ++i)
      for (size_t bit = 0; bit < 8; ++bit)
        if (i >> bit & 1) zeros[k][i] ^= of_bit[8 * k + bit];
  return zeros;
}
const Zeros zeros = make_zeros();

uint32_t past_zeros(uint32_t crc) {
  return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^ zeros[3][crc >> 24];
}

uint64_t word(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) uint32_t by_instruction(const uint8_t* data, int64_t n, uint32_t before) {
  uint64_t crc = before;
  for (; n >= 3 * stream_bytes; n -= 3 * stream_bytes, data += 3 * stream_bytes) {
    uint64_t second = 0, third = 0;
    for (int64_t i = 0; i < stream_bytes; i += 8) {
      crc = _mm_crc32_u64(crc, word(data + i));
      second = _mm_crc32_u64(second, word(data + stream_bytes + i));
      third = _mm_crc32_u64(third, word(data + 2 * stream_bytes + i));
    }
    crc = past_zeros(static_cast<uint32_t>(crc)) ^ second;
    crc = past_zeros(static_cast<uint32_t>(crc)) ^ third;
  }
  for (; n >= 8; n -= 8, data += 8) crc = _mm_crc32_u64(crc, word(data));
  uint32_t rest = static_cast<uint32_t>(crc);
  for (; n > 0; --n, ++data) rest = _mm_crc32_u8(rest, *data);
  return rest;
}
#endif
}  // namespace

uint32_t crc32c_by_table(const uint8_t* data, int64_t n, uint32_t before) {
  uint32_t crc = ~before;
  for (; n >= 8; n -= 8, data += 8) {  // by bytes, so that the order of a word's bytes does not matter
    crc ^= data[0] | data[1] << 8 | data[2] << 16 | static_cast<uint32_t>(data[3]) << 24;
    crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^ table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^
          table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
  }
  return ~byte_by_byte(data, n, crc);
}

uint32_t crc32c(const uint8_t* data, int64_t n, uint32_t before) {
#ifdef HPCREC_CRC_INSTRUCTION
  static const bool has = __builtin_cpu_supports("sse4.2");
  if (has) return ~by_instruction(data, n, ~before);
#endif
  return crc32c_by_table(data, n, before);
}

}  // namespace hpcrec
