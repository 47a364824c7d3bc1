// Threads that read and write pages side by side through one PageIo; see threads.cpp. Of the kernel's own writes to
// memory a sanitizer knows nothing; of the orders between threads it does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "hpcrec/page_io.h"

namespace {
using Ints = std::vector<int64_t>;

constexpr int64_t n_pages = 40, segment = 9;
const hpcrec::PageLayout layout{4096, 68, 58};

[[noreturn]] void end(const std::string& why) {
  std::printf("pages: %s\n", why.c_str());
  std::exit(1);
}

struct Pages {
  std::vector<uint8_t> records, memory;
  Ints rows;
  int file;

  explicit Pages(unsigned seed) : records(n_pages * layout.per_page * 68), memory(n_pages * 4096) {
    std::mt19937 random(seed);
    for (auto& byte : records) byte = static_cast<uint8_t>(random());
    for (int64_t i = 0; i < n_pages * layout.per_page; ++i) rows.push_back(3 * i + 1);
    const auto n = static_cast<int64_t>(rows.size());
    hpcrec::pack(layout, {{records.data(), 68}}, nullptr, rows.data(), n, memory.data(), 0);
    hpcrec::seal(layout, memory.data(), n, segment, 0, 1);
    std::FILE* made = std::tmpfile();
    if (!made) end("no temporary file");
    file = fileno(made);
  }

  void write(hpcrec::PageIo& io) {
    const Ints files{file, file}, offsets{0, 4096 * 8}, bytes{4096 * 8, 4096 * (n_pages - 8)};
    auto job = std::make_unique<hpcrec::Transfers>();
    job->write = true;
    job->n = 2;
    job->file = files.data();
    job->offset = job->start = offsets.data();
    job->bytes = bytes.data();
    job->memory = memory.data();
    if (io.wait(io.submit(std::move(job))).wrong != hpcrec::Wrong::nothing) end("they cannot be written");
  }

  void read(hpcrec::PageIo& io, unsigned seed) const {
    std::mt19937 random(seed);
    const int64_t n = 30;
    Ints page, start{0}, number, row, at;
    for (int64_t i = 0; i < n; ++i) {
      page.push_back(static_cast<int64_t>(random() % n_pages));
      number.push_back(static_cast<int64_t>(random() % layout.per_page));
      row.push_back(rows[page.back() * layout.per_page + number.back()]);
      at.push_back(n - 1 - i);
      start.push_back(i + 1);
    }
    const Ints files(n, file), segments(n, segment);
    std::vector<uint8_t> into(n * 68);
    auto job = std::make_unique<hpcrec::RowReads>();
    job->layout = layout;
    job->columns = {{into.data(), 68}};
    job->n = n;
    job->file = files.data();
    job->page = page.data();
    job->segment = segments.data();
    job->start = start.data();
    job->number = number.data();
    job->row = row.data();
    job->at = at.data();
    if (io.wait(io.submit(std::move(job))).wrong != hpcrec::Wrong::nothing) end("they cannot be read");
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < 68; ++k)
        if (into[at[i] * 68 + k] != records[(page[i] * layout.per_page + number[i]) * 68 + k]) end("other bytes");
  }
};
}  // namespace

void disk_pages(unsigned seed) {
  for (const hpcrec::Way way : {hpcrec::Way::ring, hpcrec::Way::threads, hpcrec::Way::mapped}) {
    std::unique_ptr<hpcrec::PageIo> io;
    try {
      io = std::make_unique<hpcrec::PageIo>(way, 4, 4096);
    } catch (const std::system_error&) {
      continue;  // no ring here
    }
    Pages pages(seed);
    pages.write(*io);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (unsigned i = 0; i < 20; ++i) pages.read(*io, seed + 100 * t + i);
      });
    for (int i = 0; i < 20; ++i) pages.write(*io);  // the same bytes
    for (std::thread& thread : threads) thread.join();
  }
}
