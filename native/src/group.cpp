// Grouping ids: a stable least-significant-digit radix sort of (id, position), as few digits as the ids' range needs.
#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hpcrec/ids.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int max_digit_bits = 11;  // 2048 write streams: what the second-level cache takes

// A sort waits for all its threads after each step: worth it for many ids only.
inline int sort_team(int64_t n) {
  return team(n / 16);
}

inline int bits_of(uint64_t x) {
  return x ? 64 - __builtin_clzll(x) : 0;
}

// What is sorted: id and position in one word, where both fit (nearly always), ...
struct Packed {
  using Item = int64_t;
  int position_bits;
  Item make(uint64_t id, int64_t position) const { return static_cast<Item>(id << position_bits) | position; }
  uint64_t id(Item item) const { return static_cast<uint64_t>(item) >> position_bits; }
  int64_t position(Item item) const { return item & ((int64_t{1} << position_bits) - 1); }
};
// ... else in two.
struct Paired {
  struct Item {
    uint64_t id;
    int64_t position;
  };
  Item make(uint64_t id, int64_t position) const { return {id, position}; }
  uint64_t id(const Item& item) const { return item.id; }
  int64_t position(const Item& item) const { return item.position; }
};

// Memory that a thread keeps between calls, 8 bytes an id: fresh pages cost more than the sort.
int64_t* scratch(int64_t n) {
  thread_local std::unique_ptr<int64_t[]> memory;
  thread_local int64_t size = 0;
  if (size < n) {
    memory.reset();
    memory.reset(new int64_t[n]);
    size = n;
  }
  return memory.get();
}

// Counts of (digit, piece) -> where that piece's elements of that digit begin; digits first, then pieces: stable.
void to_starts(std::vector<int64_t>& counts, int64_t n_digits, int pieces) {
  int64_t start = 0;
  for (int64_t digit = 0; digit < n_digits; ++digit)
    for (int piece = 0; piece < pieces; ++piece) {
      int64_t& count = counts[piece * n_digits + digit];
      start += std::exchange(count, start);
    }
}

// Moves n items to their places by digit_of: each piece is counted, then scattered.
template <class DigitOf, class Place>
std::vector<int64_t> counting_pass(int64_t n, int64_t n_digits, int n_team, DigitOf&& digit_of, Place&& place) {
  const int pieces = pieces_of(n_team);
  std::vector<int64_t> starts(n_digits * pieces, 0);
  parallel_pieces(n_team, [&](int piece, int) {
    const Range mine = share(n, piece, pieces);
    int64_t* __restrict count = starts.data() + piece * n_digits;
    for (int64_t k = mine.first; k < mine.last; ++k) ++count[digit_of(k)];
  });
  to_starts(starts, n_digits, pieces);
  parallel_pieces(n_team, [&](int piece, int) {
    const Range mine = share(n, piece, pieces);
    int64_t* __restrict start = starts.data() + piece * n_digits;
    for (int64_t k = mine.first; k < mine.last; ++k) place(k, start[digit_of(k)]++);
  });
  return starts;
}

// What is known of the ids before the sort.
struct Span {
  uint64_t lowest;
  int id_bits, position_bits;
};

Span span_of(const int64_t* ids, int64_t n) {
  int64_t low = ids[0], high = ids[0];
  for (int64_t k = 0; k < n; ++k) {
    low = std::min(low, ids[k]);
    high = std::max(high, ids[k]);
  }
  const uint64_t lowest = static_cast<uint64_t>(low);
  return {lowest, bits_of(static_cast<uint64_t>(high) - lowest), bits_of(static_cast<uint64_t>(n))};
}

// Sorts (ids[k], k) into `sorted`, by as few passes as the ids' range needs, back and forth between it and `spare`.
template <class Code, class Item>
void sort_items(const Code& code, const int64_t* ids, int64_t n, Span span, int n_team, Item* sorted, Item* spare) {
  const int n_passes = std::max(1, (span.id_bits + max_digit_bits - 1) / max_digit_bits);
  const int digit_bits = (span.id_bits + n_passes - 1) / n_passes;
  const int64_t n_digits = int64_t{1} << digit_bits;
  const uint64_t mask = static_cast<uint64_t>(n_digits) - 1, lowest = span.lowest;
  Item* to = n_passes % 2 ? sorted : spare;
  counting_pass(
      n, n_digits, n_team, [=](int64_t k) { return (static_cast<uint64_t>(ids[k]) - lowest) & mask; },
      [=](int64_t k, int64_t at) { to[at] = code.make(static_cast<uint64_t>(ids[k]) - lowest, k); });
  for (int pass = 1; pass < n_passes; ++pass) {
    const int shift = pass * digit_bits;
    const Item* from = to;
    to = to == sorted ? spare : sorted;
    counting_pass(
        n, n_digits, n_team, [=](int64_t k) { return code.id(from[k]) >> shift & mask; },
        [=](int64_t k, int64_t at) { to[at] = from[k]; });
  }
}

