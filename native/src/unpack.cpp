// Joining bags: every array is written once, in order, from messages read once.
#include "hpcrec/unpack.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "hpcrec/packed.h"
#include "hpcrec/parallel.h"
#include "hpcrec/unpack_check.h"

namespace hpcrec {
namespace {

// Ids and starts may be anything: they are added as what cannot overflow, and looked at by those who read rows there.

// Vectors of one piece lie one after the other.
void write_starts(int64_t* to, int64_t n, int64_t first, int64_t width) {
  for (int64_t v = 0; v < n; ++v) to[v] = static_cast<int64_t>(static_cast<uint64_t>(first) + v * width);
}

int64_t row_of(uint64_t id, uint64_t base) {
  return static_cast<int64_t>(id + base);
}

// Packed ids that rise; where they end, or null.
const uint8_t* write_rising(const uint8_t* at, const uint8_t* end, int64_t n, uint64_t base, int64_t* to) {
  uint64_t next = base;
  return read_packed(at, end, n, [&](int64_t i, uint64_t number) {
    to[i] = static_cast<int64_t>(next += number);
    ++next;
  });
}

// Whether what is packed is ids. `table` has room for those that are distinct.
bool write_packed(const Asked& a, const uint8_t* message, int64_t* table, int64_t* to) {
  const auto base = static_cast<uint64_t>(a.base);
  const uint8_t *at = message + a.ids_at, *end = at + a.ids_bytes;
  if (a.coding == Coding::rising) return write_rising(at, end, a.n_ids, base, to) == end;
  if (a.coding == Coding::packed)
    return read_packed(at, end, a.n_ids, [=](int64_t i, uint64_t id) { to[i] = row_of(id, base); }) == end;
  at = write_rising(at, end, a.n_distinct, base, table);
  if (!at) return false;
  const auto n_distinct = static_cast<uint64_t>(a.n_distinct);
  bool fits = true;
  at = read_packed(at, end, a.n_ids, [&](int64_t i, uint64_t place) {
    fits &= place < n_distinct;
    to[i] = table[place < n_distinct ? place : 0];
  });
  return fits && at == end;
}

bool write_ids(const Asked& a, const uint8_t* message, int64_t* table, int64_t* to) {
  if (a.coding != Coding::plain) return write_packed(a, message, table, to);
  const auto* ids = reinterpret_cast<const int64_t*>(message + a.ids_at);
  for (int64_t i = 0; i < a.n_ids; ++i) to[i] = row_of(static_cast<uint64_t>(ids[i]), static_cast<uint64_t>(a.base));
  return true;
}

// Whether its lengths are the number of its ids.
bool write_offsets(const Asked& a, const uint8_t* message, int64_t k, int64_t* to) {
  int64_t at = 0;
  bool fits = true;
  const auto add = [&](int64_t i, uint64_t length) {
    to[i] = k + at;
    fits &= length <= static_cast<uint64_t>(a.n_ids - at);
    at += fits ? static_cast<int64_t>(length) : 0;
  };
  if (a.lengths_at < 0) {
    for (int64_t i = 0; i < a.n_bags; ++i) to[i] = k + i;
    return true;
  }
  if (a.coding != Coding::plain) {
    const uint8_t *first = message + a.lengths_at, *end = first + a.lengths_bytes;
    return read_packed(first, end, a.n_bags, add) == end && fits && at == a.n_ids;
  }
  const auto* lengths = reinterpret_cast<const int32_t*>(message + a.lengths_at);
  for (int64_t i = 0; i < a.n_bags; ++i) add(i, static_cast<uint64_t>(int64_t{lengths[i]}));  // negative: too many
  return fits && at == a.n_ids;
}

}  // namespace

void unpack(const uint8_t* message, int64_t size, const Asked* asked, int64_t n, int64_t width, const Joined& to) {
  std::vector<int64_t> ids(n + 1, 0), bags(n + 1, 0), tables(n + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    check_asked(asked[i], i, size);
    ids[i + 1] = ids[i] + asked[i].n_ids;
    bags[i + 1] = bags[i] + asked[i].n_bags;
    tables[i + 1] = tables[i] + (asked[i].coding == Coding::table ? asked[i].n_distinct : 0);
  }
  const std::unique_ptr<int64_t[]> table(new int64_t[tables[n]]);
  std::atomic<int64_t> next{0}, bad_ids{-1}, bad_lengths{-1};
  parallel(team(ids[n]), [&](int, int) {
    for (int64_t i = next++; i < n; i = next++) {
      const Asked& a = asked[i];
      if (!write_ids(a, message, table.get() + tables[i], to.index + ids[i])) bad_ids = i;
      if (!write_offsets(a, message, ids[i], to.offsets + bags[i])) bad_lengths = i;
      if (to.value_start) write_starts(to.value_start + bags[i], a.n_bags, a.value_at, width);
      if (to.gradient_start) write_starts(to.gradient_start + bags[i], a.n_bags, a.gradient_at, width);
    }
  });
  if (bad_ids >= 0) refuse_asked(bad_ids, "its packed ids are damaged");
  if (bad_lengths >= 0) refuse_asked(bad_lengths, "its lengths do not add up to its ids");
  to.offsets[bags[n]] = ids[n];
}

}  // namespace hpcrec
