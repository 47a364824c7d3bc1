// Lists of rows that were used equally often, each in the order of their last use.
#include "hpcrec/id_order.h"

#include <algorithm>
#include <utility>

namespace hpcrec {

void IdOrder::add(uint32_t row, uint32_t count, uint32_t clock) {
  ++uses_;
  append(lists_[key(count)], row, count, clock);
}

void IdOrder::append(List& list, uint32_t row, uint32_t count, uint32_t clock) {
  link(row) = {list.last, none, count, clock};
  if (list.last == none) list.first = row;
  else link(list.last).next = row;
  list.last = row;
}

void IdOrder::touch(uint32_t row, uint32_t clock) {
  const Link& its = link(row);
  if (its.clock == clock) return;
  const uint32_t count = its.count;
  take_out(row);
  add(row, count < most_ ? count + 1 : most_, clock);
}

void IdOrder::touch(const int64_t* rows, int64_t n, uint32_t clock) {
  constexpr int64_t row_ahead = 64, neighbours_ahead = 32;
  const auto is_row = [&](int64_t k) { return k < n && rows[k] >= 0; };
  const auto touch_all = [&](auto&& touch_one) {
    for (int64_t k = -row_ahead; k < n; ++k) {
      if (is_row(k + row_ahead)) prefetch(static_cast<uint32_t>(rows[k + row_ahead]));
      if (k + neighbours_ahead >= 0 && is_row(k + neighbours_ahead)) {
        const Link& its = link(rows[k + neighbours_ahead]);
        if (its.previous != none) prefetch(its.previous);
        if (its.next != none) prefetch(its.next);
      }
      if (k >= 0 && is_row(k)) touch_one(static_cast<uint32_t>(rows[k]));
    }
  };
  if (by_count_ || lists_.empty()) return touch_all([&](uint32_t row) { touch(row, clock); });
  List& list = lists_.begin()->second;  // the one that there is: not looked for each time
  touch_all([&](uint32_t row) {
    // Number by number: the one before may just have written one of them, and a core waits until that is in memory
    // where it is to be read together with others.
    const Link& its = link(row);
    if (its.clock == clock) return;
    const uint32_t count = its.count;
    take_out(list, its.previous, its.next);
    ++uses_;
    append(list, row, count < most_ ? count + 1 : most_, clock);
  });
}

void IdOrder::take_out(uint32_t row) {
  const auto list = lists_.find(key(link(row).count));
  take_out(list->second, link(row).previous, link(row).next);
  if (list->second.first == none) lists_.erase(list);
}

void IdOrder::take_out(List& list, uint32_t previous, uint32_t next) {
  if (previous == none) list.first = next;
  else link(previous).next = next;
  if (next == none) list.last = previous;
  else link(next).previous = previous;
}

int64_t IdOrder::take_first(uint32_t clock, uint32_t in_use) {
  if (searched_ != clock) all_used_below_ = 0;
  searched_ = clock;
  // A list is in order of use: where its first row was used by these batches, so were all. What a batch adds after the
  // search has passed is used by it too, so that no list is looked at twice.
  for (auto list = lists_.lower_bound(all_used_below_); list != lists_.end(); ++list) {
    all_used_below_ = list->first;
    const uint32_t row = list->second.first;
    if (clock - link(row).clock < in_use) continue;
    take_out(row);
    return row;
  }
  return -1;
}

void IdOrder::age() {
  if (uses_ < halve_after_) return;
  uses_ = 0;
  // From the smallest count on, so that where a list goes there is nothing, or what has been halved.
  for (auto next = lists_.begin(); next != lists_.end();) {
    auto node = lists_.extract(next++);
    const uint32_t count = node.key() = std::max(1u, node.key() / 2);
    const List list = std::exchange(node.mapped(), {});
    List& there = lists_.insert(std::move(node)).position->second;
    there = merged(there, list, count);
  }
}

// Two lists in the order of their clocks, which becomes one; of one clock, `a` is first.
IdOrder::List IdOrder::merged(const List& a, const List& b, uint32_t count) {
  List list;
  uint32_t from_a = a.first, from_b = b.first;
  while (from_a != none || from_b != none) {
    const bool is_a = from_b == none || (from_a != none && link(from_a).clock <= link(from_b).clock);
    const uint32_t row = is_a ? from_a : from_b;
    const Link its = link(row);
    (is_a ? from_a : from_b) = its.next;
    append(list, row, count, its.clock);
  }
  return list;
}

}  // namespace hpcrec
