// Passes over copies of rows; each thread has rows of its own.
#include "hpcrec/copies.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/check.h"
#include "hpcrec/optimizer.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
// What is on its way: records, and rows of 64 bytes. They are asked for into the second-level cache, which has more
// misses in flight than the first, and not to be written, which takes as long again: measured on Zen 4, a third to a
// quarter of the time.
constexpr int64_t records_ahead = 64, row_bytes_ahead = 4096;

template <class T> HPCREC_INLINE void prefetch(const T* from, int64_t n) {
  const char* p = reinterpret_cast<const char*>(from);
  for (int64_t at = 0; at < n * static_cast<int64_t>(sizeof(T)); at += 64) __builtin_prefetch(p + at, 0, 2);
}

// Whether all slots of a range lie in [least, n_copies).
bool are_slots(const CopyPlaces& of, Range mine, int64_t least) {
  const uint64_t from = static_cast<uint64_t>(least), bound = static_cast<uint64_t>(of.n_copies) - from;
  int64_t outside = 0;
  for (int64_t k = mine.first; k < mine.last; ++k)
    outside |= static_cast<int64_t>(static_cast<uint64_t>(of.slots[k]) - from >= bound);
  return outside == 0;
}

void require_slots(const CopyPlaces& of, int64_t least) {
  for (int64_t k = 0; k < of.n; ++k)
    if (of.slots[k] < least || of.slots[k] >= of.n_copies)
      throw std::invalid_argument("slots[" + std::to_string(k) + "] is " + std::to_string(of.slots[k]) +
                                  "; allowed are " + std::to_string(least) + " <= value < " +
                                  std::to_string(of.n_copies));
}

bool is_bundle(int32_t bundle, int64_t n_bundles) {
  return bundle >= 0 && bundle < n_bundles;
}

void require_bundles(const CopyPlaces& of, int64_t n_bundles) {
  for (int64_t k = 0; k < of.n; ++k) {
    if (of.slots[k] < 0) continue;
    const int32_t bundle = of.records[of.slots[k]].bundle;
    if (!is_bundle(bundle, n_bundles))
      throw std::invalid_argument("the record of slot " + std::to_string(of.slots[k]) + " has bundle " +
                                  std::to_string(bundle) + "; allowed are 0 <= value < " + std::to_string(n_bundles));
  }
}

// Calls f(range, piece) for pieces of the places, whose slots have been looked at.
template <class F> void over_places(const CopyPlaces& of, int64_t work, int64_t least, const char* kernel, F&& f) {
  std::atomic<bool> good{true};
  parallel_pieces(team(of.n * work), [&](int piece, int pieces) {
    const Range mine = share(of.n, piece, pieces);
    if (are_slots(of, mine, least)) f(mine, piece);
    else good = false;
  });
  if (good) return;
  require_slots(of, least);
  refuse_changed(kernel);
}

// Calls f(place, slot, record) for the places of a range whose slot is not -1, their records being on their way.
template <class F> HPCREC_INLINE void over_records(const CopyPlaces& of, Range mine, F&& f) {
  for (int64_t k = mine.first; k < std::min(mine.first + records_ahead, mine.last); ++k)
    if (of.slots[k] >= 0) prefetch(of.records + of.slots[k], 1);
  for (int64_t k = mine.first; k < mine.last; ++k) {
    if (k + records_ahead < mine.last && of.slots[k + records_ahead] >= 0)
      prefetch(of.records + of.slots[k + records_ahead], 1);
    if (of.slots[k] >= 0) f(k, of.slots[k], of.records[of.slots[k]]);
  }
}

