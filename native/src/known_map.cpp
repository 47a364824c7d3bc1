// Foreseeing batches, and admitting them.
#include "hpcrec/known_map.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace hpcrec {
namespace {
using Lock = std::lock_guard<std::mutex>;
constexpr int64_t most_batches = 0xfffffffe, most_ids = 0xfffffffe;
}  // namespace

KnownMap::KnownMap(const KnownRules& rules, const IdKey& key)
    : rules_(rules), key_(key), ring_(static_cast<size_t>(rules.window + 1)) {
  index_.emplace(key_, rules_.capacity, false);
  window_.emplace(key_, rules_.capacity);
}

int64_t KnownMap::size() const {
  const Lock lock(busy_);
  return index_->size();
}

int64_t KnownMap::evicted() const {
  const Lock lock(busy_);
  return evicted_;
}

int64_t KnownMap::bytes() const {
  const Lock lock(busy_);
  int64_t n_ids = 0, n_used = 0;
  for (const Batch& batch : future_) n_ids += static_cast<int64_t>(batch.ids.size());
  for (const auto& rows : in_use_) n_used += static_cast<int64_t>(rows.size());
  return index_->bytes() + window_->index.bytes() + window_->order.bytes() +
         static_cast<int64_t>(rows_.size() * sizeof(Row) + ring_.size() * sizeof(List)) + n_ids * 12 + n_used * 4;
}

void KnownMap::find(const int64_t* ids, int64_t n, int64_t* rows) const {
  const Lock lock(busy_);
  index_->find(ids, n, rows);
}

void KnownMap::append(uint32_t row) {
  List& list = list_of(rows_[row].use);
  rows_[row].previous = list.last;
  rows_[row].next = none;
  if (list.last == none) list.first = row;
  else rows_[list.last].next = row;
  list.last = row;
}

void KnownMap::take_out(uint32_t row) {
  const Row its = rows_[row];
  List& list = list_of(its.use);
  if (its.previous == none) list.first = its.next;
  else rows_[its.previous].next = its.next;
  if (its.next == none) list.last = its.previous;
  else rows_[its.next].previous = its.previous;
}

void KnownMap::foresee(const int64_t* ids, int64_t n) {
  const Lock lock(busy_);
  if (foreseen_ - clock_ > rules_.window)
    throw std::invalid_argument("foresee: " + std::to_string(foreseen_ - clock_) +
                                " batches are foreseen and not admitted; allowed are window + 1, " +
                                std::to_string(rules_.window + 1));
  if (foreseen_ == most_batches || n > most_ids)
    throw std::length_error("foresee: batches, and ids of one, end at " + std::to_string(most_batches));
  std::vector<int64_t> numbers(n);
  window_->index.find(ids, n, numbers.data());
  future_.push_back({{ids, ids + n}, std::vector<uint32_t>(n, never)});
  ++foreseen_;
  Batch& batch = future_.back();
  std::vector<uint32_t> moved;
  for (int64_t k = 0; k < n; ++k)  // first those that have a number, which nobody else is given then
    if (numbers[k] >= 0) note(numbers[k], ids[k], static_cast<uint32_t>(k), batch, moved);
  for (int64_t k = 0; k < n; ++k)
    if (numbers[k] < 0) note(window_->index.find(ids[k]), ids[k], static_cast<uint32_t>(k), batch, moved);
  std::sort(moved.begin(), moved.end(), [&](uint32_t a, uint32_t b) { return rows_[a].turn < rows_[b].turn; });
  for (const uint32_t row : moved) append(row);
}

// The last batch that is foreseen asks for an id, which has this number in the window, or -1.
void KnownMap::note(int64_t number, int64_t id, uint32_t place, Batch& batch, std::vector<uint32_t>& moved) {
  const auto now = static_cast<uint32_t>(foreseen_);
  IdOrder& order = window_->order;
  if (number < 0) {
    is_asked_for(id, moved);
    order.add(static_cast<uint32_t>(new_number(id)), place, now);
    return;
  }
  const auto its = static_cast<uint32_t>(number);
  const uint32_t before = order.clock(its);
  if (before == now) {
    batch.next[place] = repeated;
    return;
  }
  if (before > clock_) future_[before - clock_ - 1].next[order.count(its)] = now;
  else is_asked_for(id, moved);
  order.touch(its, now);
  order.set_count(its, place);
}

// No batch before the last one that is foreseen asks for the id: if it has a row, that is its next use.
void KnownMap::is_asked_for(int64_t id, std::vector<uint32_t>& moved) {
  const int64_t found = index_->find(id);
  if (found < 0) return;
  const auto row = static_cast<uint32_t>(found);
  const bool is_listed = listed(rows_[row]);
  if (is_listed) {
    take_out(row);
    moved.push_back(row);
  }
  rows_[row].use = static_cast<uint32_t>(foreseen_);
}

