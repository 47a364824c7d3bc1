// Bindings of the native kernels: arrays in, pointers on, the GIL released. What each kernel computes is written in
// hpcrec/kernels/reference.py; shapes and types are checked in hpcrec/kernels/, contents by the kernels.
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "hpcrec/arguments.h"
#include "hpcrec/bind_copies.h"
#include "hpcrec/bind_host_messages.h"
#include "hpcrec/bind_pages.h"
#include "hpcrec/bind_requests.h"
#include "hpcrec/bind_slots.h"
#include "hpcrec/chunks.h"
#include "hpcrec/fm.h"
#include "hpcrec/halves.h"
#include "hpcrec/id_map.h"
#include "hpcrec/ids.h"
#include "hpcrec/interaction.h"
#include "hpcrec/known_map.h"
#include "hpcrec/learn.h"
#include "hpcrec/lookup.h"
#include "hpcrec/maximum.h"
#include "hpcrec/packed.h"
#include "hpcrec/parallel.h"
#include "hpcrec/positions.h"
#include "hpcrec/signature.h"
#include "hpcrec/take.h"
#include "hpcrec/text.h"
#include "hpcrec/threshold.h"
#include "hpcrec/unpack.h"

using namespace hpcrec::bindings;

namespace {
// Rows, source starts, rule, rate, eps, rest1, rest2, bound, total width, states of the table beside.
template <class T>
using BesideStep =
    std::tuple<Out<T>, Ids, int, double, double, double, double, double, double, Maybe<Out<T>>, Maybe<Out<T>>>;

template <class T> void bind_lookup(nb::module_& m) {
  m.def(
      "pooled_gather",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<In<T>> weights, Maybe<In<T>> scale,
         Maybe<In<T>> beside, Maybe<Ids> beside_start) {
        const auto call = gather<T, T>(rows, index, offsets, out, out_start, weights, scale, beside, beside_start);
        without_gil([&] { hpcrec::pooled_gather(call); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none());
  m.def(
      "copy_vectors",
      [](In<T> source, Out<T> into, int64_t width, int64_t n, Maybe<Ids> source_start, Maybe<Ids> target_start,
         bool accumulate, Maybe<In<T>> scale) {
        const auto call = copy_of<T>(source, into, width, n, source_start, target_start, accumulate, scale);
        without_gil([&] { hpcrec::copy_vectors(call); });
      },
      "source"_a, "target"_a.noconvert(), "width"_a, "n"_a, "source_start"_a.none(), "target_start"_a.none(),
      "accumulate"_a, "scale"_a.none());
  m.def(
      "pooled_max",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<Out<int32_t>> winners) {
        const auto call = largest<T, T>(rows, index, offsets, out, out_start, winners);
        without_gil([&] { hpcrec::pooled_max(call); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "winners"_a.noconvert().none());
  m.def(
      "pooled_max_backward",
      [](In<int32_t> winners, Ids offsets, In<T> gradients, Out<T> out, Maybe<Ids> source_start) {
        const auto call = largest_backward<T>(winners, offsets, gradients, out, source_start);
        without_gil([&] { hpcrec::pooled_max_backward(call); });
      },
      "winners"_a, "offsets"_a, "gradients"_a, "out"_a.noconvert(), "source_start"_a.none());
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
         double bound, double total_width, Maybe<Out<T>> state1, Maybe<Out<T>> state2, Maybe<In<T>> norm) {
        const auto to = target<T>(rows, unique);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::update(to, merged.data(), how); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a,
      "total_width"_a, "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none());
  m.def(
      "update_sums",
      [](Out<T> rows, Ids unique, In<T> merged, int rule, double rate, double eps, double bound, Out<T> state,
         Ids ticks, In<T> squares) {
        const auto to = target<T>(rows, unique);
        const auto how = learning<T>(rule, rate, eps, 0, 0, bound, 1, state, {}, {});
        without_gil([&] { hpcrec::update_sums(to, merged.data(), how, {ticks.data(), squares.data()}); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "bound"_a, "state"_a.noconvert(),
      "ticks"_a, "squares"_a);
  m.def(
      "merge_update",
      [](Out<T> rows, Ids unique, Ids segments, Ids order, Ids source_start, Maybe<In<T>> weights, In<T> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double bound, double total_width,
         Maybe<Out<T>> state1, Maybe<Out<T>> state2, Maybe<BesideStep<T>> beside) {
        const auto to = target<T>(rows, unique);
        auto from = occurrences<T>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<T>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, Maybe<In<T>>());
        if (!beside) return without_gil([&] { hpcrec::merge_update(to, from, how); });
        const auto& [its_rows, its_start, its_rule, its_rate, its_eps, its_rest1, its_rest2, its_bound, its_width,
                     its_state1, its_state2] = *beside;
        from.beside_start = its_start.data();
        const auto its_to = target<T>(its_rows, unique);
        const auto its_how = learning<T>(its_rule, its_rate, its_eps, its_rest1, its_rest2, its_bound, its_width,
                                         its_state1, its_state2, Maybe<In<T>>());
        without_gil([&] { hpcrec::merge_update(to, from, how, its_to, its_how); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none(), "beside"_a.none());
}

void bind_half_rows(nb::module_& m) {
  using Bits = In<uint16_t>;
  using Written = Out<uint16_t>;
  using Floats = Maybe<In<float>>;
  m.def(
      "pooled_gather",
      [](Bits rows, Ids index, Ids offsets, Out<float> out, Maybe<Ids> out_start, Floats weights, Floats scale,
         Floats beside, Maybe<Ids> beside_start, int kind) {
        with_half(kind, [&](auto element) {
          const auto call = gather<float, decltype(element)>(rows, index, offsets, out, out_start, weights, scale,
                                                             beside, beside_start);
          without_gil([&] { hpcrec::pooled_gather(call); });
        });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none(), "kind"_a);
  m.def(
      "pooled_max",
      [](Bits rows, Ids index, Ids offsets, Out<float> out, Maybe<Ids> out_start, Maybe<Out<int32_t>> winners,
         int kind) {
        with_half(kind, [&](auto element) {
          const auto call = largest<float, decltype(element)>(rows, index, offsets, out, out_start, winners);
          without_gil([&] { hpcrec::pooled_max(call); });
        });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "winners"_a.noconvert().none(),
      "kind"_a);
  m.def(
      "update",
      [](Written rows, Ids unique, In<float> merged, int rule, double rate, double eps, double rest1, double rest2,
         double bound, double total_width, Maybe<Out<float>> state1, Maybe<Out<float>> state2, Floats norm, int kind,
         bool nearest, uint64_t draws) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, norm);
        without_gil([&] { hpcrec::update(to, merged.data(), how); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a,
      "total_width"_a, "state1"_a.noconvert().none(), "state2"_a.noconvert().none(), "norm"_a.none(), "kind"_a,
      "nearest"_a, "draws"_a);
  m.def(
      "update_sums",
      [](Written rows, Ids unique, In<float> merged, int rule, double rate, double eps, double bound, Out<float> state,
         Ids ticks, In<float> squares, int kind, bool nearest, uint64_t draws) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto how = learning<float>(rule, rate, eps, 0, 0, bound, 1, state, {}, {});
        without_gil([&] { hpcrec::update_sums(to, merged.data(), how, {ticks.data(), squares.data()}); });
      },
      "rows"_a.noconvert(), "unique"_a, "merged"_a, "rule"_a, "rate"_a, "eps"_a, "bound"_a, "state"_a.noconvert(),
      "ticks"_a, "squares"_a, "kind"_a, "nearest"_a, "draws"_a);
  m.def(
      "merge_update",
      [](Written rows, Ids unique, Ids segments, Ids order, Ids source_start, Floats weights, In<float> gradients,
         int rule, double rate, double eps, double rest1, double rest2, double bound, double total_width,
         Maybe<Out<float>> state1, Maybe<Out<float>> state2, int kind, bool nearest, uint64_t draws) {
        const auto to = half_target(rows, unique, kind, nearest, draws);
        const auto from = occurrences<float>(segments, order, source_start, weights, gradients, to.width);
        const auto how = learning<float>(rule, rate, eps, rest1, rest2, bound, total_width, state1, state2, {});
        without_gil([&] { hpcrec::merge_update(to, from, how); });
      },
      "rows"_a.noconvert(), "unique"_a, "segments"_a, "order"_a, "source_start"_a, "weights"_a.none(), "gradients"_a,
      "rule"_a, "rate"_a, "eps"_a, "rest1"_a, "rest2"_a, "bound"_a, "total_width"_a, "state1"_a.noconvert().none(),
      "state2"_a.noconvert().none(), "kind"_a, "nearest"_a, "draws"_a);
  m.def(
      "to_half_rows",
      [](In<float> rows, int64_t first_row, Written out, int kind, bool nearest, uint64_t draws) {
        const auto to = half_rows(out, kind, nearest, draws);
        without_gil([&] {
          hpcrec::to_half_rows(rows.data(), static_cast<int64_t>(rows.shape(0)), static_cast<int64_t>(rows.shape(1)),
                               first_row, to);
        });
      },
      "rows"_a, "first_row"_a, "out"_a.noconvert(), "kind"_a, "nearest"_a, "draws"_a);
  m.def(
      "from_half_rows",
      [](Bits rows, Out<float> out, int kind) {
        without_gil(
            [&] { hpcrec::from_half_rows(rows.data(), static_cast<hpcrec::HalfKind>(kind), size(rows), out.data()); });
      },
      "rows"_a, "out"_a.noconvert(), "kind"_a);
}

template <class T> hpcrec::Vectors<T> vectors(const Maybe<In<T>>& first, const In<T>& block) {
  auto shape = [&](size_t axis) { return static_cast<int64_t>(block.shape(axis)); };
  return {pointer(first), block.data(), shape(0), shape(1), shape(2)};
}

template <class T> void bind_interaction(nb::module_& m) {
  m.def(
      "dot_interaction",
      [](Maybe<In<T>> first, In<T> block, Out<T> out) {
        const auto in = vectors<T>(first, block);
        without_gil([&] { hpcrec::dot_interaction(in, out.data()); });
      },
      "first"_a.none(), "block"_a, "out"_a.noconvert());
  m.def(
      "dot_interaction_backward",
      [](Maybe<In<T>> first, In<T> block, In<T> gradient, Maybe<Out<T>> first_gradient, Out<T> block_gradient) {
        const auto in = vectors<T>(first, block);
        without_gil([&] {
          hpcrec::dot_interaction_backward(in, gradient.data(), pointer(first_gradient), block_gradient.data());
        });
      },
      "first"_a.none(), "block"_a, "gradient"_a, "first_gradient"_a.noconvert().none(), "block_gradient"_a.noconvert());
}

template <class T> void bind_fm(nb::module_& m) {
  m.def(
      "fm_sums",
      [](Vectors3<const T> vectors, Out<T> sums, Out<T> squares) {
        const auto in = fm_sums_of<T>(vectors);
        without_gil([&] { hpcrec::fm_sums(in, sums.data(), squares.data()); });
      },
      "vectors"_a, "sums"_a.noconvert(), "squares"_a.noconvert());
  m.def(
      "fm_sums_backward",
      [](Vectors3<const T> vectors, In<T> sums_gradient, In<T> squares_gradient, Vectors3<T> gradient) {
        const auto in = fm_sums_of<T>(vectors);
        without_gil(
            [&] { hpcrec::fm_sums_backward(in, sums_gradient.data(), squares_gradient.data(), strided(gradient)); });
      },
      "vectors"_a, "sums_gradient"_a, "squares_gradient"_a, "gradient"_a.noconvert());
}

void bind_ids(nb::module_& m) {
  using Places = Out<int64_t>;
  m.def(
      "unpack",
      [](In<uint8_t> message, Ids asked, int64_t width, Places index, Places offsets, Maybe<Places> value_start,
         Maybe<Places> gradient_start) {
        static_assert(sizeof(hpcrec::Asked) == 11 * sizeof(int64_t));
        const hpcrec::Joined to{index.data(), offsets.data(), pointer(value_start), pointer(gradient_start)};
        without_gil([&] {
          hpcrec::unpack(message.data(), size(message), reinterpret_cast<const hpcrec::Asked*>(asked.data()),
                         static_cast<int64_t>(asked.shape(0)), width, to);
        });
      },
      "message"_a, "asked"_a, "width"_a, "index"_a.noconvert(), "offsets"_a.noconvert(),
      "value_start"_a.noconvert().none(), "gradient_start"_a.noconvert().none());
  m.def(
      "take_bags",
      [](nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> items, Ids offsets, Ids rows, Ids out_offsets,
         nb::ndarray<nb::c_contig, nb::device::cpu> out) {
        const hpcrec::Picked from{static_cast<const uint8_t*>(items.data()),
                                  size(items),
                                  static_cast<int64_t>(items.itemsize()),
                                  offsets.data(),
                                  size(offsets) - 1,
                                  rows.data(),
                                  size(rows)};
        without_gil([&] { hpcrec::take_bags(from, out_offsets.data(), size(out), static_cast<uint8_t*>(out.data())); });
      },
      "items"_a, "offsets"_a, "rows"_a, "out_offsets"_a, "out"_a.noconvert());
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

void bind_packed(nb::module_& m) {
  m.def(
      "packed_bytes",
      [](Ids numbers) {
        const auto found = without_gil([&] { return hpcrec::packed_bytes(numbers.data(), size(numbers)); });
        return std::make_tuple(found.plain, found.rising);
      },
      "numbers"_a);
  m.def(
      "pack_numbers",
      [](Ids numbers, bool rising, Out<uint8_t> out) {
        without_gil([&] { hpcrec::pack_numbers(numbers.data(), size(numbers), rising, out.data(), size(out)); });
      },
      "numbers"_a, "rising"_a, "out"_a.noconvert());
  m.def(
      "unpack_numbers",
      [](In<uint8_t> packed, bool rising, Out<int64_t> out) {
        without_gil([&] { hpcrec::unpack_numbers(packed.data(), size(packed), size(out), rising, out.data()); });
      },
      "packed"_a, "rising"_a, "out"_a.noconvert());
}

void bind_halves(nb::module_& m) {
  m.def(
      "write_halves",
      [](In<float> values, Out<uint8_t> out, int kind) {
        without_gil([&] {
          hpcrec::write_halves(values.data(), size(values), static_cast<hpcrec::HalfKind>(kind), out.data());
        });
      },
      "values"_a, "out"_a.noconvert(), "kind"_a);
  m.def(
      "read_halves",
      [](In<uint8_t> data, Out<float> out, int kind) {
        without_gil(
            [&] { hpcrec::read_halves(data.data(), static_cast<hpcrec::HalfKind>(kind), out.data(), size(out)); });
      },
      "data"_a, "out"_a.noconvert(), "kind"_a);
}

void bind_threshold(nb::module_& m) {
  m.def(
      "threshold_of",
      [](In<float> values, int64_t keep) {
        return without_gil([&] { return hpcrec::threshold_of(values.data(), size(values), keep); });
      },
      "values"_a, "keep"_a);
  m.def(
      "mark_above",
      [](In<float> values, float tau, Out<uint64_t> marks) {
        return without_gil([&] { return hpcrec::mark_above(values.data(), size(values), tau, marks.data()); });
      },
      "values"_a, "tau"_a, "marks"_a.noconvert());
  m.def(
      "mark_sum",
      [](In<float> gradient, Out<float> residual, float tau, Out<uint64_t> marks) {
        return without_gil(
            [&] { return hpcrec::mark_sum(gradient.data(), residual.data(), size(gradient), tau, marks.data()); });
      },
      "gradient"_a, "residual"_a.noconvert(), "tau"_a, "marks"_a.noconvert());
  m.def(
      "take_marked",
      [](In<float> values, In<uint64_t> marks, Out<int64_t> positions, Out<float> chosen) {
        without_gil([&] {
          hpcrec::take_marked(values.data(), size(values), marks.data(), size(positions), positions.data(),
                              chosen.data());
        });
      },
      "values"_a, "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert());
  m.def(
      "take_largest",
      [](In<float> values, int64_t width, int64_t keep, Out<int64_t> positions, Out<float> chosen) {
        without_gil([&] {
          hpcrec::take_largest(values.data(), size(values) / width, width, keep, positions.data(), chosen.data());
        });
      },
      "values"_a, "width"_a, "keep"_a, "positions"_a.noconvert(), "chosen"_a.noconvert());
  m.def(
      "cut_marked",
      [](Out<float> values, In<uint64_t> marks, Out<int64_t> positions, Out<float> chosen) {
        without_gil([&] {
          hpcrec::cut_marked(values.data(), size(values), marks.data(), size(positions), positions.data(),
                             chosen.data());
        });
      },
      "values"_a.noconvert(), "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert());
}

void bind_positions(nb::module_& m) {
  m.def(
      "require_rising",
      [](Ids positions, int64_t n) {
        without_gil([&] { hpcrec::require_rising(positions.data(), size(positions), n); });
      },
      "positions"_a, "n"_a);
  m.def(
      "expand",
      [](Out<float> out, Ids positions, In<float> values) {
        without_gil([&] { hpcrec::expand(out.data(), size(out), positions.data(), values.data(), size(positions)); });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a);
  m.def(
      "scatter_add",
      [](Out<float> out, Ids positions, In<float> values) {
        without_gil(
            [&] { hpcrec::scatter_add(out.data(), size(out), positions.data(), values.data(), size(positions)); });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a);
  m.def(
      "gather",
      [](In<float> values, Ids positions, Out<float> out) {
        without_gil(
            [&] { hpcrec::gather(values.data(), size(values), positions.data(), size(positions), out.data()); });
      },
      "values"_a, "positions"_a, "out"_a.noconvert());
  m.def(
      "write_mask",
      [](Ids positions, int64_t n, Out<uint8_t> out) {
        without_gil([&] { hpcrec::write_mask(positions.data(), size(positions), n, out.data()); });
      },
      "positions"_a, "n"_a, "out"_a.noconvert());
  m.def(
      "read_mask",
      [](In<uint8_t> data, int64_t n, Out<int64_t> positions) {
        without_gil([&] { hpcrec::read_mask(data.data(), n, positions.data(), size(positions)); });
      },
      "data"_a, "n"_a, "positions"_a.noconvert());
}

void bind_id_map(nb::module_& m) {
  using Places = Out<int64_t>;
  nb::class_<hpcrec::IdMap>(m, "IdMap")
      .def(
          "__init__",
          [](hpcrec::IdMap* self, int64_t capacity, int evict, int64_t admit_from, int64_t pending, double probability,
             uint64_t seed, int64_t in_use, In<uint64_t> key) {
            const uint64_t* k = key.data();
            new (self) hpcrec::IdMap(
                {capacity, static_cast<hpcrec::Evict>(evict), admit_from, pending, probability, seed, in_use},
                {k[0], k[1], k[2], k[3]});
          },
          "capacity"_a, "evict"_a, "admit_from"_a, "pending"_a, "probability"_a, "seed"_a, "in_use"_a, "key"_a)
      .def_prop_ro("size", &hpcrec::IdMap::size)
      .def_prop_ro("n_pending", &hpcrec::IdMap::n_pending)
      .def_prop_ro("clock", &hpcrec::IdMap::clock)
      .def_prop_ro("evicted", &hpcrec::IdMap::evicted)
      .def_prop_ro("n_bytes", &hpcrec::IdMap::bytes)
      .def("spread",
           [](const hpcrec::IdMap& self) {
             const hpcrec::Spread found = without_gil([&] { return self.spread(); });
             return std::make_tuple(found.longest_probe, found.fullest_segment, found.segments, found.copied);
           })
      .def(
          "find",
          [](const hpcrec::IdMap& self, Ids ids, Places rows) {
            without_gil([&] { self.find(ids.data(), size(ids), rows.data()); });
          },
          "ids"_a, "rows"_a.noconvert())
      .def(
          "admit",
          [](hpcrec::IdMap& self, Ids ids, Places rows, Places fresh) {
            return without_gil([&] { return self.admit(ids.data(), size(ids), rows.data(), fresh.data()); });
          },
          "ids"_a, "rows"_a.noconvert(), "fresh"_a.noconvert())
      .def(
          "save",
          [](const hpcrec::IdMap& self, Places rows, Places ids, Places counts, Places clocks, Places pending_rows,
             Places pending_ids, Places pending_counts, Places pending_clocks) {
            without_gil([&] {
              self.save({rows.data(), ids.data(), counts.data(), clocks.data()},
                        {pending_rows.data(), pending_ids.data(), pending_counts.data(), pending_clocks.data()});
            });
          },
          "rows"_a.noconvert(), "ids"_a.noconvert(), "counts"_a.noconvert(), "clocks"_a.noconvert(),
          "pending_rows"_a.noconvert(), "pending_ids"_a.noconvert(), "pending_counts"_a.noconvert(),
          "pending_clocks"_a.noconvert())
      .def(
          "load",
          [](hpcrec::IdMap& self, std::optional<Ids> rows, Ids ids, Ids counts, Ids clocks, Ids pending_ids,
             Ids pending_counts, Ids pending_clocks, int64_t clock, int64_t evicted) {
            without_gil([&] {
              self.load({ids.data(), counts.data(), clocks.data(), size(ids), rows ? rows->data() : nullptr},
                        {pending_ids.data(), pending_counts.data(), pending_clocks.data(), size(pending_ids)}, clock,
                        evicted);
            });
          },
          "rows"_a.none(), "ids"_a, "counts"_a, "clocks"_a, "pending_ids"_a, "pending_counts"_a, "pending_clocks"_a,
          "clock"_a, "evicted"_a);
}

void bind_known_map(nb::module_& m) {
  using hpcrec::KnownMap;
  nb::class_<KnownMap>(m, "KnownMap")
      .def(
          "__init__",
          [](KnownMap* self, int64_t capacity, int64_t window, int64_t in_use, In<uint64_t> key) {
            const uint64_t* k = key.data();
            new (self) KnownMap({capacity, window, in_use}, {k[0], k[1], k[2], k[3]});
          },
          "capacity"_a, "window"_a, "in_use"_a, "key"_a)
      .def_prop_ro("size", &KnownMap::size)
      .def_prop_ro("evicted", &KnownMap::evicted)
      .def_prop_ro("n_bytes", &KnownMap::bytes)
      .def(
          "find",
          [](const KnownMap& self, Ids ids, Out<int64_t> rows) {
            without_gil([&] { self.find(ids.data(), size(ids), rows.data()); });
          },
          "ids"_a, "rows"_a.noconvert())
      .def(
          "foresee", [](KnownMap& self, Ids ids) { without_gil([&] { self.foresee(ids.data(), size(ids)); }); },
          "ids"_a)
      .def(
          "admit",
          [](KnownMap& self, Ids ids, Out<int64_t> rows, Out<int64_t> fresh) {
            return without_gil([&] { return self.admit(ids.data(), size(ids), rows.data(), fresh.data()); });
          },
          "ids"_a, "rows"_a.noconvert(), "fresh"_a.noconvert())
      .def("forget", [](KnownMap& self) { without_gil([&] { self.forget(); }); })
      .def("clear", [](KnownMap& self) { without_gil([&] { self.clear(); }); });
}

void bind_chunks(nb::module_& m) {
  m.def(
      "fletcher32",
      [](In<uint8_t> data) {
        return without_gil([&] {
          hpcrec::Fletcher sums;
          sums.add(data.data(), size(data));
          return sums.value();
        });
      },
      "data"_a);
  m.def(
      "read_chunks",
      [](int file, Ids chunk_at, Out<uint8_t> checked, Ids wanted, nb::ndarray<nb::c_contig, nb::device::cpu> out) {
        static_assert(sizeof(hpcrec::Wanted) == 7 * sizeof(int64_t));
        const hpcrec::Chunked from{file, chunk_at.data(), checked.data(), size(chunk_at)};
        return without_gil([&] {
          return hpcrec::read_chunks(from, reinterpret_cast<const hpcrec::Wanted*>(wanted.data()),
                                     static_cast<int64_t>(wanted.shape(0)), static_cast<uint8_t*>(out.data()),
                                     size(out), static_cast<int64_t>(out.itemsize()));
        });
      },
      "file"_a, "chunk_at"_a, "checked"_a.noconvert(), "wanted"_a, "out"_a.noconvert());
}

void bind_text(nb::module_& m) {
  using Bytes = In<uint8_t>;
  using Places = In<int32_t>;
  const auto values = [](const Bytes& text, const Places& begin, const Places& end) {
    return hpcrec::Values{text.data(), size(text), begin.data(), end.data(), size(begin)};
  };
  m.def(
      "cut_lines",
      [](Bytes text, int delimiter, int quote, Places wanted, Out<int32_t> begin, Out<int32_t> end,
         Out<int32_t> line_begin, Out<int32_t> columns) {
        const hpcrec::Cut how{static_cast<uint8_t>(delimiter), quote, wanted.data(), size(wanted)};
        without_gil([&] {
          hpcrec::cut_lines(text.data(), size(text), how, size(columns), begin.data(), end.data(), line_begin.data(),
                            columns.data());
        });
      },
      "text"_a, "delimiter"_a, "quote"_a, "wanted"_a, "begin"_a.noconvert(), "end"_a.noconvert(),
      "line_begin"_a.noconvert(), "columns"_a.noconvert());
  m.def(
      "cut_lists",
      [values](Bytes text, Places begin, Places end, int separator, Out<int32_t> item_begin, Out<int32_t> item_end,
               Out<int64_t> offsets) {
        return without_gil([&] {
          return hpcrec::cut_lists(values(text, begin, end), static_cast<uint8_t>(separator), size(item_begin),
                                   item_begin.data(), item_end.data(), offsets.data());
        });
      },
      "text"_a, "begin"_a, "end"_a, "separator"_a, "item_begin"_a.noconvert(), "item_end"_a.noconvert(),
      "offsets"_a.noconvert());
  m.def(
      "parse_integers",
      [values](Bytes text, Places begin, Places end, Out<int64_t> out, Out<uint8_t> state) {
        without_gil([&] { hpcrec::parse_integers(values(text, begin, end), out.data(), state.data()); });
      },
      "text"_a, "begin"_a, "end"_a, "out"_a.noconvert(), "state"_a.noconvert());
  m.def(
      "parse_numbers",
      [values](Bytes text, Places begin, Places end, Out<double> out, Out<uint8_t> state) {
        without_gil([&] { hpcrec::parse_numbers(values(text, begin, end), out.data(), state.data()); });
      },
      "text"_a, "begin"_a, "end"_a, "out"_a.noconvert(), "state"_a.noconvert());
  m.def(
      "parse_hex",
      [values](Bytes text, Places begin, Places end, int64_t digits, Out<uint64_t> out, Out<uint8_t> state) {
        without_gil([&] { hpcrec::parse_hex(values(text, begin, end), digits, out.data(), state.data()); });
      },
      "text"_a, "begin"_a, "end"_a, "digits"_a, "out"_a.noconvert(), "state"_a.noconvert());
  m.def(
      "hash_text",
      [values](Bytes text, Places begin, Places end, Out<uint64_t> out, Out<uint8_t> state) {
        without_gil([&] { hpcrec::hash_text(values(text, begin, end), out.data(), state.data()); });
      },
      "text"_a, "begin"_a, "end"_a, "out"_a.noconvert(), "state"_a.noconvert());
  m.def(
      "salted_rows",
      [](In<uint64_t> words, uint64_t salt, int64_t rows, Out<int64_t> out) {
        without_gil([&] { hpcrec::salted_rows(words.data(), size(words), salt, rows, out.data()); });
      },
      "words"_a, "salt"_a, "rows"_a, "out"_a.noconvert());
}
}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "hpcrec native kernels";
  nb::set_leak_warnings(false);  // maps that live until the process ends: what the collector was told to leave alone
  m.attr("block_size") = hpcrec::block_size;
  m.def("set_threads", &hpcrec::set_threads, "n"_a);
  m.def("get_threads", &hpcrec::threads);
  hpcrec::bind_signature(m);
  bind_ids(m);
  bind_packed(m);
  bind_halves(m);
  bind_half_rows(m);
  bind_threshold(m);
  bind_positions(m);
  bind_id_map(m);
  bind_known_map(m);
  bind_text(m);
  bind_chunks(m);
  hpcrec::bind_copies(m);
  hpcrec::bind_host_messages(m);
  hpcrec::bind_pages(m);
  hpcrec::bind_requests(m);
  hpcrec::bind_slots(m);
  bind_lookup<float>(m);
  bind_lookup<double>(m);
  bind_learn<float>(m);
  bind_learn<double>(m);
  bind_interaction<float>(m);
  bind_interaction<double>(m);
  bind_fm<float>(m);
  bind_fm<double>(m);
}
