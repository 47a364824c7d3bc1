// Ids on the device: the calls of hpcrec/ids.h, over device memory and in a stream's order. Those that return how many
// distinct ids there are wait for them.
#pragma once
#include "device.h"
#include "hpcrec/ids.h"

namespace hpcrec::cuda {

int64_t group(const int64_t* ids, int64_t n, const int64_t* offsets, int64_t n_bags, int64_t* unique, int64_t* segments,
              int64_t* order, const Queue& queue);
int64_t dedup(const int64_t* ids, int64_t n, int64_t* unique, int64_t* inverse, const Queue& queue);
void partition(const int32_t* part, int64_t n, int64_t n_parts, int64_t* counts, int64_t* order, const Queue& queue);
void permute(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, bool inverse, int64_t* out,
             const Queue& queue);
void hash_ids(const int64_t* ids, int64_t n, int64_t rows, uint64_t seed, int64_t* out, const Queue& queue);
template <class T>
void init_rows(uint64_t seed, const int64_t* ids, int64_t n, int64_t width, int64_t column_start, double scale, T* out,
               const Queue& queue);

}  // namespace hpcrec::cuda
