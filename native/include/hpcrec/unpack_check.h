// What a piece of a message claims, before anything of it is read.
#pragma once
#include <stdexcept>
#include <string>

#include "hpcrec/packed.h"
#include "hpcrec/unpack.h"

namespace hpcrec {

[[noreturn]] inline void refuse_asked(int64_t piece, const std::string& found) {
  throw std::invalid_argument("asked[" + std::to_string(piece) + "]: " + found);
}

inline bool inside(int64_t at, int64_t n, int64_t item, int64_t size) {
  return at >= 0 && n >= 0 && at % item == 0 && at <= size && n <= (size - at) / item;
}

// Packed numbers take a byte a block at least: their number is bounded before it is added to others.
inline bool inside_packed(int64_t at, int64_t n_bytes, int64_t n, int64_t size) {
  return inside(at, n_bytes, 1, size) && n >= 0 && n / packed_block <= n_bytes;
}

inline void check_asked(const Asked& a, int64_t i, int64_t size) {
  if (a.coding < Coding::plain || a.coding > Coding::table) refuse_asked(i, "its coding is not known");
  const bool plain = a.coding == Coding::plain;
  if (!(plain ? inside(a.ids_at, a.n_ids, 8, size) : inside_packed(a.ids_at, a.ids_bytes, a.n_ids, size)))
    refuse_asked(i, "its ids are not inside the message");
  const bool has_lengths =
      plain ? inside(a.lengths_at, a.n_bags, 4, size) : inside_packed(a.lengths_at, a.lengths_bytes, a.n_bags, size);
  if (a.lengths_at >= 0 ? !has_lengths : a.n_bags != a.n_ids)
    refuse_asked(i, "its lengths are not inside the message, or missing");
  if (a.coding == Coding::table && (a.n_distinct < (a.n_ids > 0) || a.n_distinct > a.n_ids))
    refuse_asked(i, "its table has more rows than it has ids, or none");
}

}  // namespace hpcrec
