// Which of the numbered rows goes first: the least recently used, or the least often used and of these the least
// recently. A batch uses a row once, however often it asks for it, and what it has used does not go during it.
// Counts may end at a largest one, and be halved from time to time, so that what was used often long ago goes too.
#pragma once
#include <cstdint>
#include <map>

#include "hpcrec/id_index.h"
#include "hpcrec/row.h"

namespace hpcrec {

class IdOrder {
 public:
  static constexpr uint32_t none = 0xffffffff;

  // Links are those of `ids`, which outlives it. Counts end at `most`, and are halved after every `halve_after` uses.
  explicit IdOrder(IdList& ids, bool by_count, uint32_t most = none, int64_t halve_after = INT64_MAX)
      : ids_(&ids), by_count_(by_count), most_(most), halve_after_(halve_after) {}

  // Makes room for rows below n, without which none may be added.
  void reserve(int64_t n) { ids_->reserve(n); }
  // A row that is not in the order, last used by batch `clock`: the last to go of its count.
  void add(uint32_t row, uint32_t count, uint32_t clock);
  // Counts a row as used by batch `clock`; does nothing where it is already.
  void touch(uint32_t row, uint32_t clock);
  // The same of n rows, in order, of which several are on their way from memory at a time; those below 0 are left out.
  void touch(const int64_t* rows, int64_t n, uint32_t clock);
  // Takes the row that goes first out of the order and returns it; -1 where the last `in_use` batches, of which `clock`
  // is the last, have used them all.
  int64_t take_first(uint32_t clock, uint32_t in_use = 1);
  // At the end of a batch: halves the counts where it is time, in O(rows) once in `halve_after` uses; none falls below
  // 1. Rows of one count are then in the order of their last batches, and of one batch those of smaller counts first.
  void age();

  uint32_t count(uint32_t row) const { return link(row).count; }
  uint32_t clock(uint32_t row) const { return link(row).clock; }
  // Only where counts do not order.
  void set_count(uint32_t row, uint32_t count) { link(row).count = count; }
  HPCREC_INLINE void prefetch(uint32_t row) const { __builtin_prefetch(&link(row), 0, 2); }

  // Calls f(row) for each row, the first to go first.
  template <class F> void each(F&& f) const {
    for (const auto& [key, list] : lists_)
      for (uint32_t row = list.first; row != none; row = link(row).next) f(row);
  }
  // Links are not counted: they are the list's.
  int64_t bytes() const { return static_cast<int64_t>(lists_.size()) * list_bytes; }

 private:
  static constexpr int64_t list_bytes = 64;  // a node of the map
  using Link = IdLink;
  struct List {
    uint32_t first = none, last = none;
  };
  Link& link(int64_t row) const { return ids_->link(row); }
  uint32_t key(uint32_t count) const { return by_count_ ? count : 0; }
  void append(List& list, uint32_t row, uint32_t count, uint32_t clock);
  void take_out(uint32_t row);
  void take_out(List& list, uint32_t previous, uint32_t next);
  List merged(const List& a, const List& b, uint32_t count);

  IdList* ids_;
  bool by_count_;
  uint32_t most_;
  int64_t halve_after_, uses_ = 0;  // uses since the counts were last halved
  std::map<uint32_t, List> lists_;  // by count, or one; the least recently used first; none is empty
  uint32_t all_used_below_ = 0;     // lists of lower keys hold only what the batch `searched_` has used
  uint32_t searched_ = 0;
};

}  // namespace hpcrec
