// Bindings of the device's kernels, and of the emulator's: arrays in device memory (on the host, where emulated), a
// stream, and a word for faults, in. What each kernel computes is written in hpcrec/kernels/reference.py; shapes and
// types are checked in hpcrec/kernels/, contents by the kernels, which note in the word what they refused.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "device.h"
#include "half_rows.h"
#include "ids.h"
#include "learn.h"
#include "lookup.h"
#include "messages.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {
#ifdef HPCREC_EMULATED
using Where = nb::device::cpu;
#else
using Where = nb::device::cuda;
#endif
template <class T> using In = nb::ndarray<const T, nb::c_contig, Where>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, Where>;
template <class T> using Maybe = std::optional<T>;
using Ids = In<int64_t>;
using Faults = Out<int32_t>;

template <class A> auto pointer(const Maybe<A>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}
template <class A> int64_t size(const A& array) {
  return static_cast<int64_t>(array.size());
}
hpcrec::cuda::Queue queue(uintptr_t stream, const Faults& faults) {
  return {reinterpret_cast<cudaStream_t>(stream), reinterpret_cast<unsigned*>(faults.data())};
}
template <class F> auto without_gil(F&& f) {
  nb::gil_scoped_release release;
  return f();
}

template <class T>
hpcrec::Occurrences<T> occurrences(const Ids& segments, const Ids& order, const Ids& source_start,
                                   const Maybe<In<T>>& weights, const In<T>& gradients, int64_t width) {
  return {segments.data(),
          order.data(),
          source_start.data(),
          pointer(weights),
          gradients.data(),
          size(segments) - 1,
          size(order),
          size(source_start),
          size(gradients),
          width,
          nullptr};
}
template <class T> hpcrec::Target<T> target(const Out<T>& rows, const Ids& unique) {
  return {rows.data(), unique.data(), static_cast<int64_t>(rows.shape(0)), size(unique),
          static_cast<int64_t>(rows.shape(1))};
}
template <class T>
hpcrec::Learning<T> learning(int rule, double rate, double eps, double rest1, double rest2, double total_width,
                             const Maybe<Out<T>>& state1, const Maybe<Out<T>>& state2, const Maybe<In<T>>& norm) {
  const auto as = [](double x) { return static_cast<T>(x); };
  return {static_cast<hpcrec::Rule>(rule),
          as(rate),
          as(eps),
          as(rest1),
          as(rest2),
          as(total_width),
          pointer(state1),
          pointer(state2),
          pointer(norm)};
}

// Bits come as int16: torch has no uint16 to speak of.
hpcrec::HalfRows half_rows(const Out<int16_t>& rows, int kind, bool nearest, uint64_t draws) {
  return {reinterpret_cast<uint16_t*>(rows.data()), static_cast<hpcrec::HalfKind>(kind), nearest, draws};
}
hpcrec::Target<float, hpcrec::HalfRows> half_target(const Out<int16_t>& rows, const Ids& unique, int kind, bool nearest,
                                                    uint64_t draws) {
  return {half_rows(rows, kind, nearest, draws), unique.data(), static_cast<int64_t>(rows.shape(0)), size(unique),
          static_cast<int64_t>(rows.shape(1))};
}
// Calls f with an element of the kind.
template <class F> void with_half(int kind, F&& f) {
  if (static_cast<hpcrec::HalfKind>(kind) == hpcrec::HalfKind::fp16) f(hpcrec::Fp16{});
  else f(hpcrec::Bf16{});
}

template <class T, class E, class B>
hpcrec::Gather<T, E> gather(const In<B>& rows, const Ids& index, const Ids& offsets, const Out<T>& out,
                            const Maybe<Ids>& out_start, const Maybe<In<T>>& weights, const Maybe<In<T>>& scale,
                            const Maybe<In<T>>& beside, const Maybe<Ids>& beside_start) {
  static_assert(sizeof(E) == sizeof(B));
  return {reinterpret_cast<const E*>(rows.data()),
          index.data(),
          offsets.data(),
          pointer(out_start),
          pointer(weights),
          pointer(scale),
          out.data(),
          static_cast<int64_t>(rows.shape(0)),
          static_cast<int64_t>(rows.shape(1)),
          size(index),
          size(offsets) - 1,
          size(out),
          pointer(beside),
          pointer(beside_start),
          beside ? size(*beside) : 0};
}