// Calls each(k, position, u) for the k-th item, u the number of its run of equal ids, and head(k, u, id), k where
// the run begins, at least once a run. `each` may overwrite item k. Returns the number of runs.
template <class Code, class Item, class Each, class Head>
int64_t for_runs(const Code& code, const Item* sorted, int64_t n, int n_team, Each&& each, Head&& head) {
  const int pieces = pieces_of(n_team);
  std::vector<int64_t> runs(pieces + 1, 0);
  std::vector<uint64_t> before(pieces, 0);  // the id just before each share, read before `each` overwrites it
  parallel_pieces(n_team, [&](int piece, int) {
    const Range mine = share(n, piece, pieces);
    if (mine.first == mine.last) return;
    before[piece] = mine.first ? code.id(sorted[mine.first - 1]) : ~code.id(sorted[0]);
    int64_t count = code.id(sorted[mine.first]) != before[piece];
    for (int64_t k = mine.first + 1; k < mine.last; ++k) count += code.id(sorted[k]) != code.id(sorted[k - 1]);
    runs[piece + 1] = count;
  });
  std::partial_sum(runs.begin(), runs.end(), runs.begin());
  parallel_pieces(n_team, [&](int piece, int) {
    const Range mine = share(n, piece, pieces);
    int64_t u = runs[piece] - 1, k = mine.first, start = 0;
    uint64_t last = before[piece];
    // What is left of a run that began in an earlier share: its head is written there.
    for (; k < mine.last && code.id(sorted[k]) == last; ++k) each(k, code.position(sorted[k]), u);
    for (; k < mine.last; ++k) {  // without a branch on where runs begin, which no core can predict
      const uint64_t id = code.id(sorted[k]);
      const int64_t position = code.position(sorted[k]);
      const bool begins = id != last;
      u += begins;
      start = begins ? k : start;
      head(start, u, id);
      each(k, position, u);
      last = id;
    }
  });
  return runs[pieces];
}

// Sorts with the narrowest items that hold the ids, in the given memory where they are words, and calls
// then(code, sorted, n_team).
template <class Then>
int64_t with_sorted(const int64_t* ids, int64_t n, Span span, int64_t* sorted, int64_t* spare, Then&& then) {
  const int n_team = sort_team(n);
  if (span.id_bits + span.position_bits <= 64) {
    const Packed code{span.position_bits};
    sort_items(code, ids, n, span, n_team, sorted, spare);
    return then(code, static_cast<const int64_t*>(sorted), n_team);
  }
  const Paired code{};
  std::unique_ptr<Paired::Item[]> pairs(new Paired::Item[n]), other(new Paired::Item[n]);
  sort_items(code, ids, n, span, n_team, pairs.get(), other.get());
  return then(code, static_cast<const Paired::Item*>(pairs.get()), n_team);
}

}  // namespace

int64_t group(const int64_t* ids, int64_t n, int64_t* unique, int64_t* segments, int64_t* order) {
  segments[0] = 0;
  if (n == 0) return 0;
  const Span span = span_of(ids, n);
  // Until they are written, the outputs are the memory of the sort.
  const int64_t n_unique = with_sorted(ids, n, span, order, segments, [&](const auto& code, const auto* sorted, int m) {
    return for_runs(
        code, sorted, n, m, [=](int64_t k, int64_t position, int64_t) { order[k] = position; },
        [=](int64_t k, int64_t u, uint64_t id) {
          unique[u] = static_cast<int64_t>(id + span.lowest);
          segments[u] = k;
        });
  });
  segments[n_unique] = n;
  return n_unique;
}

int64_t dedup(const int64_t* ids, int64_t n, int64_t* unique, int64_t* inverse) {
  if (n == 0) return 0;
  const Span span = span_of(ids, n);
  return with_sorted(ids, n, span, scratch(n), inverse, [&](const auto& code, const auto* sorted, int m) {
    return for_runs(
        code, sorted, n, m, [=](int64_t, int64_t position, int64_t u) { inverse[position] = u; },
        [=](int64_t, int64_t u, uint64_t id) { unique[u] = static_cast<int64_t>(id + span.lowest); });
  });
}

void partition(const int32_t* part, int64_t n, int64_t n_parts, int64_t* counts, int64_t* order) {
  int64_t outside = 0;
  for (int64_t k = 0; k < n; ++k) outside |= part[k] < 0 || part[k] >= n_parts;
  for (int64_t k = 0; outside && k < n; ++k)
    if (part[k] < 0 || part[k] >= n_parts)
      throw std::invalid_argument("part[" + std::to_string(k) + "] is " + std::to_string(part[k]) +
                                  "; allowed are 0 <= value < " + std::to_string(n_parts));
  const int n_team = sort_team(n);
  const std::vector<int64_t> ends = counting_pass(
      n, n_parts, n_team, [&](int64_t k) { return part[k]; }, [&](int64_t k, int64_t to) { order[to] = k; });
  // After the pass the last piece's starts are the ends of the parts.
  int64_t before = 0;
  for (int64_t p = 0; p < n_parts; ++p) {
    const int64_t end = ends[(pieces_of(n_team) - 1) * n_parts + p];
    counts[p] = end - before;
    before = end;
  }
}

}  // namespace hpcrec
