// A ring of requests to the kernel (io_uring), by its system calls alone: no library has to be there.
//
// Knows requests and completions; not what is read. Of one thread: the one that makes it.
#pragma once
#include <sys/uio.h>

#include <cstdint>

namespace hpcrec {

class Ring {
 public:
  // Throws std::system_error where the kernel has none, or does not let this process have one.
  explicit Ring(unsigned depth);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Memory that reads go to, known to the kernel from now on. False: it does not take it.
  bool know(void* memory, int64_t bytes);
  // At most `depth` requests may be under way. `known`: the memory is a part of what `know` was told.
  void add(bool write, int file, void* memory, unsigned bytes, int64_t offset, uint64_t name, bool known);
  // Hands over what was added, and waits until so many are complete, or a signal comes.
  void enter(unsigned wait);
  // Calls f(name, result) for all that are complete.
  template <class F> void drain(F&& f) {
    uint32_t head = *done_head_;
    const uint32_t tail = __atomic_load_n(done_tail_, __ATOMIC_ACQUIRE);
    for (; head != tail; ++head) {
      const Done& done = done_[head & done_mask_];
      f(done.name, done.result);
    }
    __atomic_store_n(done_head_, head, __ATOMIC_RELEASE);
  }

 private:
  struct Done {  // struct io_uring_cqe
    uint64_t name;
    int32_t result;
    uint32_t flags;
  };

  void unmap();

  int file_ = -1;
  uint8_t *rings_ = nullptr, *entries_ = nullptr;
  uint64_t rings_bytes_ = 0, entries_bytes_ = 0;
  uint32_t *asked_tail_ = nullptr, *asked_ = nullptr, asked_mask_ = 0, tail_ = 0, added_ = 0;
  uint32_t *done_head_ = nullptr, *done_tail_ = nullptr, done_mask_ = 0;
  const Done* done_ = nullptr;
};

}  // namespace hpcrec