template <class T> void bind(nb::module_& m) {
  m.def(
      "pooled_gather",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<In<T>> weights, Maybe<In<T>> scale,
         Maybe<In<T>> beside, Maybe<Ids> beside_start, uintptr_t stream, Faults faults) {
        const auto call = gather<T, T>(rows, index, offsets, out, out_start, weights, scale, beside, beside_start);
        without_gil([&] { hpcrec::cuda::pooled_gather(call, queue(stream, faults)); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "copy_vectors",
      [](In<T> source, Out<T> into, int64_t width, int64_t n, Maybe<Ids> source_start, Maybe<Ids> target_start,
         bool accumulate, Maybe<In<T>> scale, uintptr_t stream, Faults faults) {
        const hpcrec::Copy<T> call{source.data(),
                                   into.data(),
                                   pointer(source_start),
                                   pointer(target_start),
                                   pointer(scale),
                                   n,
                                   width,
                                   size(source),
                                   size(into),
                                   accumulate};
        without_gil([&] { hpcrec::cuda::copy_vectors(call, queue(stream, faults)); });
      },
      "source"_a, "target"_a.noconvert(), "width"_a, "n"_a, "source_start"_a.none(), "target_start"_a.none(),
      "accumulate"_a, "scale"_a.none(), "stream"_a, "faults"_a.noconvert());
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
         double total_width, Maybe<Out<T>> state1, Maybe<Out<T>> state2, Maybe<In<T>> norm, uintptr_t stream,
         Faults faults) {
        const auto to = target<T>(rows, unique);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::cuda::update(to, merged.data(), how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a,
      "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "merge_update",
      [](Out<T> rows, Ids unique, Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double total_width, Maybe<Out<T>> state1,
         Maybe<Out<T>> state2, uintptr_t stream, Faults faults) {
        const auto to = target<T>(rows, unique);
        const auto from = occurrences<T>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, total_width, state1, state2, {});
        without_gil([&] { hpcrec::cuda::merge_update(to, from, how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none(), "stream"_a, "faults"_a.noconvert());
}

void bind_half_rows(nb::module_& m) {
  using Bits = In<int16_t>;
  using Written = Out<int16_t>;
  using Floats = Maybe<In<float>>;
  m.def(
      "pooled_gather",
      [](Bits rows, Ids index, Ids offsets, Out<float> out, Maybe<Ids> out_start, Floats weights, Floats scale,
         Floats beside, Maybe<Ids> beside_start, int kind, uintptr_t stream, Faults faults) {
        with_half(kind, [&](auto element) {
          const auto call = gather<float, decltype(element)>(rows, index, offsets, out, out_start, weights, scale,
                                                             beside, beside_start);
          without_gil([&] { hpcrec::cuda::pooled_gather(call, queue(stream, faults)); });
        });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none(), "kind"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "update",
      [](Written rows, Ids unique, In<float> merged, int rule, double rate, double eps, double rest1, double rest2,
         double total_width, Maybe<Out<float>> state1, Maybe<Out<float>> state2, Floats norm, int kind, bool nearest,
         uint64_t draws, uintptr_t stream, Faults faults) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::cuda::update(to, merged.data(), how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a,
      "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none(), "kind"_a, "nearest"_a, "draws"_a,
      "stream"_a, "faults"_a.noconvert());
  m.def(
      "merge_update",
      [](Written rows, Ids unique, Ids segments, Ids order, Ids source_start, Floats weights, In<float> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double total_width, Maybe<Out<float>> state1,
         Maybe<Out<float>> state2, int kind, bool nearest, uint64_t draws, uintptr_t stream, Faults faults) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto from = occurrences<float>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, total_width, state1, state2, {});
        without_gil([&] { hpcrec::cuda::merge_update(to, from, how, queue(stream, faults)); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a, "state1"_a.noconvert().none(),
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

void bind_messages(nb::module_& m) {
  using Floats = In<float>;
  using Marks = In<int64_t>;  // words of bits: torch has no uint64 to speak of
  using NewMarks = Out<int64_t>;
  const auto words = [](int64_t* marks) { return reinterpret_cast<uint64_t*>(marks); };
  const auto read = [](const int64_t* marks) { return reinterpret_cast<const uint64_t*>(marks); };
  m.def(
      "threshold_of",
      [](Floats values, int64_t keep, uintptr_t stream, Faults faults) {
        return without_gil(
            [&] { return hpcrec::cuda::threshold_of(values.data(), size(values), keep, queue(stream, faults)); });
      },
      "values"_a, "keep"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "take_largest",
      [](Floats values, int64_t width, int64_t keep, Out<int64_t> positions, Out<float> chosen, uintptr_t stream,
         Faults faults) {
        without_gil([&] {
          hpcrec::cuda::take_largest(values.data(), size(values) / width, width, keep, positions.data(), chosen.data(),
                                     queue(stream, faults));
        });
      },
      "values"_a, "width"_a, "keep"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "mark_above",
      [words](Floats values, float tau, NewMarks marks, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return hpcrec::cuda::mark_above(values.data(), size(values), tau, words(marks.data()), queue(stream, faults));
        });
      },
      "values"_a, "tau"_a, "marks"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "mark_sum",
      [words](Floats gradient, Out<float> residual, float tau, NewMarks marks, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return hpcrec::cuda::mark_sum(gradient.data(), residual.data(), size(gradient), tau, words(marks.data()),
                                        queue(stream, faults));
        });
      },
      "gradient"_a, "residual"_a.noconvert(), "tau"_a, "marks"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "take_marked",
      [read](Floats values, Marks marks, Out<int64_t> positions, Out<float> chosen, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::take_marked(values.data(), size(values), read(marks.data()), size(positions), positions.data(),
                                    chosen.data(), queue(stream, faults));
        });
      },
      "values"_a, "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "cut_marked",
      [read](Out<float> values, Marks marks, Out<int64_t> positions, Out<float> chosen, uintptr_t stream,
             Faults faults) {
        without_gil([&] {
          hpcrec::cuda::cut_marked(values.data(), size(values), read(marks.data()), size(positions), positions.data(),
                                   chosen.data(), queue(stream, faults));
        });
      },
      "values"_a.noconvert(), "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "require_rising",
      [](Ids positions, int64_t n, uintptr_t stream, Faults faults) {
        without_gil([&] { hpcrec::cuda::require_rising(positions.data(), size(positions), n, queue(stream, faults)); });
      },
      "positions"_a, "n"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "expand",
      [](Out<float> out, Ids positions, Floats values, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::expand(out.data(), size(out), positions.data(), values.data(), size(positions),
                               queue(stream, faults));
        });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "scatter_add",
      [](Out<float> out, Ids positions, Floats values, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::scatter_add(out.data(), size(out), positions.data(), values.data(), size(positions),
                                    queue(stream, faults));
        });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "gather",
      [](Floats values, Ids positions, Out<float> out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::gather(values.data(), size(values), positions.data(), size(positions), out.data(),
                               queue(stream, faults));
        });
      },
      "values"_a, "positions"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "write_mask",
      [](Ids positions, int64_t n, Out<uint8_t> out, uintptr_t stream, Faults faults) {
        without_gil(
            [&] { hpcrec::cuda::write_mask(positions.data(), size(positions), n, out.data(), queue(stream, faults)); });
      },
      "positions"_a, "n"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "read_mask",
      [](In<uint8_t> data, int64_t n, Out<int64_t> positions, uintptr_t stream, Faults faults) {
        without_gil(
            [&] { hpcrec::cuda::read_mask(data.data(), n, positions.data(), size(positions), queue(stream, faults)); });
      },
      "data"_a, "n"_a, "positions"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "write_halves",
      [](Floats values, Out<uint8_t> out, int kind, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::write_halves(values.data(), size(values), static_cast<hpcrec::HalfKind>(kind), out.data(),
                                     queue(stream, faults));
        });
      },
      "values"_a, "out"_a.noconvert(), "kind"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "read_halves",
      [](In<uint8_t> data, Out<float> out, int kind, uintptr_t stream, Faults faults) {
        without_gil([&] {
          hpcrec::cuda::read_halves(data.data(), static_cast<hpcrec::HalfKind>(kind), out.data(), size(out),
                                    queue(stream, faults));
        });
      },
      "data"_a, "out"_a.noconvert(), "kind"_a, "stream"_a, "faults"_a.noconvert());
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
  bind_messages(m);
}
