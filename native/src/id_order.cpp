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
  links_[row] = {list.last, none, count, clock};
  if (list.last == none) list.first = row;
  else links_[list.last].next = row;
  list.last = row;
}

void IdOrder::touch(uint32_t row, uint32_t clock) {
  const Link link = links_[row];
  if (link.clock == clock) return;
  take_out(row);
  add(row, link.count < most_ ? link.count + 1 : most_, clock);
}

void IdOrder::take_out(uint32_t row) {
  const Link& link = links_[row];
  const auto list = lists_.find(key(link.count));
  if (link.previous == none) list->second.first = link.next;
  else links_[link.previous].next = link.next;
  if (link.next == none) list->second.last = link.previous;
  else links_[link.next].previous = link.previous;
  if (list->second.first == none) lists_.erase(list);
}

int64_t IdOrder::take_first(uint32_t clock) {
  if (searched_ != clock) all_used_below_ = 0;
  searched_ = clock;
  // A list is in order of use: where its first row was used by this batch, so were all. What a batch adds after the
  // search has passed is used by it too, so that no list is looked at twice.
  for (auto list = lists_.lower_bound(all_used_below_); list != lists_.end(); ++list) {
    all_used_below_ = list->first;
    const uint32_t row = list->second.first;
    if (links_[row].clock == clock) continue;
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
    const bool is_a = from_b == none || (from_a != none && links_[from_a].clock <= links_[from_b].clock);
    const uint32_t row = is_a ? from_a : from_b;
    const Link link = links_[row];
    (is_a ? from_a : from_b) = link.next;
    append(list, row, count, link.clock);
  }
  return list;
}

}  // namespace hpcrec
