// Joining bags: every array is written once, in order, from messages read once.
#include "hpcrec/unpack.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {

[[noreturn]] void refuse(int64_t piece, const std::string& found) {
  throw std::invalid_argument("asked[" + std::to_string(piece) + "]: " + found);
}

bool inside(int64_t at, int64_t n, int64_t item, int64_t size) {
  return at >= 0 && n >= 0 && at % item == 0 && at <= size && n <= (size - at) / item;
}

void check(const Asked& a, int64_t i, int64_t size) {
  if (!inside(a.ids_at, a.n_ids, 8, size)) refuse(i, "its ids are not inside the message");
  if (a.lengths_at >= 0 ? !inside(a.lengths_at, a.n_bags, 4, size) : a.n_bags != a.n_ids)
    refuse(i, "its lengths are not inside the message, or missing");
}

// Vectors of one piece lie one after the other.
void write_starts(int64_t* to, int64_t n, int64_t first, int64_t width) {
  for (int64_t v = 0; v < n; ++v) to[v] = first + v * width;
}

// Whether its lengths are the number of its ids.
bool write_piece(const Asked& a, const uint8_t* message, int64_t width, int64_t k, int64_t v, const Joined& to) {
  const auto* ids = reinterpret_cast<const int64_t*>(message + a.ids_at);
  for (int64_t i = 0; i < a.n_ids; ++i) to.index[k + i] = ids[i] + a.base;
  if (to.value_start) write_starts(to.value_start + v, a.n_bags, a.value_at, width);
  if (to.gradient_start) write_starts(to.gradient_start + v, a.n_bags, a.gradient_at, width);
  if (a.lengths_at < 0) {
    for (int64_t i = 0; i < a.n_bags; ++i) to.offsets[v + i] = k + i;
    return true;
  }
  const auto* lengths = reinterpret_cast<const int32_t*>(message + a.lengths_at);
  int64_t at = 0;
  for (int64_t i = 0; i < a.n_bags; ++i) {
    if (lengths[i] < 0 || lengths[i] > a.n_ids - at) return false;
    to.offsets[v + i] = k + at;
    at += lengths[i];
  }
  return at == a.n_ids;
}

}  // namespace

void unpack(const uint8_t* message, int64_t size, const Asked* asked, int64_t n, int64_t width, const Joined& to) {
  std::vector<int64_t> ids(n + 1, 0), bags(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    check(asked[i], i, size);
    ids[i + 1] = ids[i] + asked[i].n_ids;
    bags[i + 1] = bags[i] + asked[i].n_bags;
  }
  std::atomic<int64_t> next{0}, bad{-1};
  parallel(team(ids[n]), [&](int, int) {
    for (int64_t i = next++; i < n; i = next++)
      if (!write_piece(asked[i], message, width, ids[i], bags[i], to)) bad = i;
  });
  if (bad >= 0) refuse(bad, "its lengths do not add up to its ids");
  to.offsets[bags[n]] = ids[n];
}

}  // namespace hpcrec
