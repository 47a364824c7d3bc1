// Rows of halves: all of them made and read; and updates of touched ones, fused with the merge of their gradients.
#include "hpcrec/half_rows.h"

#include "hpcrec/apply.h"

namespace hpcrec {
void to_half_rows(const float* rows, int64_t n, int64_t width, int64_t first_row, const HalfRows& out) {
  parallel_pieces(team(n * width), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    with_rounding(out, [&](auto element, auto nearest) {
      for (int64_t i = mine.first; i < mine.last; ++i)
        write_row<decltype(element), decltype(nearest)::value>(
            rows + i * width, width, key_of_row(out.draws, first_row + i), out.bits + i * width);
    });
  });
}

void from_half_rows(const uint16_t* bits, HalfKind kind, int64_t n, float* out) {
  parallel_pieces(team(n), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    const uint16_t* from = bits + mine.first;
    const int64_t count = mine.last - mine.first;
    if (kind == HalfKind::fp16) read_elements(reinterpret_cast<const Fp16*>(from), count, out + mine.first);
    else read_elements(reinterpret_cast<const Bf16*>(from), count, out + mine.first);
  });
}

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
