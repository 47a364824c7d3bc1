// Bindings of the kernels on copies of rows; see module.cpp.
#include "hpcrec/bind_copies.h"

#include "hpcrec/arrays.h"
#include "hpcrec/copies.h"

namespace hpcrec {
namespace {
using namespace bindings;
using Written = Out<int64_t>;
using Numbers = In<double>;
using Flags = In<bool>;

// Records are int64 [N, 4].
CopyPlaces places(const Written& records, const Ids& slots) {
  static_assert(sizeof(CopyRecord) == 4 * sizeof(int64_t));
  return {reinterpret_cast<CopyRecord*>(records.data()), slots.data(), static_cast<int64_t>(records.shape(0)),
          static_cast<int64_t>(slots.size())};
}

template <class T>
CopyTable<T> table(int rule, const Numbers& lr, const Numbers& eps, const Numbers& bound, const Out<T>& rows,
                   const Maybe<Out<T>>& numbers) {
  return {static_cast<Rule>(rule),
          lr.data(),
          eps.data(),
          bound.data(),
          rows.data(),
          pointer(numbers),
          static_cast<int64_t>(lr.size()),
          static_cast<int64_t>(rows.shape(2))};
}

template <class T> void bind_tables(nb::module_& m) {
  m.def(
      "read_copies",
      [](Written records, Ids slots, int rule, Numbers lr, Numbers eps, Numbers bound, Out<T> rows,
         Maybe<Out<T>> numbers, Flags sent, int64_t step, double scale, Out<T> values, Maybe<In<T>> accumulators) {
        const CopyTable<T> of = table<T>(rule, lr, eps, bound, rows, numbers);
        const CameRows<T> came{sent.data(), step, scale, values.data(), pointer(accumulators)};
        without_gil([&] { read_copies(places(records, slots), of, came); });
      },
      "records"_a.noconvert(), "slots"_a, "rule"_a, "lr"_a, "eps"_a, "bound"_a, "rows"_a.noconvert(),
      "numbers"_a.noconvert().none(), "sent"_a, "step"_a, "scale"_a, "values"_a.noconvert(), "accumulators"_a.none());
  m.def(
      "add_to_copies",
      [](Written records, Ids slots, int rule, Numbers lr, Numbers eps, Numbers bound, Out<T> rows,
         Maybe<Out<T>> numbers, In<T> gradients) {
        const CopyTable<T> of = table<T>(rule, lr, eps, bound, rows, numbers);
        without_gil([&] { add_to_copies(places(records, slots), of, gradients.data()); });
      },
      "records"_a.noconvert(), "slots"_a, "rule"_a, "lr"_a, "eps"_a, "bound"_a, "rows"_a.noconvert(),
      "numbers"_a.noconvert().none(), "gradients"_a);
  m.def(
      "sums_of_copies",
      [](Written records, Ids slots, int rule, Numbers lr, Numbers eps, Numbers bound, Out<T> rows,
         Maybe<Out<T>> numbers, Maybe<double> scale, Out<T> sums, Maybe<Out<T>> squares) {
        const CopyTable<T> of = table<T>(rule, lr, eps, bound, rows, numbers);
        without_gil([&] {
          sums_of_copies(places(records, slots), of, scale ? &*scale : nullptr, sums.data(), pointer(squares));
        });
      },
      "records"_a.noconvert(), "slots"_a, "rule"_a, "lr"_a, "eps"_a, "bound"_a, "rows"_a.noconvert(),
      "numbers"_a.noconvert().none(), "scale"_a.none(), "sums"_a.noconvert(), "squares"_a.noconvert().none());
}
}  // namespace

void bind_copies(nb::module_& m) {
  m.def(
      "kept_copies",
      [](Written records, Ids slots, int64_t from, Out<bool> kept) {
        without_gil([&] { kept_copies(places(records, slots), from, kept.data()); });
      },
      "records"_a.noconvert(), "slots"_a, "from"_a, "kept"_a.noconvert());
  m.def(
      "tick_copies",
      [](Written records, Ids slots, int64_t step, double scale, int64_t most, Written over) {
        return without_gil([&] { return tick_copies(places(records, slots), step, scale, most, over.data()); });
      },
      "records"_a.noconvert(), "slots"_a, "step"_a, "scale"_a, "most"_a, "over"_a.noconvert());
  m.def(
      "end_ticks",
      [](Written records, Ids slots, bool forget, Written ticks) {
        without_gil([&] { end_ticks(places(records, slots), forget, ticks.data()); });
      },
      "records"_a.noconvert(), "slots"_a, "forget"_a, "ticks"_a.noconvert());
  bind_tables<float>(m);
  bind_tables<double>(m);
}

}  // namespace hpcrec
