// Bindings of the native kernels: arrays in, pointers on, the GIL released. What each kernel computes is written in
// hpcrec/kernels/reference.py; shapes and types are checked in hpcrec/kernels/, contents by the kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "hpcrec/ids.h"
#include "hpcrec/learn.h"
#include "hpcrec/lookup.h"
#include "hpcrec/parallel.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {
template <class T> using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T> using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T> using Maybe = std::optional<T>;
using Ids = In<int64_t>;

template <class A> auto pointer(const Maybe<A>& array) -> decltype(array->data()) {
  return array ? array->data() : nullptr;
}
template <class A> int64_t size(const A& array) {
  return static_cast<int64_t>(array.size());
}

template <class F> auto without_gil(F&& f) {
  nb::gil_scoped_release release;
  return f();
}

template <class T>
hpcrec::Occurrences<T> occurrences(const Ids& segments, const Ids& order, const Ids& source_start,
                                   const Maybe<In<T>>& weights, const In<T>& gradients, int64_t width) {
  return {segments.data(),    order.data(), source_start.data(), pointer(weights), gradients.data(),
          size(segments) - 1, size(order),  size(source_start),  size(gradients),  width};
}

template <class T> hpcrec::Target<T> target(const Out<T>& rows, const Ids& unique) {
  return {rows.data(), unique.data(), static_cast<int64_t>(rows.shape(0)), size(unique),
          static_cast<int64_t>(rows.shape(1))};
}

template <class T>
hpcrec::Learning<T> learning(int rule, double rate, double eps, double rest1, double rest2, double total_width,
                             const Maybe<Out<T>>& state1, const Maybe<Out<T>>& state2, const Maybe<In<T>>& norm) {
  auto as = [](double x) { return static_cast<T>(x); };
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

template <class T> void bind_lookup(nb::module_& m) {
  m.def(
      "pooled_gather",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<In<T>> weights,
         Maybe<In<T>> scale) {
        const hpcrec::Gather<T> call{rows.data(),
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
                                     size(out)};
        without_gil([&] { hpcrec::pooled_gather(call); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(),
      "scale"_a.none());
  m.def(
      "copy_vectors",
      [](In<T> source, Out<T> into, int64_t width, int64_t n, Maybe<Ids> source_start, Maybe<Ids> target_start,
         bool accumulate, Maybe<In<T>> scale) {
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
        without_gil([&] { hpcrec::copy_vectors(call); });
      },
      "source"_a, "target"_a.noconvert(), "width"_a, "n"_a, "source_start"_a.none(), "target_start"_a.none(),
      "accumulate"_a, "scale"_a.none());
  m.def(
      "init_rows",
      [](uint64_t seed, Ids ids, int64_t column_start, double scale, Out<T> out) {
        without_gil([&] {
          hpcrec::init_rows(seed, ids.data(), size(ids), static_cast<int64_t>(out.shape(1)), column_start, scale,
                            out.data());
        });
      },
      "seed"_a, "ids"_a, "column_start"_a, "scale"_a, "out"_a.noconvert());
}

template <class T> void bind_learn(nb::module_& m) {
  m.def(
      "merge",
      [](Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients, int64_t width, Out<T> out) {
        const auto from = occurrences<T>(segments, order, source_start, weights, gradients, width);
        without_gil([&] { hpcrec::merge(from, out.data()); });
      },
      "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a, "width"_a, "out"_a.noconvert());
  m.def(
      "squared_norm",
      [](In<T> merged, Out<T> out) {
        without_gil([&] {
          hpcrec::squared_norms(merged.data(), static_cast<int64_t>(merged.shape(0)),
                                static_cast<int64_t>(merged.shape(1)), out.data());
        });
      },
      "merged"_a, "out"_a.noconvert());
  m.def(
      "update",
      [](Out<T> rows, Ids unique, In<T> merged, int rule, double rate, double eps, double rest1, double rest2,
         double total_width, Maybe<Out<T>> state1, Maybe<Out<T>> state2, Maybe<In<T>> norm) {
        const auto to = target<T>(rows, unique);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::update(to, merged.data(), how); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a,
      "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none());
  m.def(
      "merge_update",
      [](Out<T> rows, Ids unique, Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double total_width, Maybe<Out<T>> state1,
         Maybe<Out<T>> state2) {
        const auto to = target<T>(rows, unique);
        const auto from = occurrences<T>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, total_width, state1, state2, Maybe<In<T>>());
        without_gil([&] { hpcrec::merge_update(to, from, how); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none());
}

void bind_ids(nb::module_& m) {
  using Places = Out<int64_t>;
  m.def(
      "group",
      [](Ids ids, Maybe<Ids> offsets, Places unique, Places segments, Places order) {
        return without_gil([&] {
          return hpcrec::group(ids.data(), size(ids), pointer(offsets), offsets ? size(*offsets) - 1 : 0, unique.data(),
                               segments.data(), order.data());
        });
      },
      "ids"_a, "offsets"_a.none(), "unique"_a.noconvert(), "segments"_a.noconvert(), "order"_a.noconvert());
  m.def(
      "dedup",
      [](Ids ids, Places unique, Places inverse) {
        return without_gil([&] { return hpcrec::dedup(ids.data(), size(ids), unique.data(), inverse.data()); });
      },
      "ids"_a, "unique"_a.noconvert(), "inverse"_a.noconvert());
  m.def(
      "partition",
      [](In<int32_t> part, Places counts, Places order) {
        without_gil([&] { hpcrec::partition(part.data(), size(part), size(counts), counts.data(), order.data()); });
      },
      "part"_a, "counts"_a.noconvert(), "order"_a.noconvert());
  m.def(
      "permute",
      [](Ids ids, int64_t rows, uint64_t seed, bool inverse, Places out) {
        without_gil([&] { hpcrec::permute(ids.data(), size(ids), rows, seed, inverse, out.data()); });
      },
      "ids"_a, "rows"_a, "seed"_a, "inverse"_a, "out"_a.noconvert());
  m.def(
      "hash_ids",
      [](Ids ids, int64_t rows, uint64_t seed, Places out) {
        without_gil([&] { hpcrec::hash_ids(ids.data(), size(ids), rows, seed, out.data()); });
      },
      "ids"_a, "rows"_a, "seed"_a, "out"_a.noconvert());
}
}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "hpcrec native kernels";
  m.attr("block_size") = hpcrec::block_size;
  m.def("set_threads", &hpcrec::set_threads, "n"_a);
  m.def("get_threads", &hpcrec::threads);
  bind_ids(m);
  bind_lookup<float>(m);
  bind_lookup<double>(m);
  bind_learn<float>(m);
  bind_learn<double>(m);
}
