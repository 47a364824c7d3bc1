// Content checks that NumPy cannot make cheaply: what is refused here would read or write outside an array.
// Each throws std::invalid_argument, a ValueError in Python.
#pragma once
#include <cstdint>

namespace hpcrec {

// Every value in [0, limit).
void require_below(const char* name, const int64_t* values, int64_t n, int64_t limit);
// Offsets of n bags over n_ids ids: begin at 0, never fall, end at n_ids. Returns the longest bag's length.
int64_t require_offsets(const char* name, const int64_t* offsets, int64_t n, int64_t n_ids);
// Vectors of `width` elements that begin at starts[v] (null: v * width) lie inside an array of `size` elements.
void require_vectors(const char* name, const int64_t* starts, int64_t n, int64_t width, int64_t size);

}  // namespace hpcrec
