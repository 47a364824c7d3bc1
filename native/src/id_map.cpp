// A batch: what is there is found by all threads; who is let in and who goes is decided by one, in order.
#include "hpcrec/id_map.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hpcrec/parallel.h"

namespace hpcrec {
namespace {
using Lock = std::lock_guard<std::mutex>;
constexpr int64_t most_batches = 0xfffffffe, most_count = 0xffffffff;
constexpr int64_t ahead = 16;       // ids that are asked for before they are worked on
constexpr int64_t block_ids = 512;  // of a batch, that one thread finds

void save_list(const IdIndex& index, const IdOrder* order, const IdColumns& to) {
  int64_t at = 0;
  if (!order) {
    for (; at < index.size(); ++at) {
      to.rows[at] = at;
      to.ids[at] = index.id(at);
    }
    return;
  }
  order->each([&](uint32_t row) {
    to.rows[at] = row;
    to.ids[at] = index.id(row);
    to.counts[at] = order->count(row);
    to.clocks[at++] = order->clock(row);
  });
}

void load_list(const char* name, IdIndex& index, IdOrder* order, const ConstIdColumns& from, int64_t room,
               int64_t clock) {
  const auto refuse = [&](const char* what, int64_t at, int64_t value, const std::string& why) {
    throw std::invalid_argument(std::string(name) + what + "[" + std::to_string(at) + "] is " + std::to_string(value) +
                                why);
  };
  if (from.n > room)
    throw std::invalid_argument(std::string(name) + "ids are " + std::to_string(from.n) + "; there is room for " +
                                std::to_string(room));
  constexpr int64_t none = -1;
  std::vector<int64_t> in_row(from.rows ? from.n : 0, none);  // by row: which of the ids has it
  for (int64_t k = 0; k < static_cast<int64_t>(in_row.size()); ++k) {
    const int64_t row = from.rows[k];
    if (row < 0 || row >= from.n || in_row[row] != none)
      refuse("rows", k, row, "; allowed are 0 to " + std::to_string(from.n - 1) + ", each once");
    in_row[row] = k;
  }
  const bool in_rows = order && from.rows;  // then the order comes when all have their rows
  for (int64_t at = 0; at < from.n; ++at) {
    const int64_t k = from.rows ? in_row[at] : at;
    if (index.find(from.ids[k]) >= 0) refuse("ids", k, from.ids[k], ", which is there twice");
    if (order && (from.counts[k] < 0 || from.counts[k] > most_count))
      refuse("counts", k, from.counts[k], "; allowed are 0 to " + std::to_string(most_count));
    if (order && (from.clocks[k] < 0 || from.clocks[k] > clock))
      refuse("clocks", k, from.clocks[k], "; allowed are 0 to the clock, " + std::to_string(clock));
    if (order) order->reserve(index.size() + 1);
    const auto row = static_cast<uint32_t>(index.insert(from.ids[k]));
    if (order && !in_rows)
      order->add(row, static_cast<uint32_t>(from.counts[k]), static_cast<uint32_t>(from.clocks[k]));
  }
  for (int64_t k = 0; in_rows && k < from.n; ++k)
    order->add(static_cast<uint32_t>(from.rows[k]), static_cast<uint32_t>(from.counts[k]),
               static_cast<uint32_t>(from.clocks[k]));
}
}  // namespace

IdMap::IdMap(const IdRules& rules, const IdKey& key)
    : rules_(rules), index_(key, rules.capacity, rules.evict != Evict::none) {
  if (rules.evict == Evict::light_lfu) order_.emplace(index_.list(), true, light_most, light_uses * rules.capacity);
  else if (rules.evict != Evict::none) order_.emplace(index_.list(), rules.evict == Evict::lfu);
  if (rules.admit_from > 1) pending_.emplace(key, rules.pending);
}

int64_t IdMap::size() const {
  const Lock lock(busy_);
  return index_.size();
}

int64_t IdMap::n_pending() const {
  const Lock lock(busy_);
  return pending_ ? pending_->index.size() : 0;
}

int64_t IdMap::clock() const {
  const Lock lock(busy_);
  return clock_;
}

int64_t IdMap::evicted() const {
  const Lock lock(busy_);
  return evicted_;
}

int64_t IdMap::bytes() const {
  const Lock lock(busy_);
  return index_.bytes() + (order_ ? order_->bytes() : 0) +
         (pending_ ? pending_->index.bytes() + pending_->order.bytes() : 0);
}

Spread IdMap::spread() const {
  const Lock lock(busy_);
  return index_.spread();
}

void IdMap::find(const int64_t* ids, int64_t n, int64_t* rows) const {
  const Lock lock(busy_);
  find_all(ids, n, rows);
}

void IdMap::find_all(const int64_t* ids, int64_t n, int64_t* rows) const {
  parallel_pieces(team(n * 16), [&](int piece, int pieces) {
    const Range mine = share(n, piece, pieces);
    index_.find(ids + mine.first, mine.last - mine.first, rows + mine.first);
  });
}

// Finds ids, and counts those that have a row as used by this batch, in order: one thread at a time does, whichever has
// just found ids, while others find those that follow. Returns whether all have one.
bool IdMap::find_and_use(const int64_t* ids, int64_t n, int64_t* rows) {
  const int64_t n_blocks = (n + block_ids - 1) / block_ids;
  const std::unique_ptr<std::atomic<bool>[]> found(new std::atomic<bool>[n_blocks]());
  std::atomic<int64_t> next{0}, used{0};  // blocks that somebody finds, or has found; blocks whose ids are counted
  std::atomic<bool> counting{false}, all{true};
  std::exception_ptr failed;
  const auto waits = [&] {
    const int64_t block = used;
    return block < n_blocks && found[block];
  };
  parallel(team(n * 16), [&](int, int) {
    for (int64_t block = next++; block < n_blocks; block = next++) {
      const int64_t first = block * block_ids;
      const int64_t here = std::min(block_ids, n - first);
      index_.find(ids + first, here, rows + first);
      if (std::any_of(rows + first, rows + first + here, [](int64_t row) { return row < 0; })) all = false;
      if (!order_) continue;
      found[block] = true;
      // Asked again after each: the one that counts may have looked just before this block was found.
      while (waits() && !counting.exchange(true)) {
        while (waits()) {
          const int64_t at = used * block_ids;
          try {
            order_->touch(rows + at, std::min(block_ids, n - at), static_cast<uint32_t>(clock_));
          } catch (...) {  // no memory: no thread may end by it
            failed = std::current_exception();
            used = n_blocks;
            break;
          }
          ++used;
        }
        counting = false;
      }
    }
  });
  if (failed) std::rethrow_exception(failed);
  return all;
}

int64_t IdMap::admit(const int64_t* ids, int64_t n, int64_t* rows, int64_t* fresh) {
  const Lock lock(busy_);
  if (clock_ == most_batches) throw std::length_error("batches: the clock ends at " + std::to_string(most_batches));
  ++clock_;
  const bool all = find_and_use(ids, n, rows);  // all of them before anyone goes
  int64_t n_fresh = 0;
  for (int64_t k = 0; k < n && !all; ++k) {
    if (k + ahead < n && rows[k + ahead] < 0) index_.prefetch(ids[k + ahead]);
    if (rows[k] >= 0) continue;
    rows[k] = index_.find(ids[k]);  // this batch may have let it in
    if (rows[k] >= 0 || !lets_in(ids[k])) continue;
    rows[k] = row_for(ids[k]);
    if (rows[k] >= 0) fresh[n_fresh++] = k;
  }
  if (order_) order_->age();
  return n_fresh;
}

// Whether this batch lets in an id that has no row. The same however often it is asked.
bool IdMap::lets_in(int64_t id) {
  if (pending_) return count_pending(id) >= rules_.admit_from;
  if (rules_.probability >= 1.0) return true;
  const uint64_t drawn =
      mix(mix(static_cast<uint64_t>(id) ^ mix(rules_.seed)) + golden * static_cast<uint64_t>(clock_));
  return static_cast<double>(static_cast<int64_t>(drawn >> 11)) * 0x1p-53 < rules_.probability;
}

// Batches that have asked for an id without a row, this one among them; 0 where they cannot be counted.
int64_t IdMap::count_pending(int64_t id) {
  auto& [index, order] = *pending_;
  const auto clock = static_cast<uint32_t>(clock_);
  int64_t number = index.find(id);
  if (number >= 0) {
    order.touch(static_cast<uint32_t>(number), clock);
    return order.count(static_cast<uint32_t>(number));
  }
  if (index.size() < rules_.pending) {
    order.reserve(index.size() + 1);  // before the id is there, in case that it fails
    number = index.insert(id);
  } else {
    number = order.take_first(clock);
    if (number < 0) return 0;
    index.replace(number, id);
  }
  order.add(static_cast<uint32_t>(number), 1, clock);
  return 1;
}

// A row for an id that is let in, or -1 where there is none.
int64_t IdMap::row_for(int64_t id) {
  const auto clock = static_cast<uint32_t>(clock_);
  int64_t row = -1;
  if (index_.size() < rules_.capacity) {
    if (order_) order_->reserve(index_.size() + 1);
    row = index_.insert(id);
  } else if (order_ && (row = order_->take_first(clock, static_cast<uint32_t>(rules_.in_use))) >= 0) {
    index_.replace(row, id);
    ++evicted_;
  }
  if (row < 0) return -1;
  if (order_) order_->add(static_cast<uint32_t>(row), 1, clock);
  if (pending_) pending_->order.set_count(static_cast<uint32_t>(pending_->index.find(id)), 0);  // from anew if it goes
  return row;
}

void IdMap::save(const IdColumns& resident, const IdColumns& pending) const {
  const Lock lock(busy_);
  save_list(index_, order_ ? &*order_ : nullptr, resident);
  if (pending_) save_list(pending_->index, &pending_->order, pending);
}

void IdMap::load(const ConstIdColumns& resident, const ConstIdColumns& pending, int64_t clock, int64_t evicted) {
  const Lock lock(busy_);
  if (clock_ || index_.size()) throw std::invalid_argument("load: the map is in use; only a new one can be loaded");
  load_list("", index_, order_ ? &*order_ : nullptr, resident, rules_.capacity, clock);
  if (pending_) load_list("pending_", pending_->index, &pending_->order, pending, rules_.pending, clock);
  clock_ = clock;
  evicted_ = evicted;
}

}  // namespace hpcrec
