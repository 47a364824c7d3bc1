// Rows in pages: the unit that a disk is asked for, with its checksum. hpcrec/disk/reference.py is the definition.
//
// A page is a header, a tag of 8 bits for each record's row, and records, one behind the other:
//
//   checksum u32 | segment u32 | page u32 | records u32 | stamp u64 | tags u8 [per_page] | records [per_page]
//
// The checksum is the CRC32C of all that follows it. That segment and page are in it finds a page that was written to,
// or read from, another place; the tag finds an index that points at another row's record.
#pragma once
#include <cstdint>
#include <vector>

namespace hpcrec {

struct PageHeader {
  uint32_t checksum, segment, page, records;
  uint64_t stamp;  // of two pages with one row that of the newer version is higher
};

struct PageLayout {
  int64_t page_bytes, record_bytes, per_page;

  int64_t record_at(int64_t number) const { return 24 + per_page + number * record_bytes; }
};

// A part of all records: an array with `row_bytes` a row. A record is its columns, one behind the other.
struct Column {
  uint8_t* data;
  int64_t row_bytes;
};

inline uint8_t tag_of(int64_t row) {
  return static_cast<uint8_t>((static_cast<uint32_t>(row) * 0x9e3779b1u) >> 24);
}

// What is wrong with a page or a transfer; as in hpcrec/disk/reference.py.
enum class Wrong : int { nothing, system, short_file, checksum, another_page, another_row, gone };

// Records of rows [n], from row at[i] of the columns (null: i), to places first + i of pages one behind the other.
void pack(const PageLayout& of, const std::vector<Column>& columns, const int64_t* at, const int64_t* rows, int64_t n,
          uint8_t* pages, int64_t first);
// Headers of the pages that `records` records fill, the last perhaps in part: its rest is zeroed.
void seal(const PageLayout& of, uint8_t* pages, int64_t records, uint32_t segment, uint32_t first_page,
          uint64_t first_stamp);
// Whether a page is what was written as this one.
Wrong check_page(const PageLayout& of, const uint8_t* page, uint32_t segment, uint32_t number);
// A record to row `at` of the columns. False: it is another row's.
bool unpack(const PageLayout& of, const uint8_t* page, int64_t number, int64_t row, const std::vector<Column>& columns,
            int64_t at);
// Of the footer of a segment in a slot: the place of each record that is the newest version so far of its row, to the
// index. Rows [n_pages, per_page], of which a page has as many as `records` says; `known` has the stamps of all pages
// [slots, segment_pages], these included.
void take_newest(uint32_t* index, const uint32_t* rows, const uint32_t* records, const uint64_t* stamps,
                 int64_t n_pages, int64_t per_page, const uint64_t* known, int64_t segment_pages, int64_t slot);

}  // namespace hpcrec
