// Dealing ids to entries: one read that counts and one that writes; one thread, because a team's waiting takes more
// time from what runs beside than it saves.
#include "hpcrec/requests_deal.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "hpcrec/check.h"

namespace hpcrec {
namespace {
[[noreturn]] void refuse(int64_t bundle, const std::string& found) {
  throw std::invalid_argument("bundle " + std::to_string(bundle) + ": " + found);
}

[[noreturn]] void changed() {
  refuse_changed("deal_requests");
}

bool add_up(const DealtBundle& b) {
  int64_t left = b.n_ids;
  for (int64_t v = 0; v < b.n_bags; ++v) {
    const int64_t n = b.lengths[v];
    if (n < 0 || n > left) return false;
    left -= n;
  }
  return left == 0;
}

void check(const Deal& deal, int64_t i, std::vector<bool>& taken) {
  const DealtBundle& b = deal.bundles[i];
  if (!add_up(b)) refuse(i, "the lengths of its bags do not add up to its " + std::to_string(b.n_ids) + " ids");
  const auto n_entries = static_cast<int64_t>(deal.every.size());
  for (const int64_t e : b.entries) {
    if (e < -1 || e >= n_entries || (e >= 0 && taken[e]))
      refuse(i, "entry " + std::to_string(e) + " is not one of " + std::to_string(n_entries) +
                    ", or is that of another part too");
    if (e >= 0) taken[e] = true;
  }
}

// Calls f(id's number, bag, entry, whether it is the entry's first id of the bag) for each id that goes anywhere, and
// wrong(part) where there is no such part. `last` is of the part's bag before.
template <class F, class W> void each_id(const DealtBundle& b, F&& f, W&& wrong) {
  const auto n_parts = static_cast<int64_t>(b.entries.size());
  std::vector<int64_t> last(n_parts, -1);
  int64_t k = 0;
  for (int64_t v = 0; v < b.n_bags; ++v) {
    const int64_t n = b.lengths[v];
    if (n < 0 || n > b.n_ids - k) changed();
    for (const int64_t end = k + n; k < end; ++k) {
      const int64_t part = b.parts[k];
      if (part < 0 || part >= n_parts) wrong(part);
      const int64_t entry = b.entries[part];
      if (entry < 0) continue;
      f(k, v, entry, last[part] != v);
      last[part] = v;
    }
  }
}

void count(const Deal& deal, int64_t i, int64_t* ids_of, int64_t* bags_of) {
  const DealtBundle& b = deal.bundles[i];
  if (b.parts) {
    each_id(
        b,
        [&](int64_t, int64_t, int64_t entry, bool begins) {
          ++ids_of[entry];
          bags_of[entry] += begins;
        },
        [&](int64_t part) {
          refuse(i, "an id goes to part " + std::to_string(part) + "; it has " + std::to_string(b.entries.size()));
        });
  } else {
    int64_t n_bags = 0;
    for (int64_t v = 0; v < b.n_bags; ++v) n_bags += b.lengths[v] > 0;
    for (const int64_t e : b.entries)
      if (e >= 0) {
        ids_of[e] = b.n_ids;
        bags_of[e] = n_bags;
      }
  }
  for (const int64_t e : b.entries)
    if (e >= 0 && deal.every[e]) bags_of[e] = b.n_bags;
}

// Where the next id, bag and weight of each entry go, and where the next entry's ids and bags begin.
struct Places {
  std::vector<int64_t> ids, bags, weights, ids_end, bags_end;
};

// To one entry that is asked for all of a bundle.
void write_all(const DealtBundle& b, bool every, int64_t entry, const Places& at, int64_t item,
               const DealWritten& out) {
  if (b.n_ids) std::memcpy(out.ids + at.ids[entry], b.ids, b.n_ids * sizeof(int64_t));
  if (b.weights && b.n_ids) std::memcpy(out.weights + at.weights[entry], b.weights, b.n_ids * item);
  int64_t to = at.bags[entry];
  for (int64_t v = 0; v < b.n_bags; ++v) {
    const int64_t n = b.lengths[v];
    if (!every && n <= 0) continue;
    if (to == at.bags_end[entry]) changed();
    out.lengths[to] = n;
    out.bag[to++] = v;
  }
}

void write(const DealtBundle& b, const std::vector<bool>& every, Places& at, int64_t item, const DealWritten& out) {
  if (!b.parts) {
    for (const int64_t e : b.entries)
      if (e >= 0) write_all(b, every[e], e, at, item, out);
    return;
  }
  for (const int64_t e : b.entries)
    if (e >= 0 && every[e]) {
      std::fill_n(out.lengths + at.bags[e], b.n_bags, 0);
      std::iota(out.bag + at.bags[e], out.bag + at.bags[e] + b.n_bags, int64_t{0});
    }
  each_id(
      b,
      [&](int64_t k, int64_t v, int64_t entry, bool begins) {
        if (at.ids[entry] == at.ids_end[entry]) changed();
        out.ids[at.ids[entry]++] = b.ids[k];
        if (b.weights) {
          std::memcpy(out.weights + at.weights[entry], b.weights + k * item, item);
          at.weights[entry] += item;
        }
        if (every[entry]) {
          ++out.lengths[at.bags[entry] + v];
        } else if (begins) {
          if (at.bags[entry] == at.bags_end[entry]) changed();
          out.lengths[at.bags[entry]] = 1;
          out.bag[at.bags[entry]++] = v;
        } else {
          ++out.lengths[at.bags[entry] - 1];
        }
      },
      [](int64_t) { changed(); });
}
}  // namespace

void count_deal(const Deal& deal, int64_t* ids_of, int64_t* bags_of) {
  std::vector<bool> taken(deal.every.size(), false);
  std::fill_n(ids_of, deal.every.size(), 0);
  std::fill_n(bags_of, deal.every.size(), 0);
  for (size_t i = 0; i < deal.bundles.size(); ++i) {
    check(deal, i, taken);
    count(deal, i, ids_of, bags_of);
  }
}

void write_deal(const Deal& deal, const int64_t* ids_of, const int64_t* bags_of, const DealWritten& out) {
  std::vector<bool> weighted(deal.every.size(), false);
  for (const DealtBundle& b : deal.bundles)
    for (const int64_t e : b.entries)
      if (e >= 0 && b.weights) weighted[e] = true;
  Places at;
  int64_t ids = 0, bags = 0, weights = 0;
  for (size_t e = 0; e < deal.every.size(); ++e) {
    at.ids.push_back(ids);
    at.bags.push_back(bags);
    at.weights.push_back(weights);
    ids += ids_of[e];
    bags += bags_of[e];
    weights += weighted[e] ? deal.item * ids_of[e] : 0;
    at.ids_end.push_back(ids);
    at.bags_end.push_back(bags);
  }
  for (const DealtBundle& b : deal.bundles) write(b, deal.every, at, deal.item, out);
}

}  // namespace hpcrec
