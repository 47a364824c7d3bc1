// Bags are picked all over a window that no cache holds: where those of a block begin is read first, all at once, then
// what they hold is asked for, and only then copied.
#include "hpcrec/take.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "hpcrec/row.h"

namespace hpcrec {
namespace {

constexpr int64_t block = 64;

[[noreturn]] void refuse(int64_t b, const char* found) {
  throw std::invalid_argument("rows[" + std::to_string(b) + "]: " + found);
}

// Where bag number b of `from` begins; it is inside the items, and as long as its place in `out`.
int64_t first_of(const Picked& from, const int64_t* out_offsets, int64_t out_items, int64_t b) {
  const int64_t row = from.rows[b];
  if (row < 0 || row >= from.n_bags) refuse(b, "there is no such bag");
  const int64_t low = from.offsets[row], high = from.offsets[row + 1];
  if (low < 0 || low > high || high > from.n_items) refuse(b, "its offsets are not inside the items");
  const int64_t out_low = out_offsets[b], out_high = out_offsets[b + 1];
  if (out_low < 0 || out_low > out_high || out_high > out_items || out_high - out_low != high - low)
    refuse(b, "its place in out is not as long, or outside");
  return low;
}

}  // namespace

void take_bags(const Picked& from, const int64_t* out_offsets, int64_t out_items, uint8_t* out) {
  const int64_t size = from.item_bytes;
  int64_t first[block];
  for (int64_t base = 0; base < from.n; base += block) {
    const int64_t n = std::min(block, from.n - base);
    for (int64_t i = 0; i < n; ++i) first[i] = first_of(from, out_offsets, out_items, base + i);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t bytes = (out_offsets[base + i + 1] - out_offsets[base + i]) * size;
      if (bytes > 0) prefetch_row<0>(from.items + first[i] * size, std::min<int64_t>(bytes, 512));
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t low = out_offsets[base + i], high = out_offsets[base + i + 1];
      if (high > low) std::memcpy(out + low * size, from.items + first[i] * size, (high - low) * size);
    }
  }
}

}  // namespace hpcrec
