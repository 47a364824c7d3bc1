// One read of the values, in blocks: the largest magnitude of a block says whether it is looked at one by one, which
// few are where few are picked. A threshold is found digit by digit of the magnitudes' bits.
#include "hpcrec/threshold.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <utility>

#include "hpcrec/bits.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int64_t block = 64;   // values that are passed over, or looked at, together
constexpr int64_t room = 2048;  // picked values that memory is had for at once

// Magnitudes have 31 bits; exponents make up most of the first digit, so that few values share one.
constexpr int first_bits = 11, digit_bits = 10, low_bits = 2 * digit_bits;
constexpr int64_t most_digits = int64_t{1} << first_bits;

}  // namespace

struct Selection::Some {
  int64_t n = 0;
  int64_t positions[room];
  float chosen[room];
};

namespace {

// Looks at values [first, last), which become 0 where they are picked, if FEEDBACK; returns how many there are then.
template <bool FEEDBACK, class Value>
int64_t look(Value* __restrict values, int64_t first, int64_t last, uint32_t tau, int64_t k,
             int64_t* __restrict positions, float* __restrict chosen) {
  for (int64_t i = first; i < last; ++i) {  // without a branch, which no core could predict
    const float x = values[i];
    const bool picked = magnitude_of(x) >= tau;
    positions[k] = i;
    chosen[k] = x;
    k += picked;
    if constexpr (FEEDBACK) values[i] = picked ? 0.0f : x;
  }
  return k;
}

// Picks from values [mine), whose largest magnitude in [first, last) is largest(first, last).
template <bool FEEDBACK, class Value, class Largest>
void pick(Value* values, Range mine, uint32_t tau, Largest&& largest, Selection::Piece& to) {
  for (int64_t first = mine.first; first < mine.last; first += block) {
    const int64_t last = std::min(mine.last, first + block);
    if (largest(first, last) < tau) continue;
    if (to.empty() || to.back()->n > room - block) to.emplace_back(new Selection::Some);
    Selection::Some& some = *to.back();
    some.n = look<FEEDBACK>(values, first, last, tau, some.n, some.positions, some.chosen);
  }
}

template <class Pick> Selection in_pieces(int64_t n, Pick&& pick_range) {
  const int n_team = team(n);
  Selection found(pieces_of(n_team));
  std::atomic<bool> room_for_all{true};
  parallel_pieces(n_team, [&](int piece, int pieces) {
    try {
      pick_range(share(n, piece, pieces), found.pieces[piece]);
    } catch (const std::bad_alloc&) {  // which must not leave a thread
      room_for_all = false;
    }
  });
  if (!room_for_all) throw std::bad_alloc();
  return found;
}

// Magnitude where that of NaN is infinite.
inline uint32_t clamped(float x) {
  return std::min(magnitude_of(x), infinite_bits);
}

// How often there is each of [0, n_digits) among digit(i), i in [0, n): piece by piece. A digit may also be n_digits,
// which is not counted.
template <class Digit> std::vector<int64_t> count_digits(int64_t n, int n_team, int64_t n_digits, Digit&& digit) {
  constexpr int n_sets = 4;  // neighbours often have one digit: they are counted apart, or would wait for each other
  std::vector<int64_t> counts(pieces_of(n_team) * n_digits);
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    int64_t sets[n_sets][most_digits + 1];
    for (auto& set : sets) std::fill_n(set, n_digits + 1, 0);
    int64_t i = mine.first;
    for (; i + n_sets <= mine.last; i += n_sets)
      for (int set = 0; set < n_sets; ++set) ++sets[set][digit(i + set)];
    for (; i < mine.last; ++i) ++sets[0][digit(i)];
    int64_t* to = counts.data() + piece * n_digits;
    for (int64_t d = 0; d < n_digits; ++d)
      for (const auto& set : sets) to[d] += set[d];
  });
  return counts;
}

// The digit of the keep-th largest; `keep` becomes its number among those that have this digit.
int64_t digit_of(const std::vector<int64_t>& counts, int64_t n_digits, int64_t& keep) {
  for (int64_t d = n_digits - 1; d > 0; --d) {
    int64_t found = 0;
    for (size_t at = d; at < counts.size(); at += n_digits) found += counts[at];
    if (found >= keep) return d;
    keep -= found;
  }
  return 0;
}

