// Jobs, their requests and who works on them.
#include "hpcrec/page_io.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include "hpcrec/gone.h"
#include "hpcrec/ring.h"

namespace hpcrec {
namespace {
constexpr int64_t sector_bytes = 4096;  // what direct transfers are aligned to, at most
constexpr int most_writing = 4;         // large ones: a disk is busy with fewer, and reads come between

int64_t rounded(int64_t bytes) {
  return (bytes + sector_bytes - 1) / sector_bytes * sector_bytes;
}
}  // namespace

Request RowReads::request(int64_t i) const {
  return {false, static_cast<int>(file[i]), nullptr, layout.page_bytes, page[i] * layout.page_bytes};
}

Wrong RowReads::came(int64_t i, const uint8_t* memory) const {
  const Wrong wrong = check_page(layout, memory, static_cast<uint32_t>(segment[i]), static_cast<uint32_t>(page[i]));
  if (wrong != Wrong::nothing) return wrong;
  for (int64_t k = start[i]; k < start[i + 1]; ++k)
    if (!unpack(layout, memory, number[k], row[k], columns, at[k])) return Wrong::another_row;
  return Wrong::nothing;
}

void PageIo::Free::operator()(uint8_t* memory) const {
  std::free(memory);
}

PageIo::PageIo(Way way, int depth, int64_t page_bytes)
    : way_(way), depth_(depth), page_bytes_(rounded(page_bytes)), memory_bytes_(depth * page_bytes_) {
  memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(sector_bytes, static_cast<size_t>(memory_bytes_))));
  if (!memory_) throw std::bad_alloc();
  if (way == Way::mapped) watch_for_gone_memory();
  if (way == Way::ring) {
    std::condition_variable begun;
    int error = -1;
    std::unique_lock<std::mutex> lock(busy_);
    threads_.emplace_back([this, &begun, &error] { by_ring(begun, error); });
    begun.wait(lock, [&] { return error >= 0; });
    if (error > 0) {
      lock.unlock();
      threads_[0].join();
      threads_.clear();
      throw std::system_error(error, std::generic_category(), "io_uring");
    }
  } else {
    try {
      for (int i = 0; i < depth; ++i) threads_.emplace_back([this, i] { by_threads(static_cast<size_t>(i)); });
    } catch (const std::system_error&) {  // no more threads can be had: those that there are do the work
      if (threads_.empty()) throw;
    }
  }
}

