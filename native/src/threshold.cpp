// All values of a block are compared before any is looked at, into the bits of a word: so only the picked ones cost a
// step. A threshold is found digit by digit of the magnitudes' bits.
#include "hpcrec/threshold.h"

#include <algorithm>
#include <atomic>
#include <experimental/simd>
#include <vector>

#include "hpcrec/bits.h"
#include "hpcrec/check.h"
#include "hpcrec/marks.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
// Magnitudes have 31 bits; exponents make up most of the first digit, so that few values share one.
constexpr int first_bits = 11, digit_bits = 10, low_bits = 2 * digit_bits;
constexpr int64_t most_digits = int64_t{1} << first_bits;

namespace simd = std::experimental;
using Lanes = simd::native_simd<int32_t>;
constexpr int32_t first_guess = 127 << 23;  // the bits of 1

constexpr uint32_t bit[word_bits / 2] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
    1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
    1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

// Bit i: whether is(values[i]), for the first n, at most a word's bits.
template <class T, class Is> uint64_t bits_where(const T* values, int64_t n, Is&& is) {
  uint64_t bits = 0;
  if (n < word_bits) {
    for (int64_t i = 0; i < n; ++i) bits |= static_cast<uint64_t>(is(values[i])) << i;
    return bits;
  }
  constexpr int64_t half = word_bits / 2;  // in lanes that are as wide as the values
  for (int64_t first = 0; first < word_bits; first += half) {
    uint32_t part = 0;
    for (int64_t i = 0; i < half; ++i) part |= is(values[first + i]) ? bit[i] : 0;
    bits |= static_cast<uint64_t>(part) << first;
  }
  return bits;
}

// Marks values of [0, n) that reach tau, after prepare(first, last) was called for the word of each; returns how many.
template <class Prepare> int64_t mark(const float* values, int64_t n, float tau, uint64_t* marks, Prepare&& prepare) {
  const uint32_t least = magnitude_of(tau);
  std::atomic<int64_t> found{0};
  parallel_pieces(team(n), [&](int piece, int pieces) {
    const Range mine = share(words_of(n), piece, pieces);
    int64_t in_piece = 0;
    for (int64_t w = mine.first; w < mine.last; ++w) {
      const int64_t first = w * word_bits, in_word = std::min(word_bits, n - first);
      prepare(first, first + in_word);
      marks[w] = bits_where(values + first, in_word, [=](float x) { return magnitude_of(x) >= least; });
      in_piece += __builtin_popcountll(marks[w]);
    }
    found += in_piece;
  });
  return found;
}

// Calls f(k, i) for the k-th marked one, value i.
template <class F> void for_marked(int64_t n, const uint64_t* marks, int64_t k, F&& f) {
  const int n_team = team(n);
  const auto word = [=](int64_t w) { return marks[w]; };
  const std::vector<int64_t> starts = count_set(words_of(n), n_team, word);
  if (starts.back() != k || !for_set(words_of(n), n_team, starts, word, f)) refuse_changed("selection");
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
    const int64_t end = starts[piece + 1];  // passed only where another thread writes to the values meanwhile
    for (int64_t first = mine.first; first < mine.last; first += word_bits) {
      uint64_t bits = bits_where(values + first, std::min(word_bits, mine.last - first),
                                 [=](float x) { return clamped(x) >> low_bits == high; });
      for (; bits && to < end; bits &= bits - 1)
        found[to++] = clamped(values[first + __builtin_ctzll(bits)]) & ((1u << low_bits) - 1);
    }
  });
  return found;
}

// What the magnitudes that are picked reach. Where more reach it: how many of those that equal it are picked.
struct Least {
  int32_t magnitude;
  bool more;
  int64_t equals;
};

