// Packing and reading packed numbers on the device. A warp finds the width of a block and packs it; the blocks' places
// are sums of their bytes; then each number is read by itself.
#include "packed.h"

#include <algorithm>

#include "lanes.h"
#include "primitives.h"

namespace hpcrec::cuda {
namespace {

constexpr int block_numbers = static_cast<int>(packed_block);
constexpr int numbers_a_lane = block_numbers / static_cast<int>(all_lanes);
constexpr int warps_a_block = static_cast<int>(block_threads / all_lanes);
constexpr int64_t packing_blocks = 8;  // a multiprocessor
constexpr int widths_a_thread = 16;    // of blocks whose places are added up at a time
constexpr int64_t nowhere = -1;

// A number as it is packed: itself, or what lies between it and the one before.
__device__ __forceinline__ uint64_t number_at(const int64_t* numbers, int64_t i, bool rising) {
  const auto x = static_cast<uint64_t>(numbers[i]);
  return rising ? x - static_cast<uint64_t>(i ? numbers[i - 1] : -1) - 1 : x;
}

// Bits of each number of a block, from every bit that one of its numbers has, over the warp.
__device__ __forceinline__ int width_of_warp(uint64_t bits, unsigned lane) {
#pragma unroll
  for (int other = 16; other > 0; other /= 2)
    bits |= __shfl_sync(0xffffffffu, bits, static_cast<int>(lane) ^ other, 32);
  int width = 0;
  for (int step = 32; step > 0; step /= 2)
    if (bits >> step) {
      bits >>= step;
      width += step;
    }
  width += bits != 0;
  return width > most_packed_bits ? static_cast<int>(whole_word_bits) : width;
}

__device__ __forceinline__ int width_of_block(const int64_t* numbers, int64_t first, int64_t n, bool rising,
                                              unsigned lane) {
  uint64_t bits = 0;
#pragma unroll
  for (int j = 0; j < numbers_a_lane; ++j) {
    const int64_t i = first + lane + j * static_cast<int64_t>(all_lanes);
    if (i < n) bits |= number_at(numbers, i, rising);
  }
  return width_of_warp(bits, lane);
}

__host__ __device__ inline int64_t bytes_of(int64_t n_numbers, int64_t width) {
  return (n_numbers * width + 7) / 8;
}
__device__ __forceinline__ int64_t numbers_in(int64_t block, int64_t n) {
  const int64_t left = n - block * packed_block;
  return left < packed_block ? left : packed_block;
}

// Adds the bytes of all blocks to two sums: packed, and packed rising.
__global__ void __launch_bounds__(block_threads, 1)
    count_bytes(const int64_t* numbers, int64_t n, unsigned long long* sums) {
  const unsigned lane = threadIdx.x % all_lanes;
  const int64_t n_warps = static_cast<int64_t>(gridDim.x) * warps_a_block,
                n_blocks = (n + packed_block - 1) / packed_block;
  unsigned long long plain = 0, rising = 0;
  for (int64_t block = this_thread() / all_lanes; block < n_blocks; block += n_warps) {
    const int64_t first = block * packed_block, here = numbers_in(block, n);
    plain += 1 + static_cast<unsigned long long>(bytes_of(here, width_of_block(numbers, first, n, false, lane)));
    rising += 1 + static_cast<unsigned long long>(bytes_of(here, width_of_block(numbers, first, n, true, lane)));
  }
  if (lane != 0) return;
  atomicAdd(sums, plain);
  atomicAdd(sums + 1, rising);
}

// Writes each block's width, and its bytes.
__global__ void __launch_bounds__(block_threads, 1)
    write_widths(const int64_t* numbers, int64_t n, bool rising, uint8_t* widths, int64_t* bytes) {
  const int64_t block = this_thread() / all_lanes;
  const unsigned lane = threadIdx.x % all_lanes;
  if (block * packed_block >= n) return;
  const int width = width_of_block(numbers, block * packed_block, n, rising, lane);
  if (lane != 0) return;
  widths[block] = static_cast<uint8_t>(width);
  bytes[block] = bytes_of(numbers_in(block, n), width);
}

// A warp packs a block: its numbers come through shared memory, and lanes write bytes side by side.
__global__ void __launch_bounds__(block_threads, 1)
    write_blocks(const int64_t* numbers, int64_t n, int64_t n_blocks, bool rising, const uint8_t* widths,
                 const int64_t* ends, uint8_t* out, int64_t size, unsigned* faults) {
  __shared__ uint64_t memory[warps_a_block * block_numbers];
  const int64_t block = this_thread() / all_lanes;
  const unsigned lane = threadIdx.x % all_lanes;
  if (block >= n_blocks) return;
  if (ends[n_blocks - 1] != size) {
    note(faults, bad_packed_size);
    return;
  }
  uint64_t* const own = memory + threadIdx.x / all_lanes * block_numbers;
  const int here = static_cast<int>(numbers_in(block, n)), width = widths[block];
  for (int i = static_cast<int>(lane); i < here; i += static_cast<int>(all_lanes))
    own[i] = number_at(numbers, block * packed_block + i, rising);
  __syncwarp(0xffffffffu);
  const int n_bytes = static_cast<int>(bytes_of(here, width));
  uint8_t* const to = out + ends[block] - n_bytes;
  for (int byte = static_cast<int>(lane); byte < n_bytes; byte += static_cast<int>(all_lanes)) {
    int i = byte * 8 / width;
    const int shift = byte * 8 - i * width;
    uint64_t bits = own[i] >> shift;
    for (int have = width - shift; have < 8 && ++i < here; have += width) bits |= own[i] << have;
    to[byte] = static_cast<uint8_t>(bits);
  }
}

// Where each block's bytes begin, with its width: places[block] = begin * 128 + width, or `nowhere`. A block of threads
// takes the sections that lie one behind the other.
__global__ void __launch_bounds__(block_threads, 1)
    place_blocks(const uint8_t* data, const Section* sections, const Bytes* all, int64_t* places, unsigned* faults) {
  __shared__ int64_t memory[block_threads];
  const Bytes bytes = all[blockIdx.x];
  int64_t at = bytes.at;
  bool good = true;
  for (int s = bytes.first_section; s < bytes.first_section + bytes.n_sections; ++s) {
    const Section section = sections[s];
    const int64_t n = section.end_number - section.first_number, n_blocks = (n + packed_block - 1) / packed_block;
    const int64_t widths = at;
    good = good && n_blocks <= bytes.end - at;
    at = good ? at + n_blocks : at;
    constexpr int64_t step = static_cast<int64_t>(block_threads) * widths_a_thread;
    for (int64_t from = 0; from < n_blocks; from += step) {
      const int64_t mine = from + threadIdx.x * static_cast<int64_t>(widths_a_thread);
      int64_t own = 0;
      for (int64_t block = mine; block < mine + widths_a_thread && block < n_blocks; ++block)
        if (good) own += bytes_of(numbers_in(block, n), data[widths + block]);
      memory[threadIdx.x] = own;
      __syncthreads();
      for (unsigned other = 1; other < block_threads; other *= 2) {
        const int64_t more = threadIdx.x >= other ? memory[threadIdx.x - other] : 0;
        __syncthreads();
        memory[threadIdx.x] += more;
        __syncthreads();
      }
      int64_t begin = at + memory[threadIdx.x] - own;
      for (int64_t block = mine; block < mine + widths_a_thread && block < n_blocks; ++block) {
        const int64_t width = good ? data[widths + block] : 0, here = bytes_of(numbers_in(block, n), width);
        const bool there = good && (width <= most_packed_bits || width == whole_word_bits) && begin + here <= bytes.end;
        if (!there) note(faults, bytes.fault);
        places[section.first_block + block] = there ? begin * 128 + width : nowhere;
        begin += here;
      }
      at += memory[block_threads - 1];
      __syncthreads();  // before the memory is used again
    }
  }
  if (threadIdx.x == 0 && (!good || at != bytes.end)) note(faults, bytes.fault);
}

__global__ void __launch_bounds__(block_threads, 1)
    read_numbers(const uint8_t* data, const Section* sections, int64_t n_sections, const int64_t* places,
                 int64_t n_numbers, int64_t* out) {
  const int64_t number = this_thread();
  if (number >= n_numbers) return;
  const Section section = sections[range_of(number, n_sections, [=](int64_t s) { return sections[s].end_number; })];
  const int64_t i = number - section.first_number, place = places[section.first_block + i / packed_block];
  uint64_t found = 0;
  if (place != nowhere) {
    const int64_t width = place % 128, first_bit = i % packed_block * width, shift = first_bit % 8;
    const uint8_t* from = data + place / 128 + first_bit / 8;
    for (int64_t byte = 0; byte * 8 < shift + width; ++byte) found |= static_cast<uint64_t>(from[byte]) << (8 * byte);
    found >>= shift;
    if (width < whole_word_bits) found &= (uint64_t{1} << width) - 1;
  }
  out[number] = static_cast<int64_t>(section.rising && i > 0 ? found + 1 : found);
}

}  // namespace

PackedBytes packed_bytes(const int64_t* numbers, int64_t n, const Queue& queue) {
  const Scratch<unsigned long long> sums(2, queue.stream);
  zero(sums.data(), 2 * sizeof(unsigned long long), queue.stream);
  const int64_t blocks = blocks_for(packed_blocks(n) * all_lanes);
  launch("packed_bytes", count_bytes, std::min(blocks, packing_blocks * multiprocessors()), 1, block_threads,
         queue.stream, numbers, n, sums.data());
  unsigned long long found[2] = {0, 0};
  copy_to_host(found, sums.data(), sizeof found, queue.stream);
  return {static_cast<int64_t>(found[0]), static_cast<int64_t>(found[1])};
}

void pack_numbers(const int64_t* numbers, int64_t n, bool rising, uint8_t* out, int64_t size, const Queue& queue) {
  const int64_t n_blocks = packed_blocks(n), blocks = blocks_for(n_blocks * all_lanes);
  if (size < n_blocks || (n == 0 && size > 0))
    throw std::invalid_argument("numbers do not take the " + std::to_string(size) + " bytes of out");
  const Scratch<int64_t> ends(n_blocks, queue.stream);
  launch("pack_numbers: widths", write_widths, blocks, 1, block_threads, queue.stream, numbers, n, rising, out,
         ends.data());
  inclusive_sum(ends.data(), n_blocks, ends.data(), queue);
  launch("pack_numbers", write_blocks, blocks, 1, block_threads, queue.stream, numbers, n, n_blocks, rising,
         static_cast<const uint8_t*>(out), static_cast<const int64_t*>(ends.data()), out + n_blocks, size - n_blocks,
         queue.faults);
}

void read_sections(const uint8_t* data, const std::vector<Section>& sections, const std::vector<Bytes>& bytes,
                   int64_t* out, const Queue& queue) {
  if (sections.empty()) return;
  const auto n_sections = static_cast<int64_t>(sections.size()), n_bytes = static_cast<int64_t>(bytes.size());
  const Section& last = sections.back();
  const Scratch<Section> sections_there(n_sections, queue.stream);
  const Scratch<Bytes> bytes_there(n_bytes, queue.stream);
  const Scratch<int64_t> places(last.first_block + packed_blocks(last.end_number - last.first_number), queue.stream);
  copy_to_device(sections_there.data(), sections.data(), n_sections * static_cast<int64_t>(sizeof(Section)),
                 queue.stream);
  copy_to_device(bytes_there.data(), bytes.data(), n_bytes * static_cast<int64_t>(sizeof(Bytes)), queue.stream);
  launch("unpack: blocks", place_blocks, n_bytes, 1, block_threads, queue.stream, data,
         static_cast<const Section*>(sections_there.data()), static_cast<const Bytes*>(bytes_there.data()),
         places.data(), queue.faults);
  launch("unpack: numbers", read_numbers, blocks_for(last.end_number), 1, block_threads, queue.stream, data,
         static_cast<const Section*>(sections_there.data()), n_sections, static_cast<const int64_t*>(places.data()),
         last.end_number, out);
}

void unpack_numbers(const uint8_t* packed, int64_t size, int64_t n, bool rising, int64_t* out, const Queue& queue) {
  read_sections(packed, {{0, n, 0, rising}}, {{0, size, 0, 1, bad_packed}}, out, queue);
  if (rising) inclusive_sum(out, n, out, queue);
}

}  // namespace hpcrec::cuda
