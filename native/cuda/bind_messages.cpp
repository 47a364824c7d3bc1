// Bindings of kernels of messages: see bind.h.
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "bind.h"
#include "messages.h"
#include "packed.h"

namespace hpcrec::bindings {

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
            [&] { return cuda::threshold_of(values.data(), size(values), keep, queue(stream, faults)); });
      },
      "values"_a, "keep"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "take_largest",
      [](Floats values, int64_t width, int64_t keep, Out<int64_t> positions, Out<float> chosen, uintptr_t stream,
         Faults faults) {
        without_gil([&] {
          cuda::take_largest(values.data(), size(values) / width, width, keep, positions.data(), chosen.data(),
                             queue(stream, faults));
        });
      },
      "values"_a, "width"_a, "keep"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "mark_above",
      [words](Floats values, float tau, NewMarks marks, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return cuda::mark_above(values.data(), size(values), tau, words(marks.data()), queue(stream, faults));
        });
      },
      "values"_a, "tau"_a, "marks"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "mark_sum",
      [words](Floats gradient, Out<float> residual, float tau, NewMarks marks, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return cuda::mark_sum(gradient.data(), residual.data(), size(gradient), tau, words(marks.data()),
                                queue(stream, faults));
        });
      },
      "gradient"_a, "residual"_a.noconvert(), "tau"_a, "marks"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "take_marked",
      [read](Floats values, Marks marks, Out<int64_t> positions, Out<float> chosen, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::take_marked(values.data(), size(values), read(marks.data()), size(positions), positions.data(),
                            chosen.data(), queue(stream, faults));
        });
      },
      "values"_a, "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "cut_marked",
      [read](Out<float> values, Marks marks, Out<int64_t> positions, Out<float> chosen, uintptr_t stream,
             Faults faults) {
        without_gil([&] {
          cuda::cut_marked(values.data(), size(values), read(marks.data()), size(positions), positions.data(),
                           chosen.data(), queue(stream, faults));
        });
      },
      "values"_a.noconvert(), "marks"_a, "positions"_a.noconvert(), "chosen"_a.noconvert(), "stream"_a,
      "faults"_a.noconvert());
  m.def(
      "require_rising",
      [](Ids positions, int64_t n, uintptr_t stream, Faults faults) {
        without_gil([&] { cuda::require_rising(positions.data(), size(positions), n, queue(stream, faults)); });
      },
      "positions"_a, "n"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "expand",
      [](Out<float> out, Ids positions, Floats values, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::expand(out.data(), size(out), positions.data(), values.data(), size(positions), queue(stream, faults));
        });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "scatter_add",
      [](Out<float> out, Ids positions, Floats values, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::scatter_add(out.data(), size(out), positions.data(), values.data(), size(positions),
                            queue(stream, faults));
        });
      },
      "out"_a.noconvert(), "positions"_a, "values"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "gather",
      [](Floats values, Ids positions, Out<float> out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::gather(values.data(), size(values), positions.data(), size(positions), out.data(),
                       queue(stream, faults));
        });
      },
      "values"_a, "positions"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "write_mask",
      [](Ids positions, int64_t n, Out<uint8_t> out, uintptr_t stream, Faults faults) {
        without_gil([&] { cuda::write_mask(positions.data(), size(positions), n, out.data(), queue(stream, faults)); });
      },
      "positions"_a, "n"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "read_mask",
      [](In<uint8_t> data, int64_t n, Out<int64_t> positions, uintptr_t stream, Faults faults) {
        without_gil([&] { cuda::read_mask(data.data(), n, positions.data(), size(positions), queue(stream, faults)); });
      },
      "data"_a, "n"_a, "positions"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "write_halves",
      [](Floats values, Out<uint8_t> out, int kind, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::write_halves(values.data(), size(values), static_cast<HalfKind>(kind), out.data(),
                             queue(stream, faults));
        });
      },
      "values"_a, "out"_a.noconvert(), "kind"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "read_halves",
      [](In<uint8_t> data, Out<float> out, int kind, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::read_halves(data.data(), static_cast<HalfKind>(kind), out.data(), size(out), queue(stream, faults));
        });
      },
      "data"_a, "out"_a.noconvert(), "kind"_a, "stream"_a, "faults"_a.noconvert());
}

void bind_packed(nb::module_& m) {
  using Places = Out<int64_t>;
  using Bytes = In<uint8_t>;
  m.def(
      "packed_bytes",
      [](Ids numbers, uintptr_t stream, Faults faults) {
        const PackedBytes found =
            without_gil([&] { return cuda::packed_bytes(numbers.data(), size(numbers), queue(stream, faults)); });
        return std::make_tuple(found.plain, found.rising);
      },
      "numbers"_a, "stream"_a, "faults"_a.noconvert());
  m.def(
      "pack_numbers",
      [](Ids numbers, bool rising, Out<uint8_t> out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::pack_numbers(numbers.data(), size(numbers), rising, out.data(), size(out), queue(stream, faults));
        });
      },
      "numbers"_a, "rising"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "unpack_numbers",
      [](Bytes packed, bool rising, Places out, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::unpack_numbers(packed.data(), size(packed), size(out), rising, out.data(), queue(stream, faults));
        });
      },
      "packed"_a, "rising"_a, "out"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "unpack",
      [](Bytes message, nb::bytes asked, int64_t width, Places index, Places offsets, Maybe<Places> value_start,
         Maybe<Places> gradient_start, uintptr_t stream, Faults faults) {
        // Of the host: what the pieces claim is looked at there.
        std::vector<Asked> pieces(asked.size() / sizeof(Asked));
        if (!pieces.empty()) std::memcpy(pieces.data(), asked.c_str(), pieces.size() * sizeof(Asked));
        const Joined to{index.data(), offsets.data(), pointer(value_start), pointer(gradient_start)};
        without_gil([&] {
          cuda::unpack(message.data(), size(message), pieces.data(), static_cast<int64_t>(pieces.size()), width, to,
                       queue(stream, faults));
        });
      },
      "message"_a, "asked"_a, "width"_a, "index"_a.noconvert(), "offsets"_a.noconvert(),
      "value_start"_a.noconvert().none(), "gradient_start"_a.noconvert().none(), "stream"_a, "faults"_a.noconvert());
}

}  // namespace hpcrec::bindings
