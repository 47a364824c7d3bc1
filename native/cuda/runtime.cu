// The device's runtime, each call checked; the emulator's is the host's.
#include "device.h"

#include <mutex>

namespace hpcrec::cuda {

#ifdef __CUDACC__

void check(cudaError_t code, const char* call, int64_t size) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // told here, and not again by the next call
  throw std::runtime_error(std::string(call) + "(" + std::to_string(size) + "): " + cudaGetErrorString(code) + " (" +
                           cudaGetErrorName(code) + ")");
}

int multiprocessors() {
  int device = 0, found = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", 0);
  check(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute", device);
  return found;
}

namespace {
// Freed memory that the driver keeps for the next call: by default none after a wait, and mapping it takes time.
void keep_some_memory() {
  constexpr int most_devices = 64;
  static std::once_flag once[most_devices];
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice", 0);
  if (device >= most_devices) return;
  std::call_once(once[device], [=] {
    cudaMemPool_t pool;
    uint64_t kept = uint64_t{1} << 30;  // sorting the ids of a large batch takes 0.7 GB
    check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool", device);
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept), "cudaMemPoolSetAttribute", device);
  });
}
}  // namespace

void* allocate(int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  keep_some_memory();
  void* memory = nullptr;
  check(cudaMallocAsync(&memory, static_cast<size_t>(bytes), stream), "cudaMallocAsync, bytes", bytes);
  return memory;
}

void release(void* memory, cudaStream_t stream) {
  // In a destructor: an error is left to the next call that has one of its own.
  if (memory && cudaFreeAsync(memory, stream) != cudaSuccess) cudaGetLastError();
}

void zero(void* memory, int64_t bytes, cudaStream_t stream) {
  check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream), "cudaMemsetAsync, bytes", bytes);
}

void copy_to_host(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  const auto size = static_cast<size_t>(bytes);
  check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync, bytes", bytes);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize, bytes copied", bytes);
}

void copy_to_device(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  check(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync, bytes", bytes);
}

#else

int multiprocessors() {
  return 2;
}

void* allocate(int64_t bytes, cudaStream_t) {
  void* memory = std::malloc(static_cast<size_t>(bytes));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0xa5, static_cast<size_t>(bytes));  // what is read before it is written shows
  return memory;
}

void release(void* memory, cudaStream_t) {
  std::free(memory);
}

void zero(void* memory, int64_t bytes, cudaStream_t) {
  std::memset(memory, 0, static_cast<size_t>(bytes));
}

void copy_to_host(void* to, const void* from, int64_t bytes, cudaStream_t) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void copy_to_device(void* to, const void* from, int64_t bytes, cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace hpcrec::cuda