PageIo::~PageIo() {
  {
    std::lock_guard<std::mutex> lock(busy_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

int64_t PageIo::submit(std::unique_ptr<Job> job) {
  const Shared shared(std::move(job));
  std::lock_guard<std::mutex> lock(busy_);
  shared->left_ = shared->size();
  jobs_[++tickets_] = shared;
  if (shared->left_ > 0) {
    (shared->writes() ? writes_ : reads_).push_back(shared);
    if (shared->left_ == 1) work_.notify_one();
    else work_.notify_all();
  }
  return tickets_;
}

Outcome PageIo::wait(int64_t ticket) {
  std::unique_lock<std::mutex> lock(busy_);
  const auto found = jobs_.find(ticket);
  if (found == jobs_.end()) throw std::invalid_argument("wait: no such job, or it was waited for before");
  const Shared job = found->second;
  jobs_.erase(found);
  done_.wait(lock, [&] { return job->left_ == 0; });
  return job->outcome_;
}

bool PageIo::is_done(int64_t ticket) {
  std::lock_guard<std::mutex> lock(busy_);
  const auto found = jobs_.find(ticket);
  return found == jobs_.end() || found->second->left_ == 0;
}

void PageIo::fail(bool writes, int64_t after, int error) {
  std::lock_guard<std::mutex> lock(busy_);
  fault_[writes].after = after;
  fault_[writes].error = error;
}

bool PageIo::pending() const {
  return !reads_.empty() || (!writes_.empty() && writing_ < most_writing);
}

// The next request, under the lock.
bool PageIo::take(Taken& taken) {
  const bool write = reads_.empty();
  if (!pending()) return false;
  std::deque<Shared>& queue = write ? writes_ : reads_;
  taken.job = queue.front();
  taken.place = taken.job->next_++;
  taken.moved = 0;
  taken.request = taken.job->request(taken.place);
  writing_ += write;
  if (taken.job->next_ == taken.job->size()) queue.pop_front();
  if (stop_ && reads_.empty() && writes_.empty()) work_.notify_all();
  return true;
}

uint8_t* PageIo::memory_of(const Taken& taken, size_t slot) const {
  uint8_t* all = taken.request.memory;
  return (all ? all : memory_.get() + static_cast<int64_t>(slot) * page_bytes_) + taken.moved;
}

Wrong PageIo::checked(const Taken& taken, const uint8_t* memory) const {
  return taken.request.write ? Wrong::nothing : taken.job->came(taken.place, memory);
}

// A request is over, for better or worse.
void PageIo::finish(const Taken& taken, Wrong wrong, int error) {
  std::lock_guard<std::mutex> lock(busy_);
  auto& fault = fault_[taken.request.write];
  if (fault.after >= 0 && fault.after-- == 0) {
    wrong = Wrong::system;
    error = fault.error;
  }
  Outcome& outcome = taken.job->outcome_;
  if (wrong != Wrong::nothing && (outcome.wrong == Wrong::nothing || taken.place < outcome.place))
    outcome = {wrong, error, taken.place};
  if (taken.request.write) {
    --writing_;
    if (!writes_.empty()) work_.notify_one();
  }
  if (--taken.job->left_ == 0) done_.notify_all();
}

void PageIo::by_threads(size_t slot) {
  for (;;) {
    Taken taken;
    {
      std::unique_lock<std::mutex> lock(busy_);
      work_.wait(lock, [&] { return pending() || (stop_ && reads_.empty() && writes_.empty()); });
      if (!take(taken)) return;
    }
    int error = 0;
    const bool mapped = way_ == Way::mapped && !taken.request.write;
    const Wrong wrong = mapped ? from_map(taken, error) : moved_all(taken, slot, error);
    finish(taken, wrong, error);
  }
}

Wrong PageIo::moved_all(Taken& taken, size_t slot, int& error) const {
  const Request& of = taken.request;
  while (taken.moved < of.bytes) {
    uint8_t* to = memory_of(taken, slot);
    const auto rest = static_cast<size_t>(of.bytes - taken.moved);
    const ssize_t n = of.write ? pwrite(of.file, to, rest, of.offset + taken.moved)
                               : pread(of.file, to, rest, of.offset + taken.moved);
    if (n > 0) taken.moved += n;
    else if (n == 0) return Wrong::short_file;
    else if (errno != EINTR && errno != EAGAIN) {
      error = errno;
      return Wrong::system;
    }
  }
  taken.moved = 0;
  return checked(taken, memory_of(taken, slot));
}

// A read where the file is in the process's addresses: of memory that keeps what is in it nothing is copied first.
Wrong PageIo::from_map(const Taken& taken, int& error) const {
  const Request& of = taken.request;
  struct stat there;
  const int64_t first = of.offset / sector_bytes * sector_bytes;
  const auto length = static_cast<size_t>(of.offset - first + of.bytes);
  void* map = MAP_FAILED;
  if (fstat(of.file, &there) == 0) {
    if (there.st_size < of.offset + of.bytes) return Wrong::short_file;
    map = mmap(nullptr, length, PROT_READ, MAP_SHARED, of.file, first);
  }
  if (map == MAP_FAILED) {
    error = errno;
    return Wrong::system;
  }
  const uint8_t* at = static_cast<const uint8_t*>(map) + (of.offset - first);
  Wrong wrong = Wrong::nothing;
  const bool whole = all_there([&] {
    if (of.memory) std::memcpy(of.memory, at, static_cast<size_t>(of.bytes));
    wrong = checked(taken, of.memory ? of.memory : at);
  });
  munmap(map, length);
  return whole ? wrong : Wrong::gone;
}

void PageIo::by_ring(std::condition_variable& begun, int& error) {
  std::unique_ptr<Ring> ring;
  int found = 0;
  try {
    ring = std::make_unique<Ring>(static_cast<unsigned>(depth_));
  } catch (const std::system_error& refused) {
    found = refused.code().value();
  }
  const bool known = ring && ring->know(memory_.get(), memory_bytes_);
  {
    std::lock_guard<std::mutex> lock(busy_);
    error = found;
    begun.notify_one();  // under the lock: it is gone once the other thread has seen it
  }
  if (ring) run_ring(*ring, known);
}

void PageIo::run_ring(Ring& ring, bool known) {
  std::vector<Taken> slots(static_cast<size_t>(depth_));
  std::vector<size_t> free;
  for (size_t i = slots.size(); i > 0; --i) free.push_back(i - 1);
  const auto ask = [&](size_t slot) {
    const Taken& taken = slots[slot];
    const Request& of = taken.request;
    ring.add(of.write, of.file, memory_of(taken, slot), static_cast<unsigned>(of.bytes - taken.moved),
             of.offset + taken.moved, slot, known && !of.memory);
  };
  const auto complete = [&](size_t slot, int32_t result) {
    Taken& taken = slots[slot];
    if (result > 0) taken.moved += result;
    if (result == -EINTR || result == -EAGAIN || (result > 0 && taken.moved < taken.request.bytes)) return ask(slot);
    Wrong wrong = result < 0 ? Wrong::system : result == 0 ? Wrong::short_file : Wrong::nothing;
    taken.moved = 0;
    if (wrong == Wrong::nothing) wrong = checked(taken, memory_of(taken, slot));
    finish(taken, wrong, -std::min(result, 0));
    taken.job.reset();
    free.push_back(slot);
  };
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(busy_);
      if (free.size() == slots.size()) work_.wait(lock, [&] { return stop_ || pending(); });
      while (!free.empty() && take(slots[free.back()])) {
        ask(free.back());
        free.pop_back();
      }
    }
    const size_t under_way = slots.size() - free.size();
    if (under_way == 0) return;  // stop_, and nothing is left
    // Some at a time: a call for each would cost as much as the rest of a read.
    ring.enter(static_cast<unsigned>(std::max<size_t>(1, under_way / 8)));
    ring.drain([&](uint64_t slot, int32_t result) { complete(slot, result); });
  }
}

}  // namespace hpcrec
