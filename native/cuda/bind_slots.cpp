// Bindings of the device's slot map.
#include "bind.h"
#include "slots.h"

namespace hpcrec::bindings {
namespace {

cuda::Slots slots_of(const Out<int64_t>& held, uint64_t seed) {
  return {held.data(), size(held), seed};
}

// By the type of uses: clocks, or counts and clocks.
template <class U> void bind_uses(nb::module_& m) {
  m.def(
      "admit_slots",
      [](Out<int64_t> held, Out<U> uses, uint64_t seed, Ids ids, int32_t clock, int32_t keep_from, Out<int64_t> slots,
         Out<int64_t> evicted, uintptr_t stream, Faults faults) {
        return without_gil([&] {
          return cuda::admit_slots(slots_of(held, seed), uses.data(), ids.data(), size(ids), clock, keep_from,
                                   slots.data(), evicted.data(), queue(stream, faults));
        });
      },
      "held"_a.noconvert(), "uses"_a.noconvert(), "seed"_a, "ids"_a, "clock"_a, "keep_from"_a, "slots"_a.noconvert(),
      "evicted"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "touch_slots",
      [](Out<U> uses, Ids slots, int32_t clock, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::touch_slots(uses.data(), size(uses), slots.data(), size(slots), clock, queue(stream, faults));
        });
      },
      "uses"_a.noconvert(), "slots"_a, "clock"_a, "stream"_a, "faults"_a.noconvert());
}

}  // namespace

void bind_slots(nb::module_& m) {
  bind_uses<int32_t>(m);
  bind_uses<int64_t>(m);
  m.def(
      "find_slots",
      [](Out<int64_t> held, uint64_t seed, Ids ids, Out<int64_t> slots, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::find_slots(slots_of(held, seed), ids.data(), size(ids), slots.data(), queue(stream, faults));
        });
      },
      "held"_a.noconvert(), "seed"_a, "ids"_a, "slots"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
  m.def(
      "remove_slots",
      [](Out<int64_t> held, uint64_t seed, Ids ids, Out<int64_t> slots, uintptr_t stream, Faults faults) {
        without_gil([&] {
          cuda::remove_slots(slots_of(held, seed), ids.data(), size(ids), slots.data(), queue(stream, faults));
        });
      },
      "held"_a.noconvert(), "seed"_a, "ids"_a, "slots"_a.noconvert(), "stream"_a, "faults"_a.noconvert());
}

}  // namespace hpcrec::bindings
