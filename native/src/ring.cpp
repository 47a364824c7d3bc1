// System calls of io_uring. Where the headers of the machine that builds are older than they are, there is none.
#include "hpcrec/ring.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__NR_io_uring_setup) && defined(IORING_FEAT_RW_CUR_POS)
#define HPCREC_RING 1
#endif
#endif

namespace hpcrec {
namespace {
[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}
}  // namespace

#ifdef HPCREC_RING
namespace {
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

int setup(unsigned depth, io_uring_params& params) {
  // Completions are worked on when this thread asks for them, not by interrupting it; kernels before 6.1 do not know.
  for (unsigned flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0U}) {
    params = {};
    params.flags = flags;
    const long file = syscall(__NR_io_uring_setup, depth, &params);
    if (file >= 0) return static_cast<int>(file);
    if (errno != EINVAL) break;
  }
  fail(errno, "io_uring_setup");
}

template <class T = uint32_t> T* at(uint8_t* base, uint32_t offset) {
  return reinterpret_cast<T*>(base + offset);
}
}  // namespace

Ring::Ring(unsigned depth) {
  static_assert(sizeof(Done) == sizeof(io_uring_cqe));
  io_uring_params params;
  file_ = setup(depth, params);
  const unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS | IORING_FEAT_NODROP;
  if ((params.features & needed) != needed) {
    close(file_);
    fail(ENOSYS, "io_uring of a kernel before 5.6");
  }
  const uint64_t asked = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
  const uint64_t done = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  rings_bytes_ = asked > done ? asked : done;
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  auto map = [this](uint64_t bytes, int64_t where) {
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_, where);
    return found == MAP_FAILED ? nullptr : static_cast<uint8_t*>(found);
  };
  rings_ = map(rings_bytes_, IORING_OFF_SQ_RING);
  entries_ = rings_ ? map(entries_bytes_, static_cast<int64_t>(IORING_OFF_SQES)) : nullptr;
  if (!entries_) {
    const int error = errno;
    unmap();
    fail(error, "mmap of io_uring");
  }
  asked_tail_ = at(rings_, params.sq_off.tail);
  asked_mask_ = *at(rings_, params.sq_off.ring_mask);
  asked_ = at(rings_, params.sq_off.array);
  done_head_ = at(rings_, params.cq_off.head);
  done_tail_ = at(rings_, params.cq_off.tail);
  done_mask_ = *at(rings_, params.cq_off.ring_mask);
  done_ = at<const Done>(rings_, params.cq_off.cqes);
  tail_ = *asked_tail_;
}

Ring::~Ring() {
  unmap();
}

void Ring::unmap() {
  if (entries_) munmap(entries_, entries_bytes_);
  if (rings_) munmap(rings_, rings_bytes_);
  close(file_);
}

bool Ring::know(void* memory, int64_t bytes) {
  const iovec all{memory, static_cast<size_t>(bytes)};
  return syscall(__NR_io_uring_register, file_, IORING_REGISTER_BUFFERS, &all, 1) == 0;
}

void Ring::add(bool write, int file, void* memory, unsigned bytes, int64_t offset, uint64_t name, bool known) {
  io_uring_sqe& entry = at<io_uring_sqe>(entries_, 0)[tail_ & asked_mask_];
  std::memset(&entry, 0, sizeof entry);
  if (known) entry.opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
  else entry.opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
  entry.fd = file;
  entry.off = static_cast<uint64_t>(offset);
  entry.addr = reinterpret_cast<uintptr_t>(memory);
  entry.len = bytes;
  entry.user_data = name;
  asked_[tail_ & asked_mask_] = tail_ & asked_mask_;
  ++tail_;
  ++added_;
}

void Ring::enter(unsigned wait) {
  __atomic_store_n(asked_tail_, tail_, __ATOMIC_RELEASE);
  const long taken = syscall(__NR_io_uring_enter, file_, added_, wait, wait ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
  if (taken >= 0) added_ -= static_cast<uint32_t>(taken);  // those that it has no room for come with the next call
  else if (errno == ENOMEM) usleep(1000);                  // a full memory group, say: the next call may find room
  else if (errno != EINTR && errno != EAGAIN && errno != EBUSY) fail(errno, "io_uring_enter");
}
#else
Ring::Ring(unsigned) {
  fail(ENOSYS, "io_uring, which this build has no headers of");
}
Ring::~Ring() = default;
void Ring::unmap() {}
bool Ring::know(void*, int64_t) {
  return false;
}
void Ring::add(bool, int, void*, unsigned, int64_t, uint64_t, bool) {}
void Ring::enter(unsigned) {}
#endif

}  // namespace hpcrec
