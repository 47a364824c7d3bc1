// What kernels and their launchers are written against: CUDA where nvcc compiles them, else the emulator's part of it.
// Every call of the runtime is checked; what fails is thrown with the call's name and sizes, a RuntimeError in Python.
#pragma once
#if defined(HPCREC_EMULATED)
#include "emulator.h"
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>  // the bindings: no kernels
#endif

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace hpcrec::cuda {

constexpr unsigned block_threads = 256;
constexpr unsigned all_lanes = 32;
constexpr unsigned most_grid_y = 65535;
constexpr int64_t most_blocks = (int64_t{1} << 31) - 1;

// What a kernel found wrong in the arrays that it was given: bits of a word in device memory, which the launcher's
// caller zeroes and reads. The kernel has then left out what it could not do.
enum Fault : unsigned {
  bad_offsets = 1,
  bad_index = 2,
  bad_start = 4,
  bad_order = 8,
  bad_unique = 16,
  bad_part = 32,
  bad_positions = 64,
  bad_mask = 128,
  bad_overlap = 256,
  bad_winner = 512,
  bad_packed = 1024,
  bad_packed_size = 2048,
  bad_ids = 4096,
  bad_lengths = 8192,
  bad_id = 16384,
  bad_slot = 32768
};

// Where a call runs, and where it notes faults.
struct Queue {
  cudaStream_t stream;
  unsigned* faults;
};

// Streaming multiprocessors of the current device.
int multiprocessors();
// Memory of the stream's order: it may be freed while what uses it is still queued.
void* allocate(int64_t bytes, cudaStream_t stream);
void release(void* memory, cudaStream_t stream);
void zero(void* memory, int64_t bytes, cudaStream_t stream);
// Waits for what is queued before.
void copy_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream);

// Copies before it returns, or before the stream's later work: `from` may then be freed.
void copy_to_device(void* to, const void* from, int64_t bytes, cudaStream_t stream);

template <class T> class Scratch {
  cudaStream_t stream_;
  T* data_;

 public:
  Scratch(int64_t n, cudaStream_t stream)
      : stream_(stream), data_(static_cast<T*>(allocate(n * static_cast<int64_t>(sizeof(T)), stream))) {}
  ~Scratch() { release(data_, stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }
};

#ifndef HPCREC_EMULATED
// Throws where `code` is an error: "cudaMallocAsync(4096 bytes): out of memory".
void check(cudaError_t code, const char* call, int64_t size);
#endif

#if defined(__CUDACC__)
template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), int64_t blocks, unsigned grid_y, unsigned threads,
            cudaStream_t stream, A&&... args) {
  if (blocks == 0 || grid_y == 0) return;
  if (blocks > most_blocks || grid_y > most_grid_y)
    throw std::runtime_error(std::string(name) + ": a grid of " + std::to_string(blocks) + " x " +
                             std::to_string(grid_y) + " blocks is more than a device takes; split the call");
  kernel<<<dim3(static_cast<unsigned>(blocks), grid_y), threads, 0, stream>>>(std::forward<A>(args)...);
  check(cudaGetLastError(), name, blocks * threads);
}
#elif defined(HPCREC_EMULATED)
template <class... P, class... A>
void launch(const char*, void (*kernel)(P...), int64_t blocks, unsigned grid_y, unsigned threads, cudaStream_t,
            A&&... args) {
  emulated::run({static_cast<unsigned>(blocks), grid_y, 1}, {threads, 1, 1}, [&] { kernel(args...); });
}
#endif

}  // namespace hpcrec::cuda
