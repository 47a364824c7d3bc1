// Grouping ids: a stable radix sort of (id, position), the highest bits first, as many bits as the ids' range needs.
#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hpcrec/check.h"
#include "hpcrec/ids.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int max_digit_bits = 10;  // 1024 write streams: about what the first-level cache and its misses take
constexpr int digit_bits = 8;       // of a pass inside that cache

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

// Moves n items to their places by digit: each piece is counted, then scattered. `count(mine, counts)` counts a piece's
// digits, `place(mine, starts)` puts its items where their digits' starts say, and moves those on.
template <class Count, class Place>
std::vector<int64_t> counting_pass(int64_t n, int64_t n_digits, int n_team, Count&& count, Place&& place) {
  const int pieces = pieces_of(n_team);
  std::vector<int64_t> starts(n_digits * pieces, 0);
  parallel_pieces(n_team, [&](int piece, int) { count(share(n, piece, pieces), starts.data() + piece * n_digits); });
  to_starts(starts, n_digits, pieces);
  parallel_pieces(n_team, [&](int piece, int) { place(share(n, piece, pieces), starts.data() + piece * n_digits); });
  return starts;  // of the last piece: where each digit's items end
}

// What is known of the ids before the sort.
struct Span {
  uint64_t lowest;
  int id_bits, position_bits;
};

Span span_of(const int64_t* ids, int64_t n, int64_t n_positions) {
  int64_t low = ids[0], high = ids[0];
  for (int64_t k = 0; k < n; ++k) {
    low = std::min(low, ids[k]);
    high = std::max(high, ids[k]);
  }
  const uint64_t lowest = static_cast<uint64_t>(low);
  return {lowest, bits_of(static_cast<uint64_t>(high) - lowest), bits_of(static_cast<uint64_t>(n_positions))};
}

// What is sorted: ids and, for each, its position, or the bag that it lies in.
struct Occurring {
  const int64_t* ids;      // [n]
  const int64_t* offsets;  // [n_bags + 1] or null
  int64_t n, n_bags;

  // Calls f(k, position or bag) for each k of a piece, in order.
  template <class F> void each(Range mine, F&& f) const {
    if (!offsets) {
      for (int64_t k = mine.first; k < mine.last; ++k) f(k, k);
      return;
    }
    int64_t bag = std::upper_bound(offsets, offsets + n_bags + 1, mine.first) - offsets - 1;
    for (int64_t k = mine.first; k < mine.last; ++bag)
      for (const int64_t end = std::min(offsets[bag + 1], mine.last); k < end; ++k) f(k, bag);
  }
};

// Sorts n items by the low `bits` bits of their ids, stably, by PASSES passes between `here`, where they are, and
// `other`. They end `here` after an even number of passes. The digits of all passes are counted in one go: no pass
// changes how often there are which.
template <int PASSES, class Code, class Item>
void sort_low_bits(const Code& code, int bits, int64_t n, Item* here, Item* other) {
  int shift[PASSES + 1] = {};
  for (int pass = 0; pass < PASSES; ++pass) shift[pass + 1] = shift[pass] + (bits - shift[pass]) / (PASSES - pass);
  uint64_t most[PASSES];
  for (int pass = 0; pass < PASSES; ++pass) most[pass] = (uint64_t{1} << (shift[pass + 1] - shift[pass])) - 1;
  int64_t starts[PASSES][1 << digit_bits];
  for (int pass = 0; pass < PASSES; ++pass) std::fill_n(starts[pass], most[pass] + 1, 0);
  for (int64_t k = 0; k < n; ++k)
    for (int pass = 0; pass < PASSES; ++pass) ++starts[pass][code.id(here[k]) >> shift[pass] & most[pass]];
  for (int pass = 0; pass < PASSES; ++pass, std::swap(here, other)) {
    int64_t start = 0;
    for (uint64_t digit = 0; digit <= most[pass]; ++digit) start += std::exchange(starts[pass][digit], start);
    for (int64_t k = 0; k < n; ++k) other[starts[pass][code.id(here[k]) >> shift[pass] & most[pass]]++] = here[k];
  }
}

// Calls f with the number of passes that so many bits take.
template <class F> void with_passes(int bits, F&& f) {
  switch ((bits + digit_bits - 1) / digit_bits) {
    case 0:
      return;
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    default:
      return f(std::integral_constant<int, 64 / digit_bits>{});
  }
}

