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

// Chunks of a file.
struct Chunked {
  int file;           // descriptor
  const int64_t* at;  // [n] byte where each chunk begins
  uint8_t* checked;   // [n] 0: it is followed by a Fletcher-32, to be compared when it is read; then 1
  int64_t n;
};

// Numbers [start, start + n) of a column, whose chunks [first, first + chunks) hold `items` of `item_bytes` each.
struct Wanted {
  int64_t first, chunks, items, item_bytes;
  int64_t start, n;
  int64_t limit;  // integers have to be in [0, limit); 0: they may be any
};

// The pieces one after the other into `out`, of int64 (and item_bytes 8, or 4 for int32) or of numbers of 4 bytes, as
// they are. Returns how many pieces were read before one that cannot be: the file is shorter, cannot be read, or has
// another checksum or other numbers; `out` then holds anything from there on.
int64_t read_chunks(const Chunked& from, const Wanted* wanted, int64_t n, uint8_t* out, int64_t out_items,
                    int64_t out_item_bytes);

}  // namespace hpcrec
