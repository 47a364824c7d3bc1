// Bindings of the slot map; see module.cpp. Sizes and types are looked at by hpcrec/kernels/slots.py.
#include "hpcrec/bind_slots.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "hpcrec/arrays.h"
#include "hpcrec/slots.h"
#include "hpcrec/slots_aging.h"

namespace hpcrec {
namespace {
using namespace bindings;

Slots slots_of(const Out<int64_t>& held, uint64_t seed, int sets = 1) {
  return {held.data(), size(held), seed, sets};
}

// By the type of uses: clocks, or counts and clocks.
template <class U> void bind_uses(nb::module_& m) {
  m.def(
      "admit_slots",
      [](Out<int64_t> held, Out<U> uses, uint64_t seed, Ids ids, int32_t clock, int32_t keep_from, Out<int64_t> slots,
         Out<int64_t> evicted) {
        const SlotCall call{ids.data(), size(ids), clock, keep_from, slots.data(), evicted.data()};
        return without_gil([&] { return admit_slots(slots_of(held, seed), uses.data(), call); });
      },
      "held"_a.noconvert(), "uses"_a.noconvert(), "seed"_a, "ids"_a, "clock"_a, "keep_from"_a, "slots"_a.noconvert(),
      "evicted"_a.noconvert());
  m.def(
      "touch_slots",
      [](Out<U> uses, Ids slots, int32_t clock) {
        without_gil([&] { touch_slots(uses.data(), size(uses), slots.data(), size(slots), clock); });
      },
      "uses"_a.noconvert(), "slots"_a, "clock"_a);
}

void bind_aging(nb::module_& m) {
  using Held = Out<int64_t>;
  using Ghosts = Out<uint32_t>;
  const auto state = [](const Held& uses, const Ghosts& ghosts, const Held& numbers) {
    return AgingState{uses.data(), ghosts.data(), numbers.data()};
  };
  m.def(
      "admit_aging_slots",
      [state](Held held, Held uses, Ghosts ghosts, Held numbers, uint64_t seed, Ids ids, int32_t clock,
              int32_t keep_from, Held slots, Held evicted) {
        const SlotCall call{ids.data(), size(ids), clock, keep_from, slots.data(), evicted.data()};
        return without_gil([&] {
          return admit_aging_slots(slots_of(held, seed, most_slot_sets), state(uses, ghosts, numbers), call);
        });
      },
      "held"_a.noconvert(), "uses"_a.noconvert(), "ghosts"_a.noconvert(), "numbers"_a.noconvert(), "seed"_a, "ids"_a,
      "clock"_a, "keep_from"_a, "slots"_a.noconvert(), "evicted"_a.noconvert());
  const auto bind = [&](const char* name, auto call) {
    m.def(
        name,
        [state, call](Held held, Held uses, Ghosts ghosts, Held numbers, uint64_t seed, Ids given, int32_t clock) {
          without_gil([&] {
            call(slots_of(held, seed, most_slot_sets), state(uses, ghosts, numbers), given.data(), size(given), clock);
          });
        },
        "held"_a.noconvert(), "uses"_a.noconvert(), "ghosts"_a.noconvert(), "numbers"_a.noconvert(), "seed"_a,
        "given"_a, "clock"_a);
  };
  bind("keep_aging_slots", keep_aging_slots);
  bind("foresee_slots", foresee_slots);
  m.def(
      "count_foreseen",
      [state](Held held, Held uses, Ghosts ghosts, Held numbers) {
        const Foreseen found =
            without_gil([&] { return count_foreseen(slots_of(held, 0), state(uses, ghosts, numbers)); });
        return std::make_tuple(found.foreseen, found.idle);
      },
      "held"_a.noconvert(), "uses"_a.noconvert(), "ghosts"_a.noconvert(), "numbers"_a.noconvert());
}
}  // namespace

void bind_slots(nb::module_& m) {
  bind_aging(m);
  bind_uses<int32_t>(m);
  bind_uses<int64_t>(m);
  m.def(
      "find_slots",
      [](Out<int64_t> held, uint64_t seed, int sets, Ids ids, Out<int64_t> slots) {
        without_gil([&] { find_slots(slots_of(held, seed, sets), ids.data(), size(ids), slots.data()); });
      },
      "held"_a.noconvert(), "seed"_a, "sets"_a, "ids"_a, "slots"_a.noconvert());
  m.def(
      "remove_slots",
      [](Out<int64_t> held, uint64_t seed, int sets, Ids ids, Out<int64_t> slots) {
        without_gil([&] { remove_slots(slots_of(held, seed, sets), ids.data(), size(ids), slots.data()); });
      },
      "held"_a.noconvert(), "seed"_a, "sets"_a, "ids"_a, "slots"_a.noconvert());
}

}  // namespace hpcrec