// One row's; W is its width, or 0.
template <int W, class T> struct CopyRow {
  const CopyTable<T>& table;
  int64_t slot;

  int64_t width() const { return W ? W : table.width; }
  T* base() const { return table.rows + slot * 2 * width(); }
  T* sum() const { return base() + width(); }
  T& accumulator() const { return table.numbers[2 * slot]; }
  T& squares() const { return table.numbers[2 * slot + 1]; }

  // By what the squares of the sum are to be multiplied, so that their mean is `squares`; 0 of a sum that is 0.
  T factor(const T* of, T its_squares) const {
    const T mean = squared_norm<W>(of, width()) / static_cast<T>(width());
    return mean > 0 ? its_squares / mean : 0;
  }
  // What its ticks make of it.
  HPCREC_INLINE void preview(const CopyRecord& record, double scale, T* out) const {
    const T lr = static_cast<T>(table.lr[record.bundle] * scale), eps = static_cast<T>(table.eps[record.bundle]);
    const T bound = static_cast<T>(table.bound[record.bundle]);
    const T *from = base(), *g = sum();
    const int64_t columns = width();
    const auto bounded = [bound](T x) { return x > bound ? bound : x < -bound ? -bound : x; };
    if (table.rule == Rule::adagrad) {
      const T before = accumulator(), times = factor(g, squares());
      const T twice_n = static_cast<T>(2 * int64_t{record.ticks});
      const bool one = record.ticks == 1;
#pragma omp simd
      for (int64_t d = 0; d < columns; ++d) {
        const T grown = times * g[d] * g[d];
        const T rate = one ? lr / (std::sqrt(before + grown) + eps) : mean_rate(lr, eps, before, grown, twice_n);
        out[d] = bounded(from[d] - rate * g[d]);
      }
      return;
    }
    T rate = lr;
    if (table.rule == Rule::rowwise_adagrad) {
      const T before = accumulator(), grown = squares();
      rate = record.ticks == 1 ? lr / (std::sqrt(before + grown) + eps)
                               : mean_rate(lr, eps, before, grown, static_cast<T>(2 * int64_t{record.ticks}));
    }
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) out[d] = bounded(from[d] - rate * g[d]);
  }
};

template <int W, class T> HPCREC_INLINE void prefetch_copy(const CopyPlaces& of, const CopyTable<T>& table, int64_t k) {
  const int64_t slot = of.slots[k];
  if (slot < 0) return;
  prefetch(table.rows + slot * 2 * (W ? W : table.width), 2 * (W ? W : table.width));
  if (table.numbers) prefetch(table.numbers + 2 * slot, 1);
}

// Calls f(width, place, row, record) for each place whose slot is not -1; nothing is asked of a record but its bundle.
template <class T, class F>
void over_rows(const CopyPlaces& of, const CopyTable<T>& table, int64_t least, const char* kernel, F&& f) {
  std::atomic<bool> good{true};
  with_width<T>(table.width, [&](auto w) {
    constexpr int W = decltype(w)::value;
    const int64_t its_bytes = 2 * table.width * static_cast<int64_t>(sizeof(T));
    const int64_t ahead = std::max<int64_t>(4, std::min<int64_t>(32, row_bytes_ahead / its_bytes));
    over_places(of, table.width, least, kernel, [&](Range mine, int) {
      for (int64_t k = mine.first; k < std::min(mine.first + ahead, mine.last); ++k) prefetch_copy<W>(of, table, k);
      over_records(of, mine, [&](int64_t k, int64_t slot, CopyRecord& record) {
        if (k + ahead < mine.last) prefetch_copy<W>(of, table, k + ahead);
        if (is_bundle(record.bundle, table.n_bundles)) f(w, k, CopyRow<W, T>{table, slot}, record);
        else good = false;
      });
    });
  });
  if (good) return;
  require_bundles(of, table.n_bundles);
  refuse_changed(kernel);
}

}  // namespace

void kept_copies(const CopyPlaces& of, int64_t from, bool* kept) {
  over_places(of, 16, -1, "kept_copies", [&](Range mine, int) {
    std::fill(kept + mine.first, kept + mine.last, false);
    over_records(of, mine, [=](int64_t k, int64_t, const CopyRecord& record) {
      kept[k] = record.has_values != 0 && record.at >= from;
    });
  });
}

