// The ids of bundles of features, dealt to the entries of all owners. See hpcrec/kernels/requests.py.
//
// Lengths and parts are the caller's arrays, which another thread may change meanwhile: each use is checked. Entries
// and flags are copies.
#pragma once
#include <cstdint>
#include <vector>

namespace hpcrec {

struct DealtBundle {
  const int64_t* ids;
  const int64_t* lengths;  // [n_bags]
  const int64_t* parts;    // [n_ids], or null: every part is asked for all of them
  const uint8_t* weights;  // [n_ids] items, or null
  int64_t n_ids, n_bags;
  std::vector<int64_t> entries;  // of each part, -1: none
};

struct Deal {
  std::vector<DealtBundle> bundles;
  std::vector<bool> every;  // of each entry: whose empty bags are asked for too
  int64_t item;             // bytes of a weight
};

// Counts the ids and bags of each entry; refuses what does not fit together.
void count_deal(const Deal& deal, int64_t* ids_of, int64_t* bags_of);

struct DealWritten {
  int64_t *ids, *lengths, *bag;
  uint8_t* weights;
};

// After `count_deal`, of what it has counted.
void write_deal(const Deal& deal, const int64_t* ids_of, const int64_t* bags_of, const DealWritten& out);

}  // namespace hpcrec
