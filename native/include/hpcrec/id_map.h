// Rows for ids that nobody has declared: which id has which row, who is let in, and who has to go.
// What each call does is written in hpcrec/kernels/reference_id_map.py.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>

#include "hpcrec/id_index.h"
#include "hpcrec/id_order.h"

namespace hpcrec {

enum class Evict { none, lru, lfu, light_lfu };

// Of light_lfu: where counts end, and after how many uses a row of the capacity they are halved. As in the reference.
constexpr uint32_t light_most = 15;
constexpr int64_t light_uses = 10;

struct IdRules {
  int64_t capacity;    // rows
  Evict evict;         // what goes where there are no more
  int64_t admit_from;  // batches that have to ask for an id
  int64_t pending;     // ids of which such batches are counted
  double probability;  // with which a batch that asks for an id lets it in
  uint64_t seed;       // of the draws
  int64_t in_use = 1;  // batches, the present one among them, whose ids keep their rows
};

// Ids in the order of an IdOrder. Without one: of their rows, and only these are written.
struct IdColumns {
  int64_t *rows, *ids, *counts, *clocks;
};
struct ConstIdColumns {
  const int64_t *ids, *counts, *clocks;
  int64_t n;
  const int64_t* rows = nullptr;  // each of 0 to n - 1; without: in the order of the ids
};

// Calls may come from any thread, and wait for each other.
class IdMap {
 public:
  IdMap(const IdRules& rules, const IdKey& key);

  int64_t size() const;
  int64_t n_pending() const;
  int64_t clock() const;
  int64_t evicted() const;
  int64_t bytes() const;
  Spread spread() const;
  // Rows of n ids, or -1.
  void find(const int64_t* ids, int64_t n, int64_t* rows) const;
  // One batch. The places of ids that it gives a row to, their first ones, go to `fresh` [n]; returns how many.
  int64_t admit(const int64_t* ids, int64_t n, int64_t* rows, int64_t* fresh);
  // To [size()] and [n_pending()].
  void save(const IdColumns& resident, const IdColumns& pending) const;
  // Into an empty map. What is wrong with the lists leaves it unusable.
  void load(const ConstIdColumns& resident, const ConstIdColumns& pending, int64_t clock, int64_t evicted);

 private:
  // Ids that were asked for and have no row: as many as there is room for, the least recently asked for goes.
  struct Pending {
    IdIndex index;
    IdOrder order;

    Pending(const IdKey& key, int64_t n) : index(key, n, true), order(index.list(), false) {}
  };

  void find_all(const int64_t* ids, int64_t n, int64_t* rows) const;
  bool find_and_use(const int64_t* ids, int64_t n, int64_t* rows);
  bool lets_in(int64_t id);
  int64_t row_for(int64_t id);
  int64_t count_pending(int64_t id);

  IdRules rules_;
  mutable std::mutex busy_;
  IdIndex index_;
  std::optional<IdOrder> order_;
  std::optional<Pending> pending_;
  int64_t clock_ = 0, evicted_ = 0;
};

}  // namespace hpcrec
