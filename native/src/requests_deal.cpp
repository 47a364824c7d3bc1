// Dealing ids to entries: one read that counts and one that writes; one thread, because a team's waiting takes more
// time from what runs beside than it saves.
#include "hpcrec/requests_deal.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

namespace hpcrec {
namespace {
constexpr int64_t fine = -1;

[[noreturn]] void refuse(int64_t bundle, const std::string& found) {
  throw std::invalid_argument("bundle " + std::to_string(bundle) + ": " + found);
}

bool add_up(const DealtBundle& b) {
  int64_t left = b.n_ids;
  for (int64_t v = 0; v < b.n_bags; ++v) {
    if (b.lengths[v] < 0 || b.lengths[v] > left) return false;
    left -= b.lengths[v];
  }
  return left == 0;
}

void check(const Deal& deal) {
  std::vector<bool> taken(deal.n_entries, false);
  for (size_t i = 0; i < deal.bundles.size(); ++i) {
    const DealtBundle& b = deal.bundles[i];
    if (!add_up(b)) refuse(i, "the lengths of its bags do not add up to its " + std::to_string(b.n_ids) + " ids");
    for (int64_t p = 0; p < b.n_parts; ++p) {
      const int64_t e = b.entries[p];
      if (e >= deal.n_entries || (e >= 0 && taken[e]))
        refuse(i, "entry " + std::to_string(e) + " is not one of " + std::to_string(deal.n_entries) +
                      ", or is that of another part too");
      if (e >= 0) taken[e] = true;
    }
  }
}

// Calls f(id's number, bag, entry, whether it is the entry's first id of the bag) for each id that goes anywhere.
// `last` is of the part's bag before.
template <class F> void each_id(const DealtBundle& b, F&& f) {
  std::vector<int64_t> last(b.n_parts, -1);
  int64_t k = 0;
  for (int64_t v = 0; v < b.n_bags; ++v)
    for (const int64_t end = k + b.lengths[v]; k < end; ++k) {
      const int64_t part = b.parts[k], entry = b.entries[part];
      if (entry < 0) continue;
      f(k, v, entry, last[part] != v);
      last[part] = v;
    }
}

int64_t wrong_part(const DealtBundle& b) {
  if (b.parts)
    for (int64_t k = 0; k < b.n_ids; ++k)
      if (b.parts[k] < 0 || b.parts[k] >= b.n_parts) return k;
  return fine;
}

void count(const DealtBundle& b, const bool* every, int64_t* ids_of, int64_t* bags_of) {
  if (b.parts) {
    each_id(b, [&](int64_t, int64_t, int64_t entry, bool begins) {
      ++ids_of[entry];
      bags_of[entry] += begins;
    });
  } else {
    int64_t n_bags = 0;
    for (int64_t v = 0; v < b.n_bags; ++v) n_bags += b.lengths[v] > 0;
    for (int64_t p = 0; p < b.n_parts; ++p)
      if (b.entries[p] >= 0) {
        ids_of[b.entries[p]] = b.n_ids;
        bags_of[b.entries[p]] = n_bags;
      }
  }
  for (int64_t p = 0; p < b.n_parts; ++p)
    if (b.entries[p] >= 0 && every[b.entries[p]]) bags_of[b.entries[p]] = b.n_bags;
}

// Where the next id, bag and weight of each entry go.
struct Places {
  std::vector<int64_t> ids, bags, weights;
};

// To one entry that is asked for all of a bundle.
void write_all(const DealtBundle& b, bool every, int64_t entry, const Places& at, int64_t item,
               const DealWritten& out) {
  if (b.n_ids) std::memcpy(out.ids + at.ids[entry], b.ids, b.n_ids * sizeof(int64_t));
  if (b.weights && b.n_ids) std::memcpy(out.weights + at.weights[entry], b.weights, b.n_ids * item);
  int64_t *lengths = out.lengths + at.bags[entry], *bag = out.bag + at.bags[entry];
  for (int64_t v = 0; v < b.n_bags; ++v)
    if (every || b.lengths[v] > 0) {
      *lengths++ = b.lengths[v];
      *bag++ = v;
    }
}

void write(const DealtBundle& b, const bool* every, Places& at, int64_t item, const DealWritten& out) {
  if (!b.parts) {
    for (int64_t p = 0; p < b.n_parts; ++p)
      if (b.entries[p] >= 0) write_all(b, every[b.entries[p]], b.entries[p], at, item, out);
    return;
  }
  for (int64_t p = 0; p < b.n_parts; ++p)
    if (const int64_t e = b.entries[p]; e >= 0 && every[e]) {
      std::fill_n(out.lengths + at.bags[e], b.n_bags, 0);
      std::iota(out.bag + at.bags[e], out.bag + at.bags[e] + b.n_bags, int64_t{0});
    }
  each_id(b, [&](int64_t k, int64_t v, int64_t entry, bool begins) {
    out.ids[at.ids[entry]++] = b.ids[k];
    if (b.weights) {
      std::memcpy(out.weights + at.weights[entry], b.weights + k * item, item);
      at.weights[entry] += item;
    }
    if (every[entry]) {
      ++out.lengths[at.bags[entry] + v];
    } else if (begins) {
      out.lengths[at.bags[entry]] = 1;
      out.bag[at.bags[entry]++] = v;
    } else {
      ++out.lengths[at.bags[entry] - 1];
    }
  });
}
}  // namespace

void count_deal(const Deal& deal, int64_t* ids_of, int64_t* bags_of) {
  check(deal);
  std::fill_n(ids_of, deal.n_entries, 0);
  std::fill_n(bags_of, deal.n_entries, 0);
  for (size_t i = 0; i < deal.bundles.size(); ++i) {
    const DealtBundle& b = deal.bundles[i];
    const int64_t wrong = wrong_part(b);
    if (wrong != fine)
      refuse(i, "an id goes to part " + std::to_string(b.parts[wrong]) + "; it has " + std::to_string(b.n_parts));
    count(b, deal.every, ids_of, bags_of);
  }
}

void write_deal(const Deal& deal, const int64_t* ids_of, const int64_t* bags_of, const DealWritten& out) {
  std::vector<bool> weighted(deal.n_entries, false);
  for (const DealtBundle& b : deal.bundles)
    for (int64_t p = 0; p < b.n_parts; ++p)
      if (b.entries[p] >= 0 && b.weights) weighted[b.entries[p]] = true;
  Places at;
  int64_t ids = 0, bags = 0, weights = 0;
  for (int64_t e = 0; e < deal.n_entries; ++e) {
    at.ids.push_back(ids);
    at.bags.push_back(bags);
    at.weights.push_back(weights);
    ids += ids_of[e];
    bags += bags_of[e];
    weights += weighted[e] ? deal.item * ids_of[e] : 0;
  }
  for (const DealtBundle& b : deal.bundles) write(b, deal.every, at, deal.item, out);
}

}  // namespace hpcrec
