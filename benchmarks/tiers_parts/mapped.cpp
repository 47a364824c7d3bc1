// A mapped file of records, one behind the other: the system reads and writes its pages. Arguments: FOLDER ROWS
// RECORD_BYTES LIMIT_BYTES. Commands: see worker.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker.h"

namespace {
class Mapped : public Store {
 public:
  Mapped(const std::string& folder, size_t rows, size_t record_bytes) : record_bytes_(record_bytes) {
    file_ = open((folder + "/rows").c_str(), O_RDWR | O_CREAT, 0644);
    n_bytes_ = rows * record_bytes;
    if (file_ < 0 || posix_fallocate(file_, 0, off_t(n_bytes_)) != 0) fail("cannot make the file");
    void* at = mmap(nullptr, n_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (at == MAP_FAILED) fail("cannot map the file");
    memory_ = static_cast<char*>(at);
    madvise(memory_, n_bytes_, MADV_RANDOM);
  }
  ~Mapped() override {
    munmap(memory_, n_bytes_);
    close(file_);
  }

  void read(const int32_t* rows, int64_t n, char* into, int threads) override {
    in_parts(n, threads, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i)
        std::memcpy(into + size_t(i) * record_bytes_, memory_ + size_t(rows[i]) * record_bytes_, record_bytes_);
    });
  }

  void write(const int32_t* rows, int64_t n, const char* from, int threads) override {
    in_parts(n, threads, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i)
        std::memcpy(memory_ + size_t(rows[i]) * record_bytes_, from + size_t(i) * record_bytes_, record_bytes_);
    });
  }

  void settle() override { write_pages(file_); }

 private:
  size_t record_bytes_, n_bytes_;
  int file_;
  char* memory_;
};
}  // namespace

int main(int, char** arguments) {
  const size_t rows = std::stoull(arguments[2]), record_bytes = std::stoull(arguments[3]);
  Mapped store(arguments[1], rows, record_bytes);
  Worker(store, record_bytes).serve();
}
