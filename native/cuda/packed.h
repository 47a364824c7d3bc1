// Packed numbers, and bags of several senders that come packed, on the device: the calls of hpcrec/packed.h and
// hpcrec/unpack.h, over device memory and in a stream's order.
#pragma once
#include <vector>

#include "device.h"
#include "hpcrec/packed.h"
#include "hpcrec/unpack.h"

namespace hpcrec::cuda {

// Waits for them.
PackedBytes packed_bytes(const int64_t* numbers, int64_t n, const Queue& queue);
void pack_numbers(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, int64_t size, const Queue& queue);
void unpack_numbers(const uint8_t* packed, int64_t size, int64_t n, bool rising, int64_t* out, const Queue& queue);
// `asked` is of the host.
void unpack(const uint8_t* message, int64_t size, const Asked* asked, int64_t n, int64_t width, const Joined& to,
            const Queue& queue);

// Packed numbers of several places, which are read together: all numbers count, and all blocks.
struct Section {
  int64_t first_number, end_number, first_block;
  bool rising;
};
// Bytes [at, end) with consecutive sections one behind the other, which have to fill them.
struct Bytes {
  int64_t at, end;
  int32_t first_section, n_sections;
  unsigned fault;  // noted where they do not
};
// Reads all sections' numbers to out; those that rise as what has to be added up over the section. What is not there
// reads as 0. Both lists are of the host.
void read_sections(const uint8_t* data, const std::vector<Section>& sections, const std::vector<Bytes>& bytes,
                   int64_t* out, const Queue& queue);

// The first of n ranges that ends behind `at`, by their ends.
template <class End> __host__ __device__ inline int64_t range_of(int64_t at, int64_t n, End&& end) {
  int64_t low = 0, high = n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (end(middle) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace hpcrec::cuda
