// Chunks of a file's columns: read by their addresses, past the HDF5 library, and HDF5's checksum of them.
#pragma once
#include <cstdint>

namespace hpcrec {

// HDF5's Fletcher-32 of data that comes piece by piece: each but the last an even number of bytes.
class Fletcher {
 public:
  void add(const uint8_t* data, int64_t n);
  uint32_t value() const;

 private:
  uint64_t sum_ = 0, sum_of_sums_ = 0;  // over little-endian words, modulo 2^16 - 1
  bool any_ = false;                    // whether a byte was not 0
};

// Numbers in chunks of a file, all chunks of one size.
struct Chunked {
  int file;            // descriptor
  const int64_t* at;   // [n] byte where each chunk begins
  uint8_t* checked;    // [n] whether its checksum has been compared; null: the chunks have none
  int64_t n;           // chunks
  int64_t items;       // numbers of a chunk
  int64_t item_bytes;  // 4 or 8
};

// Numbers [start, start + n) as they are, or, where `widen`, int32 as int64. Whether they could be read: if not, the
// file is shorter, cannot be read, or has another checksum; `out` then holds anything.
bool read_chunks(const Chunked& from, int64_t start, int64_t n, bool widen, uint8_t* out);

}  // namespace hpcrec
