// Bags of a column picked by number.
#pragma once
#include <cstdint>

namespace hpcrec {

// Bags of n_bags [offsets] over n_items numbers of item_bytes (4 or 8), and which of them are wanted.
struct Picked {
  const uint8_t* items;
  int64_t n_items, item_bytes;
  const int64_t* offsets;  // [n_bags + 1]
  int64_t n_bags;
  const int64_t* rows;  // [n]
  int64_t n;
};

// Bag rows[b] goes to out[out_offsets[b]:out_offsets[b + 1]], which has to be as long.
void take_bags(const Picked& from, const int64_t* out_offsets, int64_t out_items, uint8_t* out);

}  // namespace hpcrec
