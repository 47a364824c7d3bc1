// Arguments of kernels, made of arrays: the same on the host and on a device. Shapes and types are checked in
// hpcrec/kernels/. Half rows come as bits B: uint16, or int16 where torch gives them, which has no uint16 to speak of.
#pragma once
#include "hpcrec/arrays.h"
#include "hpcrec/fm.h"
#include "hpcrec/half_rows.h"
#include "hpcrec/learn.h"
#include "hpcrec/lookup.h"
#include "hpcrec/maximum.h"

namespace hpcrec::bindings {

template <class T>
Occurrences<T> occurrences(const Ids& segments, const Ids& order, const Ids& source_start, const Maybe<In<T>>& weights,
                           const In<T>& gradients, int64_t width) {
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
template <class T> Target<T> target(const Out<T>& rows, const Ids& unique) {
  return {rows.data(), unique.data(), static_cast<int64_t>(rows.shape(0)), size(unique),
          static_cast<int64_t>(rows.shape(1))};
}
template <class T>
Learning<T> learning(int rule, double rate, double eps, double rest1, double rest2, double bound, double total_width,
                     const Maybe<Out<T>>& state1, const Maybe<Out<T>>& state2, const Maybe<In<T>>& norm) {
  const auto as = [](double x) { return static_cast<T>(x); };
  return {static_cast<Rule>(rule), as(rate),        as(eps),         as(rest1),    as(rest2), as(bound),
          as(total_width),         pointer(state1), pointer(state2), pointer(norm)};
}

template <class B> HalfRows half_rows(const Out<B>& rows, int kind, bool nearest, uint64_t draws) {
  return {reinterpret_cast<uint16_t*>(rows.data()), static_cast<HalfKind>(kind), nearest, draws};
}
template <class B>
Target<float, HalfRows> half_target(const Out<B>& rows, const Ids& unique, int kind, bool nearest, uint64_t draws) {
  return {half_rows<B>(rows, kind, nearest, draws), unique.data(), static_cast<int64_t>(rows.shape(0)), size(unique),
          static_cast<int64_t>(rows.shape(1))};
}
// Calls f with an element of the kind.
template <class F> void with_half(int kind, F&& f) {
  if (static_cast<HalfKind>(kind) == HalfKind::fp16) f(Fp16{});
  else f(Bf16{});
}

// Rows of E, float or half, come as B, of as many bytes.
template <class T, class E, class B>
Gather<T, E> gather(const In<B>& rows, const Ids& index, const Ids& offsets, const Out<T>& out,
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
template <class T, class E, class B>
Largest<T, E> largest(const In<B>& rows, const Ids& index, const Ids& offsets, const Out<T>& out,
                      const Maybe<Ids>& out_start, const Maybe<Out<int32_t>>& winners) {
  static_assert(sizeof(E) == sizeof(B));
  return {reinterpret_cast<const E*>(rows.data()),
          index.data(),
          offsets.data(),
          pointer(out_start),
          out.data(),
          pointer(winners),
          static_cast<int64_t>(rows.shape(0)),
          static_cast<int64_t>(rows.shape(1)),
          size(index),
          size(offsets) - 1,
          size(out)};
}
template <class T>
LargestBackward<T> largest_backward(const In<int32_t>& winners, const Ids& offsets, const In<T>& gradients,
                                    const Out<T>& out, const Maybe<Ids>& source_start) {
  return {winners.data(),
          offsets.data(),
          gradients.data(),
          pointer(source_start),
          out.data(),
          static_cast<int64_t>(out.shape(1)),
          static_cast<int64_t>(out.shape(0)),
          size(offsets) - 1,
          size(gradients)};
}
template <class T>
Copy<T> copy_of(const In<T>& source, const Out<T>& into, int64_t width, int64_t n, const Maybe<Ids>& source_start,
                const Maybe<Ids>& target_start, bool accumulate, const Maybe<In<T>>& scale) {
  return {
      source.data(), into.data(), pointer(source_start), pointer(target_start), pointer(scale), n, width, size(source),
      size(into),    accumulate};
}

// Vectors [B, F, D] of any strides but that of the columns; an axis of one has none.
template <class T> using Vectors3 = nb::ndarray<T, nb::ndim<3>, Where>;
template <class T> Strided<T> strided(const Vectors3<T>& array) {
  return {array.data(), array.shape(0) > 1 ? array.stride(0) : 0, array.shape(1) > 1 ? array.stride(1) : 0};
}
template <class T> FmSums<T> fm_sums_of(const Vectors3<const T>& vectors) {
  return {strided(vectors), static_cast<int64_t>(vectors.shape(0)), static_cast<int64_t>(vectors.shape(1)),
          static_cast<int64_t>(vectors.shape(2))};
}

}  // namespace hpcrec::bindings
