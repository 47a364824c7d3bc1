// Bindings of the kernels on requests; see module.cpp.
#include "hpcrec/bind_requests.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "hpcrec/arrays.h"
#include "hpcrec/requests.h"
#include "hpcrec/requests_deal.h"

namespace hpcrec {
namespace {
using namespace bindings;
using Written = Out<int64_t>;
using Flags = In<bool>;
using Bytes = In<uint8_t>;

// Cells are int64 [N, 4].
template <class Cell, class A> Cell* cells_of(const A& array) {
  static_assert(sizeof(RequestCell) == 4 * sizeof(int64_t));
  return reinterpret_cast<Cell*>(array.data());
}

RequestsAsked asked(const Ids& ids, const Ids& lengths, const Ids& cells, int64_t n_owners, const Flags& weighted,
                    int64_t item) {
  return {ids.data(), lengths.data(), cells_of<const RequestCell>(cells),
          size(ids),  size(lengths),  size(cells) / 4,
          n_owners,   size(weighted), weighted.data(),
          item};
}

RequestsReceived received(const Bytes& message, const Ids& at, const Ids& bytes, const Flags& weighted, int64_t item) {
  return {message.data(), size(message), at.data(), bytes.data(), size(at), size(weighted), weighted.data(), item};
}

// The bundles of a deal; a list that is empty, in parts or weights, is none.
Deal deal_of(const std::vector<Ids>& ids, const std::vector<Ids>& lengths, const std::vector<Ids>& parts,
             const std::vector<Bytes>& weights, const Ids& entries, const Ids& first, const Flags& every,
             int64_t item) {
  const size_t n = ids.size();
  if (lengths.size() != n || parts.size() != n || weights.size() != n || first.size() != n + 1)
    throw std::invalid_argument("there are not as many lists of each kind as bundles");
  Deal deal{{}, std::vector<bool>(every.data(), every.data() + size(every)), item};
  for (size_t b = 0; b < n; ++b) {
    const int64_t from = first.data()[b], to = first.data()[b + 1], k = size(ids[b]);
    if (from < 0 || to < from || to > size(entries) || (parts[b].size() && size(parts[b]) != k) ||
        (weights[b].size() && size(weights[b]) != item * k))
      throw std::invalid_argument("lists of bundles do not fit together");
    deal.bundles.push_back({ids[b].data(),
                            lengths[b].data(),
                            parts[b].size() ? parts[b].data() : nullptr,
                            weights[b].size() ? weights[b].data() : nullptr,
                            k,
                            size(lengths[b]),
                            {entries.data() + from, entries.data() + to}});
  }
  return deal;
}
}  // namespace

void bind_requests(nb::module_& m) {
  m.def(
      "deal_requests",
      [](const std::vector<Ids>& ids, const std::vector<Ids>& lengths, const std::vector<Ids>& parts,
         const std::vector<Bytes>& weights, Ids entries, Ids first, Flags every, int64_t item, Written ids_of,
         Written bags_of, Written out_ids, Written out_lengths, Written out_bag, Out<uint8_t> out_weights) {
        const Deal deal = deal_of(ids, lengths, parts, weights, entries, first, every, item);
        nb::gil_scoped_release release;
        if (size(ids_of) != size(every) || size(bags_of) != size(every))
          throw std::invalid_argument("counts are not of all entries");
        count_deal(deal, ids_of.data(), bags_of.data());
        int64_t n_ids = 0, n_bags = 0, n_bytes = 0;
        for (const DealtBundle& b : deal.bundles)
          for (const int64_t e : b.entries)
            if (e >= 0) {
              n_ids += ids_of.data()[e];
              n_bags += bags_of.data()[e];
              n_bytes += b.weights ? item * ids_of.data()[e] : 0;
            }
        if (n_ids > size(out_ids) || n_bags > size(out_lengths) || n_bags > size(out_bag) ||
            n_bytes > size(out_weights))
          throw std::invalid_argument("there is too little room");
        write_deal(deal, ids_of.data(), bags_of.data(),
                   {out_ids.data(), out_lengths.data(), out_bag.data(), out_weights.data()});
        return std::make_tuple(n_ids, n_bags, n_bytes);
      },
      "ids"_a, "lengths"_a, "parts"_a, "weights"_a, "entries"_a, "first"_a, "every"_a, "item"_a, "ids_of"_a.noconvert(),
      "bags_of"_a.noconvert(), "out_ids"_a.noconvert(), "out_lengths"_a.noconvert(), "out_bag"_a.noconvert(),
      "out_weights"_a.noconvert());
  m.def(
      "plan_requests",
      [](Ids ids, Ids lengths, Ids cells, Flags far, Flags weighted, int64_t item, Written bytes, Written coding,
         Written distinct, Written table_ids, Written table_places) {
        const auto what = asked(ids, lengths, cells, size(far), weighted, item);
        RequestPlan plan{bytes.data(), coding.data(), distinct.data(), table_ids.data(), table_places.data(), 0, 0};
        {
          nb::gil_scoped_release release;
          plan_requests(what, far.data(), plan);
        }
        return std::make_tuple(plan.n_table_ids, plan.n_table_places);
      },
      "ids"_a, "lengths"_a, "cells"_a, "far"_a, "weighted"_a, "item"_a, "bytes"_a.noconvert(), "coding"_a.noconvert(),
      "distinct"_a.noconvert(), "table_ids"_a.noconvert(), "table_places"_a.noconvert());
  m.def(
      "write_requests",
      [](Ids bytes, Ids coding, Ids distinct, Ids table_ids, Ids table_places, Ids ids, Ids lengths, Ids cells,
         Bytes weights, Flags weighted, int64_t item, Out<uint8_t> out, Ids at) {
        const auto what = asked(ids, lengths, cells, size(bytes), weighted, item);
        // The plan is only read.
        const auto of = [](const Ids& array) { return const_cast<int64_t*>(array.data()); };
        const RequestPlan plan{of(bytes),        of(coding),      of(distinct),      of(table_ids),
                               of(table_places), size(table_ids), size(table_places)};
        nb::gil_scoped_release release;
        write_requests(what, plan, weights.data(), size(weights), at.data(), out.data(), size(out));
      },
      "bytes"_a, "coding"_a, "distinct"_a, "table_ids"_a, "table_places"_a, "ids"_a, "lengths"_a, "cells"_a,
      "weights"_a, "weighted"_a, "item"_a, "out"_a.noconvert(), "at"_a);
  m.def(
      "measure_requests",
      [](Bytes message, Ids at, Ids bytes, Flags weighted, int64_t item) {
        const auto from = received(message, at, bytes, weighted, item);
        RequestsSize found;
        {
          nb::gil_scoped_release release;
          found = measure_requests(from);
        }
        return std::make_tuple(found.ids, found.bags, found.cells, found.weights);
      },
      "message"_a, "at"_a, "bytes"_a, "weighted"_a, "item"_a);
  m.def(
      "read_requests",
      [](Bytes message, Ids at, Ids bytes, Flags weighted, int64_t item, Written ids, Written offsets, Written cells,
         Out<uint8_t> weights) {
        const auto from = received(message, at, bytes, weighted, item);
        const RequestsRead to{ids.data(),
                              offsets.data(),
                              cells_of<RequestCell>(cells),
                              weights.data(),
                              {size(ids), size(offsets) - 1, size(cells) / 4, size(weights)}};
        nb::gil_scoped_release release;
        read_requests(from, to);
      },
      "message"_a, "at"_a, "bytes"_a, "weighted"_a, "item"_a, "ids"_a.noconvert(), "offsets"_a.noconvert(),
      "cells"_a.noconvert(), "weights"_a.noconvert());
}

}  // namespace hpcrec
