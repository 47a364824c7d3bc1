// Writing requests: two reads of what is asked, one that finds codings and sizes and one that writes; one thread. Bits
// go through a register, lists of a message's cells through memory that all messages share.
#include "hpcrec/requests.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/ids.h"
#include "hpcrec/packed.h"
#include "hpcrec/requests_format.h"

namespace hpcrec {
namespace {
using requests_format::Coding;
using requests_format::Numbers;

constexpr int64_t sampled = 1024;
constexpr double least_saved_bits = 8;    // of an id, for a table
constexpr int64_t least_rising_bits = 8;  // of a short run
constexpr int64_t half_word = 32;         // bits

[[noreturn]] void refuse(const std::string& found) {
  throw std::invalid_argument(found);
}
[[noreturn]] void refuse_cell(int64_t i, const char* found) {
  refuse("cells[" + std::to_string(i) + "]: " + found);
}

bool is_short(int64_t n) {
  return n < packed_block;
}

// --- what is asked -------------------------------------------------------------------------------------------------

// Whether n lengths are those of bags of so many ids in all.
bool add_up(const int64_t* lengths, int64_t n, int64_t n_ids) {
  int64_t left = n_ids;
  for (int64_t v = 0; v < n; ++v) {
    if (lengths[v] < 0 || lengths[v] > left) return false;
    left -= lengths[v];
  }
  return left == 0;
}

void check_cells(const RequestsAsked& asked) {
  int64_t k = 0, v = 0, owner = -1, entry = -1;
  for (int64_t i = 0; i < asked.n_cells; ++i) {
    const RequestCell& c = asked.cells[i];
    if (c.owner < 0 || c.owner >= asked.n_owners || c.entry < 0 || c.entry >= asked.n_entries)
      refuse_cell(i, "its owner or entry is not one of those that there are");
    if (c.owner < owner || (c.owner == owner && c.entry <= entry))
      refuse_cell(i, "cells must ascend by owner and entry");
    if (c.n_ids < 0 || c.n_ids > asked.n_ids - k || c.n_bags < 1 || c.n_bags > asked.n_bags - v)
      refuse_cell(i, "there are not so many ids or bags, or it has no bag");
    if (!add_up(asked.lengths + v, c.n_bags, c.n_ids))
      refuse_cell(i, "the lengths of its bags do not add up to its ids");
    owner = c.owner;
    entry = c.entry;
    k += c.n_ids;
    v += c.n_bags;
  }
  if (k != asked.n_ids || v != asked.n_bags)
    refuse("cells have " + std::to_string(k) + " ids in " + std::to_string(v) + " bags; given are " +
           std::to_string(asked.n_ids) + " in " + std::to_string(asked.n_bags));
}

// Whether a sample repeats so many ids that a table of all saves `least_saved_bits` of each.
bool promises_a_table(const int64_t* ids, int64_t n, int64_t packed, Numbers& sample, Numbers& scratch) {
  const double bits = static_cast<double>(8 * packed) / static_cast<double>(n);
  if (n < 4 * sampled || bits < least_saved_bits) return false;
  sample.clear();
  for (int64_t k = 0; k < n; k += n / sampled) sample.push_back(ids[k]);
  const auto n_sample = static_cast<int64_t>(sample.size());
  scratch.resize(2 * sample.size());
  const int64_t n_distinct = dedup(sample.data(), n_sample, scratch.data(), scratch.data() + n_sample);
  const double share = static_cast<double>(n_distinct) / static_cast<double>(n_sample);
  const double place_bits = std::log2(share * static_cast<double>(n));
  const double between_bits = 2 + std::max(0.0, bits - place_bits);
  return bits - place_bits - share * between_bits >= least_saved_bits;
}

// The coding of a cell; a table is put behind those of the plan.
class Chooser {
 public:
  Coding operator()(const int64_t* ids, int64_t n, bool far, RequestPlan& plan, int64_t* distinct) {
    *distinct = 0;
    if (n == 0) return Coding::packed;
    if (is_short(n)) {
      const int64_t saved = (packed_width(ids, n, false) - packed_width(ids, n, true)) * n;
      return saved >= least_rising_bits ? Coding::rising : Coding::packed;
    }
    const PackedBytes found = packed_bytes(ids, n);
    if (found.rising < found.plain) return Coding::rising;
    if (!far || !promises_a_table(ids, n, found.plain, sample_, scratch_)) return Coding::packed;
    // The tables before have at most as many numbers as their cells have ids: there is room for another of n.
    int64_t *table = plan.table_ids + plan.n_table_ids, *places = plan.table_places + plan.n_table_places;
    const int64_t n_distinct = dedup(ids, n, table, places);
    if (packed_bytes(table, n_distinct).rising + packed_bytes(places, n).plain >= found.plain) return Coding::packed;
    plan.n_table_ids += n_distinct;
    plan.n_table_places += n;
    *distinct = n_distinct;
    return Coding::table;
  }

