// Seeded functions of ids: hash, permutation, initial rows. All in 64-bit unsigned arithmetic, so exact everywhere.
#include <algorithm>

#include "hpcrec/check.h"
#include "hpcrec/ids.h"
#include "hpcrec/mix.h"
#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
constexpr int n_rounds = 4;

// A Feistel network over 2 * half_bits bits.
struct Feistel {
  uint64_t key[n_rounds], mask;
  int half_bits;

  Feistel(uint64_t rows, uint64_t seed) : half_bits(1) {
    while (half_bits < 32 && (uint64_t{1} << (2 * half_bits)) < rows) ++half_bits;
    mask = (uint64_t{1} << half_bits) - 1;
    for (int r = 0; r < n_rounds; ++r) key[r] = mix(seed + golden * static_cast<uint64_t>(r));
  }
  uint64_t forward(uint64_t x) const {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int r = 0; r < n_rounds; ++r) {
      const uint64_t swapped = left ^ (mix(right + key[r]) & mask);
      left = right;
      right = swapped;
    }
    return left << half_bits | right;
  }
  uint64_t backward(uint64_t x) const {
    uint64_t left = x >> half_bits, right = x & mask;
    for (int r = n_rounds - 1; r >= 0; --r) {
      const uint64_t swapped = right ^ (mix(left + key[r]) & mask);
      right = left;
      left = swapped;
    }
    return left << half_bits | right;
  }
};
}  // namespace

void permute(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, bool inverse, int64_t* out) {
  if (!all_below(ids, n, rows)) require_below("ids", ids, n, rows);
  const uint64_t bound = static_cast<uint64_t>(rows);
  const Feistel net(bound, seed);
  parallel_pieces(team(n * 32), [&](int member, int members) {
    const Range mine = share(n, member, members);
    for (int64_t k = mine.first; k < mine.last; ++k) {
      uint64_t x = static_cast<uint64_t>(ids[k]);
      do {  // walks the cycle until it is back below rows: still a bijection
        x = inverse ? net.backward(x) : net.forward(x);
      } while (x >= bound);
      out[k] = static_cast<int64_t>(x);
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
