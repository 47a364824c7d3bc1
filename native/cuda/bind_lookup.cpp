// Bindings of kernels that move and pool vectors: see bind.h.
#include "bind.h"
#include "fm.h"
#include "hpcrec/arguments.h"
#include "interaction.h"
#include "lookup.h"
#include "maximum.h"

namespace hpcrec::bindings {
namespace {

template <class T> void bind(nb::module_& m) {
  m.def(
      "pooled_gather",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<In<T>> weights, Maybe<In<T>> scale,
         Maybe<In<T>> beside, Maybe<Ids> beside_start, uintptr_t stream, Faults faults) {
        const auto call = gather<T, T>(rows, index, offsets, out, out_start, weights, scale, beside, beside_start);
        without_gil([&] { cuda::pooled_gather(call, queue(stream, faults)); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "copy_vectors",
      [](In<T> source, Out<T> into, int64_t width, int64_t n, Maybe<Ids> source_start, Maybe<Ids> target_start,
         bool accumulate, Maybe<In<T>> scale, uintptr_t stream, Faults faults) {
        const auto call = copy_of<T>(source, into, width, n, source_start, target_start, accumulate, scale);
        without_gil([&] { cuda::copy_vectors(call, queue(stream, faults)); });
      },
      "source"_a, "target"_a.noconvert(), "width"_a, "n"_a, "source_start"_a.none(), "target_start"_a.none(),
      "accumulate"_a, "scale"_a.none(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "pooled_max",
      [](In<T> rows, Ids index, Ids offsets, Out<T> out, Maybe<Ids> out_start, Maybe<Out<int32_t>> winners,
         uintptr_t stream, Faults faults) {
        const auto call = largest<T, T>(rows, index, offsets, out, out_start, winners);
        without_gil([&] { cuda::pooled_max(call, queue(stream, faults)); });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "winners"_a.noconvert().none(),
      "stream"_a, "faults"_a.noconvert());
  m.def(
      "pooled_max_backward",
      [](In<int32_t> winners, Ids offsets, In<T> gradients, Out<T> out, Maybe<Ids> source_start, uintptr_t stream,
         Faults faults) {
        const auto call = largest_backward<T>(winners, offsets, gradients, out, source_start);
        without_gil([&] { cuda::pooled_max_backward(call, queue(stream, faults)); });
      },
      "winners"_a, "offsets"_a, "gradients"_a, "out"_a.noconvert(), "source_start"_a.none(), "stream"_a,
      "faults"_a.noconvert());
}

void bind_half_lookup(nb::module_& m) {
  using Bits = In<int16_t>;
  using Floats = Maybe<In<float>>;
  m.def(
      "pooled_gather",
      [](Bits rows, Ids index, Ids offsets, Out<float> out, Maybe<Ids> out_start, Floats weights, Floats scale,
         Floats beside, Maybe<Ids> beside_start, int kind, uintptr_t stream, Faults faults) {
        with_half(kind, [&](auto element) {
          const auto call = gather<float, decltype(element)>(rows, index, offsets, out, out_start, weights, scale,
                                                             beside, beside_start);
          without_gil([&] { cuda::pooled_gather(call, queue(stream, faults)); });
        });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "weights"_a.none(), "scale"_a.none(),
      "beside"_a.none(), "beside_start"_a.none(), "kind"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "pooled_max",
      [](Bits rows, Ids index, Ids offsets, Out<float> out, Maybe<Ids> out_start, Maybe<Out<int32_t>> winners, int kind,
         uintptr_t stream, Faults faults) {
        with_half(kind, [&](auto element) {
          const auto call = largest<float, decltype(element)>(rows, index, offsets, out, out_start, winners);
          without_gil([&] { cuda::pooled_max(call, queue(stream, faults)); });
        });
      },
      "rows"_a, "index"_a, "offsets"_a, "out"_a.noconvert(), "out_start"_a.none(), "winners"_a.noconvert().none(),
      "kind"_a, "stream"_a, "faults"_a.noconvert());
}

template <class T> void bind_fm(nb::module_& m) {
  m.def(
      "fm_sums",
      [](Vectors3<const T> vectors, Out<T> sums, Out<T> squares, uintptr_t stream, Faults faults) {
        const auto in = fm_sums_of<T>(vectors);
        without_gil([&] { cuda::fm_sums(in, sums.data(), squares.data(), queue(stream, faults)); });
      },
      "vectors"_a, "sums"_a.noconvert(), "squares"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "fm_sums_backward",
      [](Vectors3<const T> vectors, In<T> sums_gradient, In<T> squares_gradient, Vectors3<T> gradient, uintptr_t stream,
         Faults faults) {
        const auto in = fm_sums_of<T>(vectors);
        without_gil([&] {
          cuda::fm_sums_backward(in, sums_gradient.data(), squares_gradient.data(), strided(gradient),
                                 queue(stream, faults));
        });
      },
      "vectors"_a, "sums_gradient"_a, "squares_gradient"_a, "gradient"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
}

template <class T> Vectors<T> vectors(const Maybe<In<T>>& first, const In<T>& block) {
  return {pointer(first), block.data(), static_cast<int64_t>(block.shape(0)), static_cast<int64_t>(block.shape(1)),
          static_cast<int64_t>(block.shape(2))};
}

template <class T> void bind_interaction(nb::module_& m) {
  m.def(
      "dot_interaction",
      [](Maybe<In<T>> first, In<T> block, Out<T> out, uintptr_t stream, Faults faults) {
        const auto in = vectors<T>(first, block);
        without_gil([&] { cuda::dot_interaction(in, out.data(), queue(stream, faults)); });
      },
      "first"_a.none(), "block"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "dot_interaction_backward",
      [](Maybe<In<T>> first, In<T> block, In<T> gradient, Maybe<Out<T>> first_gradient, Out<T> block_gradient,
         uintptr_t stream, Faults faults) {
        const auto in = vectors<T>(first, block);
        without_gil([&] {
          cuda::dot_interaction_backward(in, gradient.data(), pointer(first_gradient), block_gradient.data(),
                                         queue(stream, faults));
        });
      },
      "first"_a.none(), "block"_a, "gradient"_a, "first_gradient"_a.noconvert().none(), "block_gradient"_a.noconvert(),
      "stream"_a, "faults"_a.noconvert());
}

}  // namespace

void bind_lookup(nb::module_& m) {
  bind<float>(m);
  bind<double>(m);
  bind_half_lookup(m);
  bind_interaction<float>(m);
  bind_interaction<double>(m);
  bind_fm<float>(m);
  bind_fm<double>(m);
}

}  // namespace hpcrec::bindings
