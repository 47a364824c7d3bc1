// Lists of rows that were used equally often, each in the order of their last use.
#include "hpcrec/id_order.h"

namespace hpcrec {

void IdOrder::add(uint32_t row, uint32_t count, uint32_t clock) {
  List& list = lists_[key(count)];
  links_[row] = {list.last, none, count, clock};
  if (list.last == none) list.first = row;
  else links_[list.last].next = row;
  list.last = row;
}

void IdOrder::touch(uint32_t row, uint32_t clock) {
  const Link link = links_[row];
  if (link.clock == clock) return;
  take_out(row);
  add(row, link.count == none ? none : link.count + 1, clock);
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

}  // namespace hpcrec