// Finds it in vector after vector: from where it was in the one before, which is often near. Where that was does not
// change what is found.
class LeastOf {
 public:
  // Of n magnitudes, behind which there is -1 up to whole lanes, the `keep` largest.
  Least operator()(const int32_t* magnitudes, int64_t n, int64_t keep) {
    if (keep == n) return {0, false, 0};
    int32_t low = 0, high = infinite_bits;  // `keep` or more reach low, fewer what is above high:
    int64_t at_low = n, above_high = 0;     // so many
    int32_t middle = before_;
    for (int looks = 0;; ++looks) {
      const int64_t found = reaching(magnitudes, n, middle);
      if (found >= keep) low = middle, at_low = found;
      else high = middle - 1, above_high = found;
      if (found == keep || low == high) break;
      const int64_t range = int64_t{high} - low;
      if (looks >= most_looks) middle = static_cast<int32_t>(low + 1 + range / 2);
      else if (high == infinite_bits) middle = low + std::min(first_gap << looks, high - low);
      else if (low == 0) middle = high - std::min(first_gap << looks, high - 1);
      else middle = static_cast<int32_t>(low + 1 + range * (at_low - keep) / (at_low - above_high));
    }
    before_ = std::max(low, 1);
    return {low, at_low > keep, keep - above_high};
  }

 private:
  static constexpr int32_t first_gap = 1 << 21;  // a quarter between a magnitude and its double
  static constexpr int most_looks = 8;           // by what was counted; then by halves, since many may be equal

  static int64_t reaching(const int32_t* magnitudes, int64_t n, int32_t least) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += Lanes::size())
      found += simd::popcount(Lanes(magnitudes + i, simd::element_aligned) >= least);
    return found;
  }

  int32_t before_ = first_guess;
};

}  // namespace

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

int64_t mark_above(const float* values, int64_t n, float tau, uint64_t* marks) {
  return mark(values, n, tau, marks, [](int64_t, int64_t) {});
}

int64_t mark_sum(const float* gradient, float* residual, int64_t n, float tau, uint64_t* marks) {
  return mark(residual, n, tau, marks, [=](int64_t first, int64_t last) {
    const float* __restrict from = gradient;
    float* __restrict sum = residual;
    for (int64_t i = first; i < last; ++i) sum[i] += from[i];
  });
}

void take_marked(const float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen) {
  for_marked(n, marks, k, [=](int64_t at, int64_t i) {
    positions[at] = i;
    chosen[at] = values[i];
  });
}

void take_largest(const float* values, int64_t n_vectors, int64_t width, int64_t keep, int64_t* positions,
                  float* chosen) {
  if (n_vectors == 0) return;  // of any width
  const int n_team = team(n_vectors * width);
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n_vectors, piece, pieces);
    std::vector<int32_t> magnitudes(width + Lanes::size(), -1);
    LeastOf least_of;
    for (int64_t v = mine.first; v < mine.last; ++v) {
      const float* of = values + v * width;
      for (int64_t i = 0; i < width; ++i) magnitudes[i] = static_cast<int32_t>(clamped(of[i]));
      const Least least = least_of(magnitudes.data(), width, keep);
      int64_t at = v * keep, equals = least.equals;
      for (int64_t first = 0; first < width; first += word_bits) {
        const int64_t n = std::min(word_bits, width - first);
        uint64_t bits = bits_where(magnitudes.data() + first, n, [=](int32_t m) { return m >= least.magnitude; });
        for (; bits; bits &= bits - 1) {
          const int64_t i = first + __builtin_ctzll(bits);
          if (least.more && magnitudes[i] == least.magnitude && equals-- <= 0) continue;
          positions[at] = v * width + i;
          chosen[at++] = of[i];
        }
      }
    }
  });
}

void cut_marked(float* values, int64_t n, const uint64_t* marks, int64_t k, int64_t* positions, float* chosen) {
  for_marked(n, marks, k, [=](int64_t at, int64_t i) {
    positions[at] = i;
    chosen[at] = values[i];
    values[i] = 0;
  });
}

}  // namespace hpcrec
