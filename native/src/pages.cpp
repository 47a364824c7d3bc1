// Rows into pages and out of them.
#include "hpcrec/pages.h"

#include <algorithm>
#include <cstring>

#include "hpcrec/crc32c.h"

namespace hpcrec {
namespace {
static_assert(sizeof(PageHeader) == 24);
constexpr int64_t checked_from = sizeof(uint32_t);

uint32_t checksum_of(const PageLayout& of, const uint8_t* page) {
  return crc32c(page + checked_from, of.page_bytes - checked_from);
}

uint8_t* tags_of(uint8_t* page) {
  return page + sizeof(PageHeader);
}
}  // namespace

void pack(const PageLayout& of, const std::vector<Column>& columns, const int64_t* at, const int64_t* rows, int64_t n,
          uint8_t* pages, int64_t first) {
  uint8_t* page = pages + first / of.per_page * of.page_bytes;
  int64_t number = first % of.per_page;
  for (int64_t i = 0; i < n; ++i, ++number) {
    if (number == of.per_page) {
      number = 0;
      page += of.page_bytes;
    }
    tags_of(page)[number] = tag_of(rows[i]);
    uint8_t* to = page + of.record_at(number);
    for (const Column& column : columns) {
      std::memcpy(to, column.data + (at ? at[i] : i) * column.row_bytes, static_cast<size_t>(column.row_bytes));
      to += column.row_bytes;
    }
  }
}

void seal(const PageLayout& of, uint8_t* pages, int64_t records, uint32_t segment, uint32_t first_page,
          uint64_t first_stamp) {
  const int64_t n = (records + of.per_page - 1) / of.per_page;
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* page = pages + i * of.page_bytes;
    const int64_t here = std::min(of.per_page, records - i * of.per_page);
    std::memset(tags_of(page) + here, 0, static_cast<size_t>(of.per_page - here));
    std::memset(page + of.record_at(here), 0, static_cast<size_t>(of.page_bytes - of.record_at(here)));
    PageHeader header{0, segment, first_page + static_cast<uint32_t>(i), static_cast<uint32_t>(here),
                      first_stamp + static_cast<uint64_t>(i)};
    std::memcpy(page, &header, sizeof header);
    header.checksum = checksum_of(of, page);
    std::memcpy(page, &header, sizeof header);
  }
}

Wrong check_page(const PageLayout& of, const uint8_t* page, uint32_t segment, uint32_t number) {
  PageHeader header;
  std::memcpy(&header, page, sizeof header);
  if (header.checksum != checksum_of(of, page)) return Wrong::checksum;
  if (header.segment != segment || header.page != number) return Wrong::another_page;
  return Wrong::nothing;
}

bool unpack(const PageLayout& of, const uint8_t* page, int64_t number, int64_t row, const std::vector<Column>& columns,
            int64_t at) {
  if (page[static_cast<int64_t>(sizeof(PageHeader)) + number] != tag_of(row)) return false;
  const uint8_t* from = page + of.record_at(number);
  for (const Column& column : columns) {
    std::memcpy(column.data + at * column.row_bytes, from, static_cast<size_t>(column.row_bytes));
    from += column.row_bytes;
  }
  return true;
}

void take_newest(uint32_t* index, const uint32_t* rows, const uint32_t* records, const uint64_t* stamps,
                 int64_t n_pages, int64_t per_page, const uint64_t* known, int64_t segment_pages, int64_t slot) {
  constexpr int64_t ahead = 24;  // rows lie anywhere in an index that no cache holds
  for (int64_t page = 0; page < n_pages; ++page) {
    const uint32_t* of = rows + page * per_page;
    const int64_t first = (slot * segment_pages + page) * per_page;
    const int64_t n = std::min<int64_t>(records[page], per_page);
    for (int64_t i = 0; i < n; ++i) {
      if (i + ahead < n) __builtin_prefetch(index + of[i + ahead], 1);
      uint32_t& place = index[of[i]];
      // 0: never written. Of a row that is in this segment twice the later one is the newer.
      if (place == 0 || known[place / static_cast<uint64_t>(per_page)] <= stamps[page])
        place = static_cast<uint32_t>(first + i);
    }
  }
}

}  // namespace hpcrec
