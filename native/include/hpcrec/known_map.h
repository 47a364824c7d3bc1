// Rows for ids of which it is known which batches will ask for them: the one that is asked for last gives way.
// What each call does is written in hpcrec/kernels/reference_known_map.py.
//
// A batch that is foreseen finds, by a second index, the batch before it that will ask for the same id, and notes its
// own number there. So a batch that is admitted has the next use of each of its ids, without a search. Rows that no
// batch in use has asked for are in lists, by their next use, the least recently used first: in each call an id costs
// a few steps, however many there are, but for sorting those that come, and a look at each batch that is foreseen.
#pragma once
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "hpcrec/id_index.h"
#include "hpcrec/id_order.h"

namespace hpcrec {

struct KnownRules {
  int64_t capacity;  // rows
  int64_t window;    // batches that are known beyond the present one
  int64_t in_use;    // batches, the present one among them, whose ids keep their rows
};

// Calls may come from any thread, and wait for each other.
class KnownMap {
 public:
  KnownMap(const KnownRules& rules, const IdKey& key);

  int64_t size() const;
  int64_t evicted() const;
  int64_t bytes() const;
  // Rows of n ids, or -1.
  void find(const int64_t* ids, int64_t n, int64_t* rows) const;
  // The next batch that is not foreseen yet.
  void foresee(const int64_t* ids, int64_t n);
  // The first batch that is foreseen and not admitted. The places of ids that it gives a row to, their first ones, go
  // to `fresh` [n], rising; returns how many.
  int64_t admit(const int64_t* ids, int64_t n, int64_t* rows, int64_t* fresh);
  // What is foreseen does not come.
  void forget();
  // No id has a row any more; what is foreseen still comes.
  void clear();

 private:
  static constexpr uint32_t none = IdOrder::none;
  static constexpr uint32_t never = 0xffffffff;  // as a next use: after all others
  static constexpr uint32_t repeated = 0;        // in place of one: an id that the batch has before

  struct Row {
    uint32_t previous, next;  // in its list, where no batch in use has asked for it
    uint32_t use, last;       // the batches that will ask for it, and that have
    int64_t turn;             // of its last use, among all
  };
  struct List {
    uint32_t first = none, last = none;
  };
  struct Batch {
    std::vector<int64_t> ids;
    std::vector<uint32_t> next;  // use of each after this batch
  };
  // Ids that batches foreseen ask for, with the last of these and the place there; of others it may have some too.
  struct Window {
    IdIndex index;
    IdOrder order;

    explicit Window(const IdKey& key, int64_t n) : index(key, n, true), order(index.list(), false) {}
  };

  List& list_of(uint32_t use) { return use == never ? idle_ : ring_[use % ring_.size()]; }
  bool listed(const Row& row) const { return row.last + rules_.in_use <= clock_; }
  void append(uint32_t row);
  void take_out(uint32_t row);
  void note(int64_t number, int64_t id, uint32_t place, Batch& batch, std::vector<uint32_t>& moved);
  void is_asked_for(int64_t id, std::vector<uint32_t>& moved);
  int64_t new_number(int64_t id);
  void release();
  void use(uint32_t row, uint32_t next);
  int64_t row_for(int64_t id, uint32_t next);
  uint32_t first_to_go();

  KnownRules rules_;
  IdKey key_;
  mutable std::mutex busy_;
  std::optional<IdIndex> index_;  // of ids that have rows
  std::optional<Window> window_;
  std::deque<Row> rows_;
  std::deque<Batch> future_;                  // batch clock_ + 1 in front
  std::deque<std::vector<uint32_t>> in_use_;  // rows of the last batches, in the order of their uses
  List idle_;                                 // rows that no batch foreseen asks for
  std::vector<List> ring_;                    // the others, by their next use
  int64_t clock_ = 0, foreseen_ = 0;          // batches
  int64_t turn_ = 0, evicted_ = 0;
  uint32_t farthest_ = 0;  // no row in a list has a later next use, but for those of `idle_`
};

}  // namespace hpcrec
