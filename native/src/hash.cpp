// Seeded functions of ids: hash, permutation, initial rows. All in 64-bit unsigned arithmetic, so exact everywhere.
#include <algorithm>

#include "hpcrec/check.h"
#include "hpcrec/feistel.h"
#include "hpcrec/ids.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
// Walks cycles until they are back below `bound`: still a bijection. Many at once, and those that have further to go
// again: how far each goes cannot be guessed, and a core that guesses wrong waits longer than the walk takes.
template <class Step> void walk(const int64_t* ids, Range mine, uint64_t bound, const Step& step, int64_t* out) {
  constexpr int64_t many = 256;
  uint64_t x[many];
  int32_t left[many];
  for (int64_t first = mine.first; first < mine.last; first += many) {
    const int32_t n = static_cast<int32_t>(std::min(many, mine.last - first));
    for (int32_t j = 0; j < n; ++j) {
      x[j] = static_cast<uint64_t>(ids[first + j]);
      left[j] = j;
    }
    for (int32_t n_left = n; n_left > 0;) {
      int32_t still = 0;
      for (int32_t i = 0; i < n_left; ++i) {
        const int32_t j = left[i];
        x[j] = step(x[j]);
        left[still] = j;
        still += x[j] >= bound;
      }
      n_left = still;
    }
    for (int32_t j = 0; j < n; ++j) out[first + j] = static_cast<int64_t>(x[j]);
  }
}
}  // namespace

void permute(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, bool inverse, int64_t* out) {
  if (!all_below(ids, n, rows)) require_below("ids", ids, n, rows);
  const uint64_t bound = static_cast<uint64_t>(rows);
  const Feistel net(bound, seed);
  parallel_pieces(team(n * 32), [&](int member, int members) {
    const Range mine = share(n, member, members);
    if (inverse) {
      walk(ids, mine, bound, [&](uint64_t x) { return net.backward(x); }, out);
    } else {
      walk(ids, mine, bound, [&](uint64_t x) { return net.forward(x); }, out);
    }
  });
}

void hash_ids(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, int64_t* out) {
  const uint64_t key = mix(seed), bound = static_cast<uint64_t>(rows);
  parallel_pieces(team(n * 4), [&](int member, int members) {
    const Range mine = share(n, member, members);
    for (int64_t k = mine.first; k < mine.last; ++k) {
      const uint64_t x = mix(static_cast<uint64_t>(ids[k]) ^ key);
      out[k] = static_cast<int64_t>(static_cast<uint64_t>((static_cast<unsigned __int128>(x) * bound) >> 64));
    }
  });
}

template <class T>
void init_rows(uint64_t seed, const int64_t* ids, int64_t n, int64_t width, int64_t column_start, double scale,
               T* out) {
  const uint64_t key = mix(seed);
  parallel_pieces(team(n * width * 4), [&](int member, int members) {
    const Range mine = share(n, member, members);
    for (int64_t i = mine.first; i < mine.last; ++i) {
      const uint64_t row_key = mix(static_cast<uint64_t>(ids[i]) ^ key);
      T* __restrict row = out + i * width;
      for (int64_t d = 0; d < width; ++d) {
        const uint64_t x = mix(row_key + golden * static_cast<uint64_t>(column_start + d));
        const double u = static_cast<double>(static_cast<int64_t>(x >> 11)) * 0x1p-53;
        row[d] = static_cast<T>((2.0 * u - 1.0) * scale);
      }
    }
  });
}

template void init_rows(uint64_t, const int64_t*, int64_t, int64_t, int64_t, double, float*);
template void init_rows(uint64_t, const int64_t*, int64_t, int64_t, int64_t, double, double*);

}  // namespace hpcrec
