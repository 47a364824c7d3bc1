// Bindings of the device's kernels, and of the emulator's: arrays in device memory (on the host, where emulated), a
// stream, and a word for faults, in. What each kernel computes is written in hpcrec/kernels/reference.py; shapes and
// types are checked in hpcrec/kernels/, contents by the kernels, which note in the word what they refused.
#include "bind.h"
#include "half_rows.h"
#include "hpcrec/arguments.h"
#include "ids.h"
#include "learn.h"

using namespace hpcrec::bindings;

namespace {
template <class T> void bind(nb::module_& m) {
  m.def(
      "merge",
      [](Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients, int64_t width, Out<T> out,
         uintptr_t stream, Faults faults) {
        const auto from = occurrences<T>(segments, order, source_start, weights, gradients, width);
        without_gil([&] { hpcrec::cuda::merge(from, out.data(), queue(stream, faults)); });
      },
      "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a, "width"_a, "out"_a.noconvert(),
      "stream"_a, "faults"_a.noconvert());
  m.def(
      "squared_norm",
      [](In<T> merged, Out<T> out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::squared_norms(merged.data(), static_cast<int64_t>(merged.shape(0)),
                                      static_cast<int64_t>(merged.shape(1)), out.data(), queue(stream, faults));
        });
      },
      "merged"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "update",
      [](Out<T> rows, Ids unique, In<T> merged, int rule, double rate, double eps, double rest1, double rest2,
         double bound, double total_width, Maybe<Out<T>> state1, Maybe<Out<T>> state2, Maybe<In<T>> norm,
         uintptr_t stream, Faults faults) {
        const auto to = target<T>(rows, unique);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::cuda::update(to, merged.data(), how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a,
      "total_width"_a, "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "merge_update",
      [](Out<T> rows, Ids unique, Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double bound, double total_width,
         Maybe<Out<T>> state1, Maybe<Out<T>> state2, uintptr_t stream, Faults faults) {
        const auto to = target<T>(rows, unique);
        const auto from = occurrences<T>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, {});
        without_gil([&] { hpcrec::cuda::merge_update(to, from, how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none(), "stream"_a, "faults"_a.noconvert());
}

void bind_half_rows(nb::module_& m) {
  using Bits = In<int16_t>;
  using Written = Out<int16_t>;
  using Floats = Maybe<In<float>>;
  m.def(
      "update",
      [](Written rows, Ids unique, In<float> merged, int rule, double rate, double eps, double rest1, double rest2,
         double bound, double total_width, Maybe<Out<float>> state1, Maybe<Out<float>> state2, Floats norm, int kind,
         bool nearest, uint64_t draws, uintptr_t stream, Faults faults) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::cuda::update(to, merged.data(), how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a,
      "total_width"_a, "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none(), "kind"_a,
      "nearest"_a, "draws"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "merge_update",
      [](Written rows, Ids unique, Ids segments, Ids order, Ids source_start, Floats weights, In<float> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double bound, double total_width,
         Maybe<Out<float>> state1, Maybe<Out<float>> state2, int kind, bool nearest, uint64_t draws, uintptr_t stream,
         Faults faults) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto from = occurrences<float>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, {});
        without_gil([&] { hpcrec::cuda::merge_update(to, from, how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none(), "kind"_a, "nearest"_a, "draws"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "to_half_rows",
      [](In<float> rows, int64_t first_row, Written out, int kind, bool nearest, uint64_t draws, uintptr_t stream,
         Faults faults) {
        const auto to = half_rows(out, kind, nearest, draws);
        without_gil([&] {
          hpcrec::cuda::to_half_rows(rows.data(), static_cast<int64_t>(rows.shape(0)),
                                     static_cast<int64_t>(rows.shape(1)), first_row, to, queue(stream, faults));
        });
      },
      "rows"_a, "first_row"_a, "out"_a.noconvert(), "kind"_a, "nearest"_a, "draws"_a, "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "from_half_rows",
      [](Bits rows, Out<float> out, int kind, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::from_half_rows(reinterpret_cast<const uint16_t*>(rows.data()),
                                       static_cast<hpcrec::HalfKind>(kind), size(rows), out.data(),
                                       queue(stream, faults));
        });
      },
      "rows"_a, "out"_a.noconvert(), "kind"_a, "stream"_a, "faults"_a.noconvert());
}

template <class T> void bind_init_rows(nb::module_& m) {
  m.def(
      "init_rows",
      [](uint64_t seed, Ids ids, int64_t column_start, double scale, Out<T> out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::init_rows(seed, ids.data(), size(ids), static_cast<int64_t>(out.shape(1)), column_start, scale,
                                  out.data(), queue(stream, faults));
        });
      },
      "seed"_a, "ids"_a, "column_start"_a, "scale"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
}

void bind_ids(nb::module_& m) {
  using Places = Out<int64_t>;
  m.def(
      "group",
      [](Ids ids, Maybe<Ids> offsets, Places unique, Places segments, Places order, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return hpcrec::cuda::group(ids.data(), size(ids), pointer(offsets), offsets ? size(*offsets) - 1 : 0,
                                     unique.data(), segments.data(), order.data(), queue(stream, faults));
        });
      },
      "ids"_a, "offsets"_a.none(), "unique"_a.noconvert(), "segments"_a.noconvert(), "order"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "dedup",
      [](Ids ids, Places unique, Places inverse, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return hpcrec::cuda::dedup(ids.data(), size(ids), unique.data(), inverse.data(), queue(stream, faults));
        });
      },
      "ids"_a, "unique"_a.noconvert(), "inverse"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "partition",
      [](In<int32_t> part, Places counts, Places order, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::partition(part.data(), size(part), size(counts), counts.data(), order.data(),
                                  queue(stream, faults));
        });
      },
      "part"_a, "counts"_a.noconvert(), "order"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "permute",
      [](Ids ids, int64_t rows, uint64_t seed, bool inverse, Places out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::permute(ids.data(), size(ids), rows, seed, inverse, out.data(), queue(stream, faults));
        });
      },
      "ids"_a, "rows"_a, "seed"_a, "inverse"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "hash_ids",
      [](Ids ids, int64_t rows, uint64_t seed, Places out, uintptr_t stream, Faults faults) {
        without_gil(
            [&] { hpcrec::cuda::hash_ids(ids.data(), size(ids), rows, seed, out.data(), queue(stream, faults)); });
      },
      "ids"_a, "rows"_a, "seed"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
}

}  // namespace

#ifdef HPCREC_EMULATED
NB_MODULE(_emulated, m) {
  m.doc() = "hpcrec's CUDA kernels, emulated on the host";
  m.def("run_wrong", &hpcrec::emulated::run_wrong, "which"_a);
#else
NB_MODULE(_cuda, m) {
  m.doc() = "hpcrec's CUDA kernels";
#endif
  nb::set_leak_warnings(false);  // of arrays that live until the process ends
  bind<float>(m);
  bind<double>(m);
  bind_init_rows<float>(m);
  bind_init_rows<double>(m);
  bind_half_rows(m);
  bind_ids(m);
  bind_lookup(m);
  bind_messages(m);
  bind_packed(m);
  bind_slots(m);
}