// A number in the window: that of an id which no batch foreseen asks for, or a new one.
int64_t KnownMap::new_number(int64_t id) {
  auto& [index, order] = *window_;
  const int64_t number = order.take_first(static_cast<uint32_t>(foreseen_), static_cast<uint32_t>(foreseen_ - clock_));
  if (number < 0) return index.insert(id);
  index.replace(number, id);
  return number;
}

int64_t KnownMap::admit(const int64_t* ids, int64_t n, int64_t* rows, int64_t* fresh) {
  const Lock lock(busy_);
  if (future_.empty()) throw std::invalid_argument("admit: no batch is foreseen; foresee each one first");
  const Batch& batch = future_.front();
  if (static_cast<int64_t>(batch.ids.size()) != n || !std::equal(ids, ids + n, batch.ids.begin()))
    throw std::invalid_argument("admit: ids are not those that were foreseen for this batch");
  ++clock_;
  farthest_ = static_cast<uint32_t>(foreseen_);
  release();
  in_use_.emplace_back();
  index_->find(ids, n, rows);
  std::vector<int64_t> waiting;
  for (int64_t k = 0; k < n; ++k) {  // all of them before anyone goes
    if (batch.next[k] == repeated) continue;
    if (rows[k] < 0) {
      waiting.push_back(k);
      continue;
    }
    const auto row = static_cast<uint32_t>(rows[k]);
    if (listed(rows_[row])) take_out(row);
    use(row, batch.next[k]);
  }
  std::stable_sort(waiting.begin(), waiting.end(), [&](int64_t a, int64_t b) { return batch.next[a] < batch.next[b]; });
  int64_t n_fresh = 0;
  for (const int64_t k : waiting) {
    rows[k] = row_for(ids[k], batch.next[k]);
    if (rows[k] < 0) break;  // nor have those that follow any: their next uses are no earlier
    fresh[n_fresh++] = k;
  }
  for (int64_t k = 0; k < n; ++k)
    if (batch.next[k] == repeated) rows[k] = index_->find(ids[k]);
  std::sort(fresh, fresh + n_fresh);
  future_.pop_front();
  return n_fresh;
}

// Rows of the batch that is in use no more come into lists, unless a later one has used them.
void KnownMap::release() {
  if (static_cast<int64_t>(in_use_.size()) < rules_.in_use) return;
  const int64_t batch = clock_ - rules_.in_use;
  for (const uint32_t row : in_use_.front())
    if (rows_[row].last == batch) append(row);
  in_use_.pop_front();
}

// A row is used by the present batch, and then by `next`.
void KnownMap::use(uint32_t row, uint32_t next) {
  rows_[row] = {none, none, next, static_cast<uint32_t>(clock_), ++turn_};
  in_use_.back().push_back(row);
}

// A row for an id that has none, or -1.
int64_t KnownMap::row_for(int64_t id, uint32_t next) {
  int64_t row;
  if (index_->size() < rules_.capacity) {
    row = index_->insert(id);
    rows_.push_back({none, none, never, 0, 0});
  } else {
    const uint32_t gone = first_to_go();
    if (gone == none || rows_[gone].use <= next) return -1;
    index_->replace(gone, id);
    take_out(gone);
    ++evicted_;
    row = gone;
  }
  use(static_cast<uint32_t>(row), next);
  return row;
}

uint32_t KnownMap::first_to_go() {
  if (idle_.first != none) return idle_.first;
  while (farthest_ > clock_ && list_of(farthest_).first == none) --farthest_;
  return farthest_ > clock_ ? list_of(farthest_).first : none;
}

void KnownMap::forget() {
  const Lock lock(busy_);
  future_.clear();
  foreseen_ = clock_;
  window_.emplace(key_, rules_.capacity);
  std::vector<uint32_t> free;
  for (size_t row = 0; row < rows_.size(); ++row) {
    rows_[row].use = never;
    if (listed(rows_[row])) free.push_back(static_cast<uint32_t>(row));
  }
  std::sort(free.begin(), free.end(), [&](uint32_t a, uint32_t b) { return rows_[a].turn < rows_[b].turn; });
  idle_ = {};
  std::fill(ring_.begin(), ring_.end(), List{});
  for (const uint32_t row : free) append(row);
}

void KnownMap::clear() {
  const Lock lock(busy_);
  index_.emplace(key_, rules_.capacity, false);
  rows_.clear();
  in_use_.clear();
  idle_ = {};
  std::fill(ring_.begin(), ring_.end(), List{});
}

}  // namespace hpcrec
