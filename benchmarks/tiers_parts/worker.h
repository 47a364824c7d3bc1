// What the programs of existing stores share: commands from standard input, one line of JSON for each.
//
//   fill ROWS                        writes rows 0 to ROWS - 1
//   over FILE                        writes the rows that FILE (int32) names, in this order
//   turn SECONDS THREADS BATCH FILE  FILE (int32) has pairs of batches: reads the first, writes the second
//
// A record begins with its row's number, which every read looks at. Knows no store.
#pragma once
#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

class Store {
 public:
  virtual ~Store() = default;
  // Distinct rows, ascending; records one behind the other.
  virtual void read(const int32_t* rows, int64_t n, char* into, int threads) = 0;
  virtual void write(const int32_t* rows, int64_t n, const char* from, int threads) = 0;
  // Until all that was written is on the disk, and nothing is under way.
  virtual void settle() = 0;
};

// Calls f(first, count) for equal parts of [0, n), each in a thread of its own.
template <class F> void in_parts(int64_t n, int threads, F&& f) {
  if (threads <= 1) return f(int64_t{0}, n);
  std::vector<std::thread> running;
  for (int part = 0; part < threads; ++part) {
    const int64_t first = n * part / threads, last = n * (part + 1) / threads;
    running.emplace_back([&f, first, last] { f(first, last - first); });
  }
  for (std::thread& one : running) one.join();
}

// Writes a file's pages that the system still has; no more than what a write past its cache has done when it returns.
inline void write_pages(int file) {
  const unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  if (sync_file_range(file, 0, 0, all) != 0) fail("cannot write the file");
}

inline double now_s() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return double(at.tv_sec) + 1e-9 * double(at.tv_nsec);
}

inline double cpu_s() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  return double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * double(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

inline std::vector<int32_t> numbers(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail("cannot open " + path);
  std::vector<int32_t> found(size_t(file.tellg()) / sizeof(int32_t));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(found.data()), std::streamsize(found.size() * sizeof(int32_t)));
  return found;
}

class Worker {
 public:
  Worker(Store& store, size_t record_bytes) : store_(store), record_bytes_(record_bytes) {}

  void serve() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command;
      words >> command;
      if (command == "fill") fill(words);
      else if (command == "over") over(words);
      else if (command == "turn") turn(words);
      else fail("no such command: " + line);
      std::cout << std::flush;
    }
  }

 private:
  static constexpr int64_t kAtOnce = 100'000;

  void put(const int32_t* rows, int64_t n, int threads) {
    records_.resize(std::max(records_.size(), size_t(n) * record_bytes_));
    for (int64_t i = 0; i < n; ++i) {
      char* record = records_.data() + size_t(i) * record_bytes_;
      for (size_t at = 0; at < record_bytes_; at += 4) {
        const uint32_t word = uint32_t(rows[i]) + (at == 0 ? 0 : 2654435761u * uint32_t(at + ++count_));
        std::memcpy(record + at, &word, 4);
      }
    }
    store_.write(rows, n, records_.data(), threads);
  }

  void get(const int32_t* rows, int64_t n, int threads) {
    found_.assign(size_t(n) * record_bytes_, 0);
    store_.read(rows, n, found_.data(), threads);
    for (int64_t i = 0; i < n; ++i) {
      int32_t row;
      std::memcpy(&row, found_.data() + size_t(i) * record_bytes_, 4);
      if (row != rows[i]) fail("row " + std::to_string(rows[i]) + " has the record of " + std::to_string(row));
    }
  }

  void fill(std::istringstream& words) {
    int64_t n_rows;
    words >> n_rows;
    std::vector<int32_t> rows;
    for (int64_t first = 0; first < n_rows; first += kAtOnce) {
      rows.resize(size_t(std::min(kAtOnce, n_rows - first)));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = int32_t(first + int64_t(i));
      put(rows.data(), int64_t(rows.size()), 1);
    }
    store_.settle();
    std::cout << "{}\n";
  }

  void over(std::istringstream& words) {
    std::string path;
    words >> path;
    std::vector<int32_t> rows = numbers(path);
    for (size_t first = 0; first < rows.size(); first += kAtOnce) {
      const size_t last = std::min(first + kAtOnce, rows.size());
      std::sort(rows.begin() + long(first), rows.begin() + long(last));
      put(rows.data() + first, int64_t(last - first), 1);
    }
    store_.settle();
    std::cout << "{}\n";
  }

  void turn(std::istringstream& words) {
    double seconds;
    int threads;
    int64_t batch;
    std::string path;
    words >> seconds >> threads >> batch >> path;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail("cannot open " + path);
    std::vector<int32_t> pair(size_t(2 * batch));
    const auto bytes = std::streamsize(pair.size() * sizeof(int32_t));
    const double began = now_s(), used = cpu_s();
    int64_t done = 0;
    for (; now_s() - began < seconds && file.read(reinterpret_cast<char*>(pair.data()), bytes); ++done) {
      get(pair.data(), batch, threads);
      put(pair.data() + batch, batch, threads);
    }
    store_.settle();
    std::cout << "{\"rows\": " << done * batch << ", \"seconds\": " << now_s() - began
              << ", \"cpu_s\": " << cpu_s() - used << "}\n";
  }

  Store& store_;
  size_t record_bytes_;
  std::vector<char> records_, found_;
  uint32_t count_ = 0;
};
