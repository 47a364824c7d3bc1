// Bindings of rows in pages; see module.cpp. Sizes and types are looked at by the tier (hpcrec/disk/tier.py).
#include "hpcrec/bind_pages.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include "hpcrec/arrays.h"
#include "hpcrec/crc32c.h"
#include "hpcrec/page_io.h"
#include "hpcrec/pages.h"

namespace hpcrec {
namespace {
using namespace bindings;
using Bytes = Out<uint8_t>;
using Layout = std::tuple<int64_t, int64_t, int64_t>;

PageLayout layout(const Layout& of) {
  return {std::get<0>(of), std::get<1>(of), std::get<2>(of)};
}

// Of uint8 [N, row_bytes].
template <class T> std::vector<Column> columns(const std::vector<T>& arrays) {
  std::vector<Column> found;
  for (const T& array : arrays)
    found.push_back({const_cast<uint8_t*>(array.data()), static_cast<int64_t>(array.shape(1))});
  return found;
}

std::tuple<int, int64_t> check_pages(const PageLayout& of, const uint8_t* pages, int64_t n, int64_t segment,
                                     int64_t first) {
  for (int64_t i = 0; i < n; ++i) {
    const Wrong wrong =
        check_page(of, pages + i * of.page_bytes, static_cast<uint32_t>(segment), static_cast<uint32_t>(first + i));
    if (wrong != Wrong::nothing) return {static_cast<int>(wrong), i};
  }
  return {0, -1};
}

void bind_io(nb::module_& m) {
  nb::class_<PageIo>(m, "PageIo")
      .def(
          "__init__",
          [](PageIo* self, const char* way, int depth, int64_t page_bytes) {
            try {
              const std::string_view name(way);
              const Way wanted = name == "io_uring" ? Way::ring : name == "mapped" ? Way::mapped : Way::threads;
              new (self) PageIo(wanted, depth, page_bytes);
            } catch (const std::system_error& refused) {
              errno = refused.code().value();
              PyErr_SetFromErrno(PyExc_OSError);
              throw nb::python_error();
            }
          },
          "way"_a, "depth"_a, "page_bytes"_a)
      .def_prop_ro("n_bytes", &PageIo::bytes)
      .def(
          "read_rows",
          [](PageIo& self, const Layout& of, Ids file, Ids page, Ids segment, Ids start, Ids number, Ids row, Ids at,
             const std::vector<Bytes>& into) {
            auto job = std::make_unique<RowReads>();
            job->layout = layout(of);
            job->columns = columns(into);
            job->n = static_cast<int64_t>(file.size());
            job->file = file.data();
            job->page = page.data();
            job->segment = segment.data();
            job->start = start.data();
            job->number = number.data();
            job->row = row.data();
            job->at = at.data();
            return without_gil([&] { return self.submit(std::move(job)); });
          },
          "layout"_a, "file"_a, "page"_a, "segment"_a, "start"_a, "number"_a, "row"_a, "at"_a, "into"_a)
      .def(
          "transfer",
          [](PageIo& self, bool write, Ids file, Ids offset, Ids start, Ids bytes, Bytes memory) {
            auto job = std::make_unique<Transfers>();
            job->write = write;
            job->n = static_cast<int64_t>(file.size());
            job->file = file.data();
            job->offset = offset.data();
            job->start = start.data();
            job->bytes = bytes.data();
            job->memory = memory.data();
            return without_gil([&] { return self.submit(std::move(job)); });
          },
          "write"_a, "file"_a, "offset"_a, "start"_a, "bytes"_a, "memory"_a.noconvert())
      .def(
          "wait",
          [](PageIo& self, int64_t ticket) {
            const Outcome found = without_gil([&] { return self.wait(ticket); });
            return std::make_tuple(static_cast<int>(found.wrong), found.error, found.place);
          },
          "ticket"_a)
      .def("is_done", &PageIo::is_done, "ticket"_a)
      .def("fail", &PageIo::fail, "writes"_a, "after"_a, "error"_a);
}
}  // namespace

void bind_pages(nb::module_& m) {
  m.def(
      "crc32c",
      [](In<uint8_t> data, uint32_t before, bool by_table) {
        const auto n = static_cast<int64_t>(data.size());
        return without_gil(
            [&] { return by_table ? crc32c_by_table(data.data(), n, before) : crc32c(data.data(), n, before); });
      },
      "data"_a, "before"_a, "by_table"_a);
  m.def(
      "pack_rows",
      [](const Layout& of, const std::vector<In<uint8_t>>& from, std::optional<Ids> at, Ids rows, Bytes pages,
         int64_t first) {
        const std::vector<Column> all = columns(from);
        without_gil([&] {
          pack(layout(of), all, at ? at->data() : nullptr, rows.data(), static_cast<int64_t>(rows.size()), pages.data(),
               first);
        });
      },
      "layout"_a, "from"_a, "at"_a.none(), "rows"_a, "pages"_a.noconvert(), "first"_a);
  m.def(
      "seal_pages",
      [](const Layout& of, Bytes pages, int64_t records, uint32_t segment, uint32_t first_page, uint64_t stamp) {
        without_gil([&] { seal(layout(of), pages.data(), records, segment, first_page, stamp); });
      },
      "layout"_a, "pages"_a.noconvert(), "records"_a, "segment"_a, "first_page"_a, "stamp"_a);
  m.def(
      "check_pages",
      [](const Layout& of, In<uint8_t> pages, int64_t n, int64_t segment, int64_t first) {
        return without_gil([&] { return check_pages(layout(of), pages.data(), n, segment, first); });
      },
      "layout"_a, "pages"_a, "n"_a, "segment"_a, "first"_a);
  m.def(
      "unpack_rows",
      [](const Layout& of, In<uint8_t> pages, Ids number, Ids row, Ids at, const std::vector<Bytes>& into) {
        const std::vector<Column> all = columns(into);
        return without_gil([&]() -> int64_t {
          const PageLayout l = layout(of);
          for (int64_t i = 0; i < static_cast<int64_t>(number.size()); ++i) {
            const int64_t n = number.data()[i];
            const uint8_t* page = pages.data() + n / l.per_page * l.page_bytes;
            if (!unpack(l, page, n % l.per_page, row.data()[i], all, at.data()[i])) return i;
          }
          return -1;
        });
      },
      "layout"_a, "pages"_a, "number"_a, "row"_a, "at"_a, "into"_a);
  m.def(
      "take_newest",
      [](Out<uint32_t> index, In<uint32_t> rows, In<uint32_t> records, In<uint64_t> stamps, In<uint64_t> known,
         int64_t slot) {
        without_gil([&] {
          take_newest(index.data(), rows.data(), records.data(), stamps.data(), static_cast<int64_t>(rows.shape(0)),
                      static_cast<int64_t>(rows.shape(1)), known.data(), static_cast<int64_t>(known.shape(1)), slot);
        });
      },
      "index"_a.noconvert(), "rows"_a, "records"_a, "stamps"_a, "known"_a, "slot"_a);
  bind_io(m);
}

}  // namespace hpcrec