// The low bits of the magnitudes that begin with the digit `high`; `counts` of all.
std::vector<uint32_t> low_bits_of(const float* values, int64_t n, int n_team, uint32_t high,
                                  const std::vector<int64_t>& counts) {
  std::vector<int64_t> starts{0};
  for (size_t at = high; at < counts.size(); at += most_digits) starts.push_back(starts.back() + counts[at]);
  std::vector<uint32_t> found(starts.back());
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    int64_t to = starts[piece];
    const int64_t end = starts[piece + 1];
    for (int64_t first = mine.first; first < mine.last; first += block) {
      uint32_t held[block];
      const int64_t in_block = std::min(block, mine.last - first);
      int64_t k = 0;
      for (int64_t i = 0; i < in_block; ++i) {
        const uint32_t magnitude = clamped(values[first + i]);
        held[k] = magnitude & ((1u << low_bits) - 1);
        k += magnitude >> low_bits == high;
      }
      k = std::min(k, end - to);  // more only where another thread writes to the values meanwhile
      std::copy_n(held, k, found.begin() + to);
      to += k;
    }
  });
  return found;
}

}  // namespace

Selection::Selection(int n) : pieces(n) {}
Selection::Selection(Selection&&) noexcept = default;
Selection::~Selection() = default;

int64_t Selection::size() const {
  int64_t n = 0;
  for (const Piece& piece : pieces)
    for (const auto& some : piece) n += some->n;
  return n;
}

void Selection::write(int64_t* positions, float* chosen) const {
  std::vector<std::pair<const Some*, int64_t>> parts;  // and where each goes
  int64_t at = 0;
  for (const Piece& piece : pieces)
    for (const auto& some : piece) {
      parts.emplace_back(some.get(), at);
      at += some->n;
    }
  parallel_pieces(team(at), [&](int piece, int n_pieces) {
    const Range mine = share(static_cast<int64_t>(parts.size()), piece, n_pieces);
    for (int64_t p = mine.first; p < mine.last; ++p) {
      const auto& [some, to] = parts[p];
      std::copy_n(some->positions, some->n, positions + to);
      std::copy_n(some->chosen, some->n, chosen + to);
    }
  });
}

float threshold_of(const float* values, int64_t n, int64_t keep) {
  const int n_team = team(n / 16);  // threads wait for each other after each digit: worth it for many values only
  const auto counts = count_digits(n, n_team, most_digits, [=](int64_t i) { return clamped(values[i]) >> low_bits; });
  const auto high = static_cast<uint32_t>(digit_of(counts, most_digits, keep));
  const std::vector<uint32_t> rest = low_bits_of(values, n, n_team, high, counts);
  const uint32_t* of = rest.data();
  const int64_t n_rest = static_cast<int64_t>(rest.size()), n_digits = int64_t{1} << digit_bits;
  const int rest_team = team(n_rest / 16);
  const auto middle = static_cast<uint32_t>(digit_of(
      count_digits(n_rest, rest_team, n_digits, [=](int64_t i) { return of[i] >> digit_bits; }), n_digits, keep));
  const auto low =
      static_cast<uint32_t>(digit_of(count_digits(n_rest, rest_team, n_digits,
                                                  [=](int64_t i) -> int64_t {
                                                    const int64_t digit = of[i] & (n_digits - 1);
                                                    return of[i] >> digit_bits == middle ? digit : n_digits;
                                                  }),
                                     n_digits, keep));
  return float_of(high << low_bits | middle << digit_bits | low);
}

Selection select_above(const float* values, int64_t n, float tau) {
  const uint32_t least = magnitude_of(tau);
  return in_pieces(n, [=](Range mine, Selection::Piece& to) {
    const auto largest = [=](int64_t first, int64_t last) {
      uint32_t found = 0;
      for (int64_t i = first; i < last; ++i) found = std::max(found, magnitude_of(values[i]));
      return found;
    };
    pick<false>(values, mine, least, largest, to);
  });
}

Selection select_with_feedback(const float* gradient, float* residual, int64_t n, float tau) {
  const uint32_t least = magnitude_of(tau);
  return in_pieces(n, [=](Range mine, Selection::Piece& to) {
    const auto largest = [=](int64_t first, int64_t last) {
      const float* __restrict add = gradient;
      float* __restrict sum = residual;
      uint32_t found = 0;
      for (int64_t i = first; i < last; ++i) {
        sum[i] += add[i];
        found = std::max(found, magnitude_of(sum[i]));
      }
      return found;
    };
    pick<true>(residual, mine, least, largest, to);
  });
}

}  // namespace hpcrec
