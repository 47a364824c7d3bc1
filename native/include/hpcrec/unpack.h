// Bags of rows as several senders ask for them, joined into the arrays that the gather and the merge read.
#pragma once
#include <cstdint>

namespace hpcrec {

// How an entry's ids and lengths are written; see hpcrec/kernels/ids.py.
enum class Coding : int64_t {
  plain = 0,   // int64 ids, int32 lengths
  packed = 1,  // both packed
  rising = 2,  // ids packed as what lies between them
  table = 3,   // distinct ids, rising, then packed places of the ids among them
};

// One sender's bags of one feature. Places are bytes of the message; a place of lengths below 0: every bag is one id.
struct Asked {
  int64_t ids_at, n_ids, lengths_at, n_bags;
  int64_t base;                   // added to each id: where the table's rows begin in the arena
  int64_t value_at, gradient_at;  // first element of its vectors in the values and in the gradients
  Coding coding;
  int64_t n_distinct;                // of a table
  int64_t ids_bytes, lengths_bytes;  // of what is packed
};

struct Joined {
  int64_t* index;           // [K] rows of the arena
  int64_t* offsets;         // [V + 1]
  int64_t* value_start;     // [V], or null
  int64_t* gradient_start;  // [V], or null
};

void unpack(const uint8_t* message, int64_t size, const Asked* asked, int64_t n, int64_t width, const Joined& to);

}  // namespace hpcrec
