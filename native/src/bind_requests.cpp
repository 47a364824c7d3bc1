// Bindings of the kernels on requests; see module.cpp.
#include "hpcrec/bind_requests.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "hpcrec/requests.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hpcrec {
namespace {
template <class T> using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Ids = In<int64_t>;
using Written = Out<int64_t>;
using Flags = In<bool>;
using Bytes = In<uint8_t>;

template <class A> int64_t size(const A& array) {
  return static_cast<int64_t>(array.size());
}

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
}  // namespace

void bind_requests(nb::module_& m) {
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