 private:
  Numbers sample_, scratch_;
};

// --- one message ---------------------------------------------------------------------------------------------------

// One cell as it is written.
struct Cell {
  const RequestCell* asked;
  const int64_t *ids, *lengths;
  Coding coding;
  int64_t n_distinct;
  const int64_t *table_ids, *table_places;
  bool lengths_follow;
};

// The lists of a message.
struct Lists {
  std::vector<Cell> cells;
  Numbers entries, bags, how, length_widths, distinct, id_widths;
  int64_t length_bits = 0, id_bits = 0;

  void clear() {
    cells.clear();
    for (Numbers* numbers : {&entries, &bags, &how, &length_widths, &distinct, &id_widths}) numbers->clear();
    length_bits = id_bits = 0;
  }

  void add(Cell cell) {
    const RequestCell& asked = *cell.asked;
    uint64_t other = 0;  // bits in which a length is not 1
    for (int64_t v = 0; v < asked.n_bags; ++v) other |= static_cast<uint64_t>(cell.lengths[v]) ^ 1;
    cell.lengths_follow = other != 0;
    entries.push_back(asked.entry);
    bags.push_back(asked.n_bags - 1);
    how.push_back((cell.lengths_follow ? requests_format::lengths_follow : 0) +
                  requests_format::coding_unit * static_cast<int64_t>(cell.coding));
    if (cell.lengths_follow && is_short(asked.n_bags)) {
      const int64_t bits = packed_width(cell.lengths, asked.n_bags, false);
      length_widths.push_back(bits);
      length_bits += bits * asked.n_bags;
    }
    if (cell.coding == Coding::table) distinct.push_back(cell.n_distinct);
    if (asked.n_ids > 0 && is_short(asked.n_ids)) {
      const int64_t bits = packed_width(cell.ids, asked.n_ids, cell.coding == Coding::rising);
      id_widths.push_back(bits);
      id_bits += bits * asked.n_ids;
    }
    cells.push_back(cell);
  }
};

int64_t size_of(const Numbers& numbers) {
  return static_cast<int64_t>(numbers.size());
}

int64_t packed_size(const Numbers& numbers, bool rising = false) {
  const PackedBytes found = packed_bytes(numbers.data(), size_of(numbers));
  return rising ? found.rising : found.plain;
}

int64_t varint_size(int64_t n) {
  int64_t bytes = 1;
  while (n >>= 7) ++bytes;
  return bytes;
}

int64_t message_size(const Lists& lists) {
  int64_t bytes = varint_size(size_of(lists.entries)) + packed_size(lists.entries, true) + packed_size(lists.bags) +
                  packed_size(lists.how) + packed_size(lists.length_widths) + (lists.length_bits + 7) / 8 +
                  packed_size(lists.distinct) + packed_size(lists.id_widths) + (lists.id_bits + 7) / 8;
  for (const Cell& cell : lists.cells) {
    const int64_t n = cell.asked->n_ids, n_bags = cell.asked->n_bags;
    if (cell.lengths_follow && !is_short(n_bags)) bytes += packed_bytes(cell.lengths, n_bags).plain;
    if (is_short(n)) continue;
    if (cell.coding == Coding::table) {
      bytes += packed_bytes(cell.table_ids, cell.n_distinct).rising + packed_bytes(cell.table_places, n).plain;
    } else {
      const PackedBytes found = packed_bytes(cell.ids, n);
      bytes += cell.coding == Coding::rising ? found.rising : found.plain;
    }
  }
  return bytes;
}

// Puts numbers into bits, byte by byte as they are full.
class Bits {
 public:
  explicit Bits(uint8_t* at) : at_(at) {}
  void put(uint64_t number, int64_t bits) {
    if (bits > most_packed_bits) {  // a whole word
      put(number & 0xffffffff, half_word);
      number >>= half_word;
      bits -= half_word;
    }
    held_ |= number << filled_;
    for (filled_ += bits; filled_ >= 8; filled_ -= 8, held_ >>= 8) *at_++ = static_cast<uint8_t>(held_);
  }
  void put_run(const int64_t* numbers, int64_t n, int64_t bits, bool rising) {
    uint64_t next = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto number = static_cast<uint64_t>(numbers[i]);
      put(rising ? number - next : number, bits);
      next = number + 1;
    }
  }
  void end() {
    if (filled_) *at_ = static_cast<uint8_t>(held_);
  }

