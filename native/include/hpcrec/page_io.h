// Reads of rows and transfers of whole pieces, many at a time: by a ring or by threads, past the page cache where files
// are opened so, or by threads that read mapped files, which is for memory that keeps what is in it.
//
// A job is a batch; jobs are worked on side by side, reads before writes. Whoever submits one keeps its memory until it
// has waited for it. Knows pages; not which rows are where. The definition is hpcrec/disk/reference.py.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "hpcrec/pages.h"

namespace hpcrec {

// What went wrong with the first request of a job, by its place, that did.
struct Outcome {
  Wrong wrong = Wrong::nothing;
  int error = 0;      // errno, of Wrong::system
  int64_t place = 0;  // of the request in its job
};

struct Request {
  bool write;
  int file;
  uint8_t* memory;  // null: the reader's own
  int64_t bytes, offset;
};

class Job {
 public:
  virtual ~Job() = default;
  virtual int64_t size() const = 0;
  virtual bool writes() const = 0;
  virtual Request request(int64_t i) const = 0;
  // The bytes of request i have come, to `memory`.
  virtual Wrong came(int64_t i, const uint8_t* memory) const = 0;

 private:
  friend class PageIo;
  int64_t next_ = 0, left_ = 0;
  Outcome outcome_;
};

// Records out of pages: of page p those numbers [start[p], start[p + 1]), each to a row of the columns.
struct RowReads : Job {
  PageLayout layout;
  std::vector<Column> columns;
  int64_t n;  // pages
  const int64_t *file, *page, *segment, *start;
  const int64_t *number, *row, *at;  // of each record: its place in the page, whose it is, to which row it goes

  int64_t size() const override { return n; }
  bool writes() const override { return false; }
  Request request(int64_t i) const override;
  Wrong came(int64_t i, const uint8_t* memory) const override;
};

// Bytes of files to memory, or from it.
struct Transfers : Job {
  bool write;
  int64_t n;
  const int64_t *file, *offset, *start, *bytes;  // start: in `memory`
  uint8_t* memory;

  int64_t size() const override { return n; }
  bool writes() const override { return write; }
  Request request(int64_t i) const override {
    return {write, static_cast<int>(file[i]), memory + start[i], bytes[i], offset[i]};
  }
  Wrong came(int64_t, const uint8_t*) const override { return Wrong::nothing; }
};

enum class Way { ring, threads, mapped };

class PageIo {
 public:
  // At most `depth` requests under way; `page_bytes`: of the largest page that rows are read from. Throws
  // std::system_error where there shall be a ring and the system lets none be had.
  PageIo(Way way, int depth, int64_t page_bytes);
  ~PageIo();  // what was submitted is done first

  int64_t submit(std::unique_ptr<Job> job);
  // Of each job once.
  Outcome wait(int64_t ticket);
  bool is_done(int64_t ticket);
  // For tests: of the reads, or writes, that are complete from now on, that with so many before it fails so.
  void fail(bool writes, int64_t after, int error);
  int64_t bytes() const { return memory_bytes_; }

 private:
  using Shared = std::shared_ptr<Job>;
  struct Taken {
    Shared job;
    int64_t place = 0, moved = 0;  // bytes
    Request request{};
  };
  struct Free {
    void operator()(uint8_t* memory) const;
  };

  bool pending() const;
  bool take(Taken& taken);
  int64_t over(const Taken& taken, int64_t result);
  void finish(const Taken& taken, Wrong wrong, int error);
  Wrong checked(const Taken& taken, const uint8_t* memory) const;
  uint8_t* memory_of(const Taken& taken, size_t slot) const;
  void by_ring(std::condition_variable& begun, int& error);
  void by_threads(size_t slot);
  Wrong moved_all(Taken& taken, size_t slot, int& error) const;
  Wrong from_map(const Taken& taken, int& error) const;
  void run_ring(class Ring& ring, bool known);

  const Way way_;
  const int depth_;
  const int64_t page_bytes_, memory_bytes_;
  std::unique_ptr<uint8_t, Free> memory_;
  std::mutex busy_;
  std::condition_variable work_, done_;
  std::deque<Shared> reads_, writes_;  // with requests that nobody has taken
  std::map<int64_t, Shared> jobs_;     // that nobody has waited for
  int64_t tickets_ = 0;
  int writing_ = 0;
  bool stop_ = false;
  struct {
    int64_t after = -1;
    int error = 0;
  } fault_[2];
  std::vector<std::thread> threads_;
};

}  // namespace hpcrec
