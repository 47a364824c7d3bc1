// Rows of halves made, read and written: loops without branches, so that compilers can turn them into vector code.
#include "hpcrec/half_rows.h"

#include <algorithm>

#include "hpcrec/apply.h"

namespace hpcrec {
namespace {

template <class E> void read_elements(const E* __restrict from, int64_t n, float* __restrict out) {
  constexpr int lanes = 8;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = lanes_at<float, lanes>(from + i);
    std::memcpy(out + i, &x, sizeof x);
  }
  for (; i < n; ++i) out[i] = widened(from[i]);
}

void read_elements(const uint16_t* from, HalfKind kind, int64_t n, float* out) {
  if (kind == HalfKind::fp16) read_elements(reinterpret_cast<const Fp16*>(from), n, out);
  else read_elements(reinterpret_cast<const Bf16*>(from), n, out);
}

template <class E>
void write_row(const float* __restrict from, int64_t width, const HalfRows& rows, int64_t row,
               uint16_t* __restrict out) {
  if (rows.nearest) {
    for (int64_t d = 0; d < width; ++d) out[d] = nearest_half<E>(from[d]);
    return;
  }
  constexpr int64_t most_words = 32;
  const uint64_t key = key_of_row(rows.draws, row);
  for (int64_t first = 0; first < width; first += 2 * most_words) {
    const int64_t n = std::min(2 * most_words, width - first), n_words = (n + 1) / 2;
    uint32_t words[most_words];
    uint16_t random[2 * most_words];
    for (int64_t i = 0; i < n_words; ++i) words[i] = random_word(key, static_cast<uint32_t>(first / 2 + i));
    std::memcpy(random, words, sizeof(uint32_t) * n_words);
    for (int64_t d = 0; d < n; ++d) out[first + d] = stochastic_half<E>(from[first + d], random[d]);
  }
}

void write_row(const float* from, int64_t width, const HalfRows& rows, int64_t row, uint16_t* out) {
  if (rows.kind == HalfKind::fp16) write_row<Fp16>(from, width, rows, row, out);
  else write_row<Bf16>(from, width, rows, row, out);
}

}  // namespace

void read_rows(const HalfRows& rows, const int64_t* ids, int64_t n, int64_t width, float* out) {
  for (int64_t i = 0; i < n; ++i) read_elements(rows.bits + ids[i] * width, rows.kind, width, out + i * width);
}

void write_rows(const HalfRows& rows, const int64_t* ids, int64_t n, int64_t width, const float* from) {
  for (int64_t i = 0; i < n; ++i) write_row(from + i * width, width, rows, ids[i], rows.bits + ids[i] * width);
}

void to_half_rows(const float* rows, int64_t n, int64_t width, int64_t first_row, const HalfRows& out) {
  parallel_pieces(team(n * width), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    for (int64_t i = mine.first; i < mine.last; ++i)
      write_row(rows + i * width, width, out, first_row + i, out.bits + i * width);
  });
}

void from_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out) {
  parallel_pieces(team(n), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    read_elements(bits + mine.first, kind, mine.last - mine.first, out + mine.first);
  });
}

// In this file, and not with the others, so that it is compiled beside them.
void merge_update(const Target<float, HalfRows>& target, const Occurrences<float>& from, const Learning<float>& how) {
  bool good = false;
  with_width<float>(target.width, [&](auto w) {
    good = merge_into<float, decltype(w)::value, false>(from, ApplyHalves{target, how});
  });
  if (good) return;
  require_below("unique", target.unique, target.n_unique, target.n_rows);
  require_occurrences(from);
  refuse_changed("merge_update");
}

}  // namespace hpcrec
