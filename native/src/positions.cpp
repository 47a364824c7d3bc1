// Rising positions: pieces of them touch different elements, and different words of a mask.
#include "hpcrec/positions.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/check.h"
#include "hpcrec/marks.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int64_t word_bytes = sizeof(uint64_t);

// Whether positions [mine) lie in [0, n) and rise, also from the one before them.
bool all_rising(const int64_t* positions, Range mine, int64_t n) {
  if (mine.first >= mine.last) return true;
  if (positions[mine.first] < 0 || positions[mine.last - 1] >= n) return false;
  int64_t falls = mine.first && positions[mine.first] <= positions[mine.first - 1];
  for (int64_t i = mine.first + 1; i < mine.last; ++i) falls |= static_cast<int64_t>(positions[i] <= positions[i - 1]);
  return falls == 0;
}

// Calls f(range) for blocks of [0, k), each looked at and worked on while it is in the cache, until one returns false;
// whether none did.
template <class F> bool in_blocks(int64_t k, F&& f) {
  constexpr int64_t block = 1024;
  std::atomic<bool> good{true};
  parallel_pieces(team(k), [&](int piece, int pieces) {
    const Range mine = share(k, piece, pieces);
    for (int64_t first = mine.first; first < mine.last; first += block)
      if (!f(Range{first, std::min(mine.last, first + block)})) {
        good = false;
        return;
      }
  });
  return good;
}

// What all_rising refused, in words; returns where it has changed meanwhile.
void refuse_falling(const int64_t* positions, int64_t k, int64_t n) {
  require_below("positions", positions, k, n);
  for (int64_t i = 1; i < k; ++i)
    if (positions[i] <= positions[i - 1])
      throw std::invalid_argument("positions[" + std::to_string(i) + "] is " + std::to_string(positions[i]) +
                                  ", after " + std::to_string(positions[i - 1]) +
                                  "; positions must rise: sort them, each once");
}

// The first of [0, k) whose position is not below `bound`, where they rise; else any of [0, k].
int64_t first_from(const int64_t* positions, int64_t k, int64_t bound) {
  int64_t low = 0, high = k;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (positions[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Values [mine) put into out [of_out), and zeros between, cleared block by block so that values find it in the cache;
// whether positions rise and lie there.
bool expand_range(const int64_t* positions, const float* values, Range mine, Range of_out, float* out) {
  constexpr int64_t block = 2048;
  int64_t i = mine.first, before = of_out.first - 1;
  for (int64_t first = of_out.first; first < of_out.last; first += block) {
    const int64_t end = std::min(of_out.last, first + block);
    std::memset(out + first, 0, (end - first) * sizeof(float));
    for (; i < mine.last && positions[i] < end; ++i) {
      if (positions[i] <= before) return false;
      before = positions[i];
      out[before] = values[i];
    }
  }
  return i == mine.last;
}

// Bytes that word w of a mask of n bits has.
int64_t bytes_of(int64_t w, int64_t n) {
  return std::min(word_bytes, n / 8 + (n % 8 != 0) - w * word_bytes);
}

// The words [words) of a mask, whose positions are [mine); whether these rise and lie there.
bool write_words(const int64_t* positions, Range mine, Range words, int64_t n, uint8_t* out) {
  int64_t i = mine.first, before = words.first * word_bits - 1, falls = 0;
  for (int64_t w = words.first; w < words.last; ++w) {
    const int64_t end = std::min(n, (w + 1) * word_bits);
    uint64_t bits = 0;
    for (; i < mine.last && positions[i] < end; ++i) {
      falls |= static_cast<int64_t>(positions[i] <= before);
      before = positions[i];
      bits |= uint64_t{1} << (before & (word_bits - 1));
    }
    std::memcpy(out + w * word_bytes, &bits, bytes_of(w, n));
  }
  return falls == 0 && i == mine.last;
}

uint64_t read_word(const uint8_t* data, int64_t w, int64_t n) {
  uint64_t bits = 0;
  std::memcpy(&bits, data + w * word_bytes, bytes_of(w, n));
  return bits;
}

}  // namespace

void require_rising(const int64_t* positions, int64_t k, int64_t n) {
  if (all_rising(positions, {0, k}, n)) return;
  refuse_falling(positions, k, n);
  refuse_changed("require_rising");
}

void expand(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k) {
  std::atomic<bool> good{true};
  parallel_pieces(team(n), [&](int piece, int pieces) {
    const Range of_out = share(n, piece, pieces);
    const Range mine{piece ? first_from(positions, k, of_out.first) : 0,
                     piece + 1 < pieces ? first_from(positions, k, of_out.last) : k};
    if (!expand_range(positions, values, mine, of_out, out)) good = false;
  });
  if (good) return;
  refuse_falling(positions, k, n);
  refuse_changed("expand");
}

void scatter_add(float* out, int64_t n, const int64_t* positions, const float* values, int64_t k) {
  const bool good = in_blocks(k, [=](Range some) {
    if (!all_rising(positions, some, n)) return false;
    for (int64_t i = some.first; i < some.last; ++i) out[positions[i]] += values[i];
    return true;
  });
  if (good) return;
  refuse_falling(positions, k, n);
  refuse_changed("scatter_add");
}

void gather(const float* values, int64_t n, const int64_t* positions, int64_t k, float* out) {
  const bool good = in_blocks(k, [=](Range some) {
    if (!all_below(positions + some.first, some.last - some.first, n)) return false;
    for (int64_t i = some.first; i < some.last; ++i) out[i] = values[positions[i]];
    return true;
  });
  if (good) return;
  require_below("positions", positions, k, n);
  refuse_changed("gather");
}

void write_mask(const int64_t* positions, int64_t k, int64_t n, uint8_t* out) {
  std::atomic<bool> good{true};
  parallel_pieces(team(n / 8 + k), [&](int piece, int pieces) {
    const Range words = share(words_of(n), piece, pieces);
    const Range mine{piece ? first_from(positions, k, words.first * word_bits) : 0,
                     piece + 1 < pieces ? first_from(positions, k, words.last * word_bits) : k};
    if (!write_words(positions, mine, words, n, out)) good = false;
  });
  if (good) return;
  refuse_falling(positions, k, n);
  refuse_changed("write_mask");
}

void read_mask(const uint8_t* data, int64_t n, int64_t* positions, int64_t k) {
  const int n_team = team(n / 8 + k);
  const auto word = [=](int64_t w) { return read_word(data, w, n); };
  const std::vector<int64_t> starts = count_set(words_of(n), n_team, word);
  const bool behind = n % 8 && data[n / 8] >> n % 8;  // bits that are not among the n
  if (starts.back() != k || behind)
    throw std::invalid_argument("data: its " + std::to_string(n / 8 + (n % 8 != 0)) + " bytes are not a mask of " +
                                std::to_string(k) + " of " + std::to_string(n) + " positions");
  if (!for_set(words_of(n), n_team, starts, word, [=](int64_t at, int64_t i) { positions[at] = i; }))
    refuse_changed("read_mask");
}

}  // namespace hpcrec