template <class T> void read_copies(const CopyPlaces& of, const CopyTable<T>& table, const CameRows<T>& came) {
  over_rows(of, table, -1, "read_copies", [&](auto, int64_t k, auto row, CopyRecord& record) {
    const size_t n_bytes = sizeof(T) * static_cast<size_t>(row.width());
    T* value = came.values + k * row.width();
    const bool comes = came.sent[k];
    if (comes) {
      record.has_values = 1;
      record.at = static_cast<int32_t>(came.step);
      record.scale = came.scale;
      std::memcpy(row.base(), value, n_bytes);
      if (came.accumulators) row.accumulator() = came.accumulators[k];
    }
    if (record.ticks > 0) row.preview(record, record.scale, value);
    else if (!comes) std::memcpy(value, row.base(), n_bytes);
  });
}

int64_t tick_copies(const CopyPlaces& of, int64_t step, double scale, int64_t most, int64_t* over) {
  std::vector<Range> found(static_cast<size_t>(pieces_of(team(of.n * 16))), Range{0, 0});
  over_places(of, 16, -1, "tick_copies", [&](Range mine, int piece) {
    int64_t last = mine.first;
    over_records(of, mine, [&](int64_t k, int64_t, CopyRecord& record) {
      if (record.ticks == 0) record.since = static_cast<int32_t>(step);
      record.ticks = static_cast<int32_t>(static_cast<uint32_t>(record.ticks) + 1);
      record.scale = scale;
      if (record.ticks > most) over[last++] = k;
    });
    found[static_cast<size_t>(piece)] = {mine.first, last};
  });
  int64_t n = 0;
  for (const Range& some : found) {
    std::copy(over + some.first, over + some.last, over + n);
    n += some.last - some.first;
  }
  return n;
}

template <class T> void add_to_copies(const CopyPlaces& of, const CopyTable<T>& table, const T* gradients) {
  over_rows(of, table, -1, "add_to_copies", [&](auto w, int64_t k, auto row, const CopyRecord& record) {
    const int64_t columns = row.width();
    const T* __restrict g = gradients + k * columns;
    T* __restrict sum = row.sum();
    const bool first = record.ticks == 1;  // then what is there is another time's
    if (first) {
      std::memcpy(sum, g, sizeof(T) * static_cast<size_t>(columns));
    } else {
#pragma omp simd
      for (int64_t d = 0; d < columns; ++d) sum[d] += g[d];
    }
    if (!table.numbers) return;
    const T squares = squared_norm<decltype(w)::value>(g, columns) / static_cast<T>(columns);
    row.squares() = first ? squares : row.squares() + squares;
  });
}

template <class T>
void sums_of_copies(const CopyPlaces& of, const CopyTable<T>& table, const double* scale, T* sums, T* squares) {
  over_rows(of, table, 0, "sums_of_copies", [&](auto, int64_t k, auto row, const CopyRecord& record) {
    T* sum = sums + k * row.width();
    std::memcpy(sum, row.sum(), sizeof(T) * static_cast<size_t>(row.width()));
    if (squares) squares[k] = table.rule == Rule::adagrad ? row.factor(sum, row.squares()) : row.squares();
    if (!scale) return;
    if (record.ticks > 0) row.preview(record, *scale, row.base());
    if (table.numbers) row.accumulator() += row.squares();
  });
}

void end_ticks(const CopyPlaces& of, bool forget, int64_t* ticks) {
  over_places(of, 16, 0, "end_ticks", [&](Range mine, int) {
    over_records(of, mine, [=](int64_t k, int64_t, CopyRecord& record) {
      ticks[k] = record.ticks;
      record.ticks = 0;
      if (forget) record.has_values = 0;
    });
  });
}

template void read_copies(const CopyPlaces&, const CopyTable<float>&, const CameRows<float>&);
template void read_copies(const CopyPlaces&, const CopyTable<double>&, const CameRows<double>&);
template void add_to_copies(const CopyPlaces&, const CopyTable<float>&, const float*);
template void add_to_copies(const CopyPlaces&, const CopyTable<double>&, const double*);
template void sums_of_copies(const CopyPlaces&, const CopyTable<float>&, const double*, float*, float*);
template void sums_of_copies(const CopyPlaces&, const CopyTable<double>&, const double*, double*, double*);

}  // namespace hpcrec