// Sorts (id, position) into `sorted`. One pass deals the items to buckets by the highest bits of their ids, a bucket
// holding some hundred items; then each bucket is sorted where it lies, in the first-level cache.
template <class Code, class Item>
void sort_items(const Code& code, const Occurring& from, Span span, int n_team, Item* sorted, Item* spare) {
  constexpr int bucket_bits = 9;  // of the items of a bucket, on average
  const int wanted = std::max(1, bits_of(static_cast<uint64_t>(from.n)) - bucket_bits);
  const int high_bits = span.id_bits <= max_digit_bits ? span.id_bits : std::min(wanted, max_digit_bits);
  const int low_bits = span.id_bits - high_bits;
  const int64_t n_buckets = int64_t{1} << high_bits;
  int n_passes = 0;
  with_passes(low_bits, [&](auto passes) { n_passes = passes; });
  Item* dealt = n_passes % 2 ? spare : sorted;
  Item* other = n_passes % 2 ? sorted : spare;
  const int64_t* ids = from.ids;
  const uint64_t lowest = span.lowest;
  const std::vector<int64_t> ends = counting_pass(
      from.n, n_buckets, n_team,
      [=](Range mine, int64_t* __restrict counts) {
        for (int64_t k = mine.first; k < mine.last; ++k) ++counts[(static_cast<uint64_t>(ids[k]) - lowest) >> low_bits];
      },
      [=](Range mine, int64_t* __restrict starts) {
        from.each(mine, [=](int64_t k, int64_t position) {
          const uint64_t id = static_cast<uint64_t>(ids[k]) - lowest;
          Item* to = dealt + starts[id >> low_bits]++;
          *to = code.make(id, position);
          __builtin_prefetch(to + 64 / sizeof(Item), 1, 3);  // stores leave the core in order: one miss holds up all
        });
      });
  const int64_t* bucket_ends = ends.data() + (pieces_of(n_team) - 1) * n_buckets;
  with_passes(low_bits, [&](auto passes) {
    parallel_pieces(n_team, [=](int piece, int pieces) {
      const Range mine = share(n_buckets, piece, pieces);
      for (int64_t b = mine.first; b < mine.last; ++b) {
        const int64_t first = b ? bucket_ends[b - 1] : 0;
        sort_low_bits<passes>(code, low_bits, bucket_ends[b] - first, dealt + first, other + first);
      }
    });
  });
}

// Calls each(k, position, u) for the k-th item, u the number of its run of equal ids, and head(k, u, id), k where
// the run begins, at least once a run. `each` may overwrite item k. Returns the number of runs.
template <class Code, class Item, class Each, class Head>
int64_t for_runs(const Code& code, const Item* sorted, int64_t n, int n_team, Each&& each, Head&& head) {
  const int pieces = pieces_of(n_team);
  std::vector<int64_t> runs(pieces + 1, 0);
  std::vector<uint64_t> before(pieces, 0);  // the id just before each share, read before `each` overwrites it
  before[0] = ~code.id(sorted[0]);
  if (pieces > 1)
    parallel_pieces(n_team, [&](int piece, int) {
      const Range mine = share(n, piece, pieces);
      uint64_t last = before[piece] = mine.first ? code.id(sorted[mine.first - 1]) : before[0];
      int64_t found = 0;
      for (int64_t k = mine.first; k < mine.last; ++k) {
        const uint64_t id = code.id(sorted[k]);
        found += id != std::exchange(last, id);
      }
      runs[piece + 1] = found;
    });
  std::partial_sum(runs.begin(), runs.end(), runs.begin());
  int64_t n_runs = 0;
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
    if (mine.first < n && mine.last == n) n_runs = u + 1;
  });
  return n_runs;
}

// Sorts with the narrowest items that hold the ids, in the given memory where they are words, and calls
// then(code, sorted, n_team).
template <class Then>
int64_t with_sorted(const Occurring& from, Span span, int64_t* sorted, int64_t* spare, Then&& then) {
  const int n_team = sort_team(from.n);
  if (span.id_bits + span.position_bits <= 64) {
    const Packed code{span.position_bits};
    sort_items(code, from, span, n_team, sorted, spare);
    return then(code, static_cast<const int64_t*>(sorted), n_team);
  }
  const Paired code{};
  std::unique_ptr<Paired::Item[]> pairs(new Paired::Item[from.n]), other(new Paired::Item[from.n]);
  sort_items(code, from, span, n_team, pairs.get(), other.get());
  return then(code, static_cast<const Paired::Item*>(pairs.get()), n_team);
}

}  // namespace

int64_t group(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, int64_t* unique, int64_t* segments,
              int64_t* order) {
  if (offsets) require_offsets("offsets", offsets, n_bags, n);
  segments[0] = 0;
  if (n == 0) return 0;
  const Span span = span_of(ids, n, offsets ? n_bags : n);  // bags may be more than ids: some are empty
  // Until they are written, the outputs are the memory of the sort.
  const int64_t n_unique =
      with_sorted({ids, offsets, n, n_bags}, span, order, segments, [&](const auto& code, const auto* sorted, int m) {
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
  const Span span = span_of(ids, n, n);
  return with_sorted({ids, nullptr, n, 0}, span, scratch(n), inverse, [&](const auto& code, const auto* sorted, int m) {
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
      n, n_parts, n_team,
      [=](Range mine, int64_t* __restrict count) {
        for (int64_t k = mine.first; k < mine.last; ++k) ++count[part[k]];
      },
      [=](Range mine, int64_t* __restrict start) {
        for (int64_t k = mine.first; k < mine.last; ++k) order[start[part[k]]++] = k;
      });
  int64_t before = 0;
  for (int64_t p = 0; p < n_parts; ++p) {
    const int64_t end = ends[(pieces_of(n_team) - 1) * n_parts + p];
    counts[p] = end - before;
    before = end;
  }
}

}  // namespace hpcrec
