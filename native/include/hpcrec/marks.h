// Words of 64 bits, one for each of n things: which bits are set, found by several threads in the order of the bits.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "hpcrec/parallel.h"

namespace hpcrec {

constexpr int64_t word_bits = 64;

inline int64_t words_of(int64_t n) {
  return n / word_bits + (n % word_bits != 0);
}

// How many are set in each piece of the words, as where the pieces' own begin; the last is how many there are in all.
// word(w) is word w.
template <class Word> std::vector<int64_t> count_set(int64_t n_words, int n_team, Word&& word) {
  std::vector<int64_t> starts(pieces_of(n_team) + 1, 0);
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n_words, piece, pieces);
    int64_t found = 0;
    for (int64_t w = mine.first; w < mine.last; ++w) found += __builtin_popcountll(word(w));
    starts[piece + 1] = found;
  });
  for (size_t piece = 1; piece < starts.size(); ++piece) starts[piece] += starts[piece - 1];
  return starts;
}

// Calls f(k, i) for the k-th bit that is set, bit i, with the starts that count_set gave; returns false where the words
// are not those of then.
template <class Word, class F>
bool for_set(int64_t n_words, int n_team, const std::vector<int64_t>& starts, Word&& word, F&& f) {
  std::atomic<bool> good{true};
  parallel_pieces(n_team, [&](int piece, int pieces) {
    const Range mine = share(n_words, piece, pieces);
    int64_t k = starts[piece];
    for (int64_t w = mine.first; w < mine.last; ++w) {
      uint64_t bits = word(w);
      if (__builtin_popcountll(bits) > starts[piece + 1] - k) break;
      for (; bits; bits &= bits - 1, ++k) f(k, w * word_bits + __builtin_ctzll(bits));
    }
    if (k != starts[piece + 1]) good = false;
  });
  return good;
}

}  // namespace hpcrec
