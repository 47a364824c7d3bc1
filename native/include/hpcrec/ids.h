// Ids: stable grouping and partition, seeded hashes and permutations, initial rows.
#pragma once
#include <cstdint>

namespace hpcrec {

// Groups n ids by value, stably. unique and order have room for n, segments for n + 1. Returns the distinct ids.
// order holds positions of ids, or, where offsets [n_bags + 1] are given, the bags that they lie in.
int64_t group(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, int64_t* unique, int64_t* segments,
              int64_t* order);
// Distinct ids, ascending, and for each id its place among them. unique has room for n.
int64_t dedup(const int64_t* ids, int64_t n, int64_t* unique, int64_t* inverse);
// Stable counting sort by part; counts has n_parts elements.
void partition(const int32_t* part, int64_t n, int64_t n_parts, int64_t* counts, int64_t* order);

void permute(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, bool inverse, int64_t* out);
void hash_ids(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, int64_t* out);
template <class T>
void init_rows(uint64_t seed, const int64_t* ids, int64_t n, int64_t width, int64_t column_start, double scale, T* out);

}  // namespace hpcrec