 private:
  uint8_t* at_;
  uint64_t held_ = 0;
  int64_t filled_ = 0;
};

// Writes sections one behind the other. Once one does not fit, nothing more is written.
class Writer {
 public:
  Writer(uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  const uint8_t* at() const { return at_; }  // null where something did not fit

  void packed(const int64_t* numbers, int64_t n, bool rising = false) {
    if (at_) at_ = append_packed(numbers, n, rising, at_, end_);
  }
  void packed(const Numbers& numbers, bool rising = false) { packed(numbers.data(), size_of(numbers), rising); }
  void varint(int64_t n) {
    if (!room(varint_size(n))) return;
    for (; n >= 128; n >>= 7) *at_++ = static_cast<uint8_t>(n | 128);
    *at_++ = static_cast<uint8_t>(n);
  }
  // Calls put(Bits) where there is room for so many.
  template <class Put> void bits(int64_t n, Put&& put) {
    if (!room((n + 7) / 8)) return;
    Bits to(at_);
    put(to);
    to.end();
    at_ += (n + 7) / 8;
  }
  void bytes(const uint8_t* from, int64_t n) {
    if (!room(n)) return;
    if (n) std::memcpy(at_, from, n);
    at_ += n;
  }

 private:
  bool room(int64_t bytes) {
    if (at_ && end_ - at_ < bytes) at_ = nullptr;
    return at_ != nullptr;
  }
  uint8_t* at_;
  const uint8_t* end_;
};

void write_message(const Lists& lists, Writer& to) {
  to.varint(size_of(lists.entries));
  to.packed(lists.entries, true);
  to.packed(lists.bags);
  to.packed(lists.how);
  to.packed(lists.length_widths);
  to.bits(lists.length_bits, [&](Bits& bits) {
    const int64_t* width = lists.length_widths.data();
    for (const Cell& c : lists.cells)
      if (c.lengths_follow && is_short(c.asked->n_bags)) bits.put_run(c.lengths, c.asked->n_bags, *width++, false);
  });
  for (const Cell& c : lists.cells)
    if (c.lengths_follow && !is_short(c.asked->n_bags)) to.packed(c.lengths, c.asked->n_bags);
  to.packed(lists.distinct);
  to.packed(lists.id_widths);
  to.bits(lists.id_bits, [&](Bits& bits) {
    const int64_t* width = lists.id_widths.data();
    for (const Cell& c : lists.cells)
      if (c.asked->n_ids > 0 && is_short(c.asked->n_ids))
        bits.put_run(c.ids, c.asked->n_ids, *width++, c.coding == Coding::rising);
  });
  for (const Cell& c : lists.cells) {
    if (is_short(c.asked->n_ids)) continue;
    if (c.coding == Coding::table) {
      to.packed(c.table_ids, c.n_distinct, true);
      to.packed(c.table_places, c.asked->n_ids);
    } else {
      to.packed(c.ids, c.asked->n_ids, c.coding == Coding::rising);
    }
  }
}

void check_tables(const RequestsAsked& asked, const RequestPlan& plan) {
  int64_t u = 0, t = 0;
  for (int64_t i = 0; i < asked.n_cells; ++i) {
    const int64_t coding = plan.coding[i], n_distinct = plan.distinct[i], n = asked.cells[i].n_ids;
    bool good = (coding == 0 || coding == 1) && n_distinct == 0;
    if (coding == static_cast<int64_t>(Coding::table) && !is_short(n)) {
      good = n_distinct >= 1 && n_distinct <= n && n_distinct <= plan.n_table_ids - u && n <= plan.n_table_places - t;
      u += good ? n_distinct : 0;
      t += n;
    }
    if (!good) refuse("plan: cells[" + std::to_string(i) + "] cannot be coded so");
  }
  if (u != plan.n_table_ids || t != plan.n_table_places) refuse("plan: its tables are not those of the cells");
}

}  // namespace

void plan_requests(const RequestsAsked& asked, const bool* far, RequestPlan& plan) {
  check_cells(asked);
  plan.n_table_ids = plan.n_table_places = 0;
  std::fill(plan.bytes, plan.bytes + asked.n_owners, 0);
  Chooser choose;
  Lists lists;
  const int64_t *ids = asked.ids, *lengths = asked.lengths;
  for (int64_t i = 0; i < asked.n_cells;) {
    const int64_t owner = asked.cells[i].owner;
    int64_t weights = 0;
    lists.clear();
    for (; i < asked.n_cells && asked.cells[i].owner == owner; ++i) {
      const RequestCell& cell = asked.cells[i];
      const int64_t u = plan.n_table_ids, t = plan.n_table_places;
      const Coding coding = choose(ids, cell.n_ids, far[owner], plan, plan.distinct + i);
      plan.coding[i] = static_cast<int64_t>(coding);
      lists.add({&cell, ids, lengths, coding, plan.distinct[i], plan.table_ids + u, plan.table_places + t, false});
      weights += asked.weighted[cell.entry] ? asked.item * cell.n_ids : 0;
      ids += cell.n_ids;
      lengths += cell.n_bags;
    }
    plan.bytes[owner] = message_size(lists) + weights;
  }
}

void write_requests(const RequestsAsked& asked, const RequestPlan& plan, const uint8_t* weights, int64_t weights_bytes,
                    const int64_t* at, uint8_t* out, int64_t size) {
  check_cells(asked);
  check_tables(asked, plan);
  int64_t n_weighted = 0;
  for (int64_t i = 0; i < asked.n_cells; ++i)
    n_weighted += asked.weighted[asked.cells[i].entry] ? asked.cells[i].n_ids : 0;
  if (n_weighted * asked.item != weights_bytes)
    refuse("weights are " + std::to_string(weights_bytes) + " bytes, not those of " + std::to_string(n_weighted) +
           " ids");
  Lists lists;
  const int64_t *ids = asked.ids, *lengths = asked.lengths;
  const int64_t *table_ids = plan.table_ids, *table_places = plan.table_places;
  int64_t i = 0;
  for (int64_t owner = 0; owner < asked.n_owners; ++owner) {
    const int64_t bytes = plan.bytes[owner];
    const bool is_asked = i < asked.n_cells && asked.cells[i].owner == owner;
    int64_t its_weights = 0;
    lists.clear();
    for (; i < asked.n_cells && asked.cells[i].owner == owner; ++i) {
      const RequestCell& cell = asked.cells[i];
      const auto coding = static_cast<Coding>(plan.coding[i]);
      lists.add({&cell, ids, lengths, coding, plan.distinct[i], table_ids, table_places, false});
      its_weights += asked.weighted[cell.entry] ? asked.item * cell.n_ids : 0;
      ids += cell.n_ids;
      lengths += cell.n_bags;
      if (coding == Coding::table) {
        table_ids += plan.distinct[i];
        table_places += cell.n_ids;
      }
    }
    const auto refuse_size = [&] {
      refuse("plan: the message to owner " + std::to_string(owner) + " does not take " + std::to_string(bytes) +
             " bytes");
    };
    if (is_asked ? bytes < 1 : bytes != 0) refuse_size();
    if (!is_asked) continue;
    if (at[owner] < 0 || bytes > size || at[owner] > size - bytes)
      refuse("at_R[" + std::to_string(owner) + "] is " + std::to_string(at[owner]) +
             "; its message does not fit there into " + std::to_string(size) + " bytes");
    uint8_t* const begin = out + at[owner];
    Writer to(begin, begin + bytes);
    write_message(lists, to);
    to.bytes(weights, its_weights);
    if (to.at() != begin + bytes) refuse_size();
    weights += its_weights;
  }
}

}  // namespace hpcrec
