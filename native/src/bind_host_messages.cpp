// Bindings of messages between the ranks of one host; see module.cpp. Types are those that hpcrec/comm/window.py gives.
#include "hpcrec/bind_host_messages.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "hpcrec/arrays.h"
#include "hpcrec/host_messages.h"
#include "hpcrec/phase.h"

namespace hpcrec {
namespace {
using namespace bindings;
using Ints = In<int64_t>;
using Bytes = Out<uint8_t>;

// Of small copies the lock is kept: to have it again may take longer, where another thread computes.
constexpr int64_t small = 65536;
template <class F> auto copying(int64_t bytes, F&& f) {
  return bytes < small ? f() : without_gil(f);
}

// Its plan, take and take_relayed are what a phase is made of: bound for tests, which look at each by itself.
// With the arrays that were shown, which are mapped as long as it is there.
struct Shown {
  HostMessages messages;
  std::map<std::pair<int64_t, int>, std::pair<Ints, In<uint8_t>>> arrays;

  // What the methods read of each rank.
  void of_ranks(const Ints& array, const char* name) const {
    if (size(array) < messages.ranks()) throw std::invalid_argument(std::string(name) + ": has too few ranks");
  }
};

std::vector<std::tuple<int64_t, int64_t, int64_t>> told(const std::vector<Task>& tasks) {
  std::vector<std::tuple<int64_t, int64_t, int64_t>> found;
  for (const Task& task : tasks) found.emplace_back(task.host, static_cast<int64_t>(task.way), task.bytes);
  return found;
}

// With what it goes through: the messages, and the words that ranks share.
struct Going {
  nb::object messages;
  Out<uint32_t> words;
  int64_t ranks;
  Phase phase;
};
}  // namespace

void bind_host_messages(nb::module_& m) {
  m.def(
      "places",
      [](Ints bytes, int64_t unit, Out<int64_t> at) {
        if (size(at) != size(bytes) || unit < 1) throw std::invalid_argument("at: is not as long as bytes");
        return places(bytes.data(), size(bytes), unit, at.data());
      },
      "bytes"_a, "unit"_a, "at"_a.noconvert());
  m.def(
      "clear_padding",
      [](Bytes room, Ints bytes, int64_t unit) {
        if (unit < 1) throw std::invalid_argument("unit: is below 1");
        return clear_padding(room.data(), size(room), bytes.data(), size(bytes), unit);
      },
      "room"_a.noconvert(), "bytes"_a, "unit"_a);
  m.def(
      "count_messages",
      [](Ints bytes, std::optional<Ints> messages, int64_t across, Ints to, Ints crosses, int64_t rank,
         Out<int64_t> counts) {
        if (size(bytes) != size(to) || (messages && size(*messages) != size(to)) || size(counts) != 4)
          throw std::invalid_argument("bytes, messages, counts: are not as long as they have to be");
        return count(bytes.data(), messages ? messages->data() : nullptr, across, to.data(), size(to), crosses.data(),
                     size(crosses), rank, counts.data());
      },
      "bytes"_a, "messages"_a.none(), "across"_a, "to"_a, "crosses"_a, "rank"_a, "counts"_a.noconvert());
  nb::class_<Shown>(m, "HostMessages")
      .def(
          "__init__",
          [](Shown* self, int64_t ranks, std::vector<int64_t> local, int64_t place) {
            new (self) Shown{HostMessages(ranks, std::move(local), place), {}};
          },
          "ranks"_a, "local"_a, "place"_a)
      .def(
          "show",
          [](Shown& self, int64_t place, int side, Ints numbers, In<uint8_t> messages) {
            self.messages.show(place, side, numbers.data(), size(numbers), messages.data(), size(messages));
            self.arrays.insert_or_assign({place, side}, std::make_pair(numbers, messages));
          },
          "place"_a, "side"_a, "numbers"_a.noconvert(), "messages"_a.noconvert())
      .def(
          "set_others",
          [](Shown& self, std::vector<int64_t> there, std::vector<int64_t> begins, std::vector<int64_t> gates,
             std::vector<int64_t> takers, std::vector<bool> peers, int64_t peer_bytes, int64_t alone_bytes) {
            self.messages.set_others({std::move(there), std::move(begins), std::move(gates), std::move(takers),
                                      std::move(peers), peer_bytes, alone_bytes});
          },
          "there"_a, "begins"_a, "gates"_a, "takers"_a, "peers"_a, "peer_bytes"_a, "alone_bytes"_a)
      .def(
          "plan",
          [](Shown& self, int side) {
            const Plan found = self.messages.plan(side);
            return std::make_tuple(told(found.sends), told(found.receives), found.relayed);
          },
          "side"_a)
      .def(
          "due", [](const Shown& self, int64_t m) { return self.messages.due(m); }, "m"_a)
      .def(
          "pack",
          [](const Shown& self, int side, int64_t place, Ints there, Bytes out) {
            return copying(size(out), [&] {
              return self.messages.pack(side, place, there.data(), size(there), out.data(), size(out));
            });
          },
          "side"_a, "place"_a, "there"_a, "out"_a.noconvert())
      .def(
          "take",
          [](const Shown& self, int side, Bytes recv, Ints at, Ints bytes) {
            self.of_ranks(at, "at"), self.of_ranks(bytes, "bytes");
            return copying(size(recv),
                           [&] { return self.messages.take(side, recv.data(), size(recv), at.data(), bytes.data()); });
          },
          "side"_a, "recv"_a.noconvert(), "at"_a, "bytes"_a)
      .def(
          "take_relayed",
          [](const Shown& self, int side, Bytes recv, Ints at, Ints bytes) {
            self.of_ranks(at, "at"), self.of_ranks(bytes, "bytes");
            return copying(size(recv), [&] {
              return self.messages.take_relayed(side, recv.data(), size(recv), at.data(), bytes.data());
            });
          },
          "side"_a, "recv"_a.noconvert(), "at"_a, "bytes"_a);
  nb::class_<Going>(m, "Phase")
      .def(
          "__init__",
          [](Going* self, nb::object messages, Out<uint32_t> words, int64_t spin_ns) {
            Shown& shown = nb::cast<Shown&>(messages);
            if (size(words) < Phase::words) throw std::invalid_argument("words: are too few");
            new (self) Going{messages, words, shown.messages.ranks(), Phase(shown.messages, words.data(), spin_ns)};
          },
          "messages"_a, "words"_a.noconvert(), "spin_ns"_a)
      .def("arrive", [](Going& self) { return self.phase.arrive(); })
      .def(
          "wait", [](Going& self, int64_t limit_ns) { return without_gil([&] { return self.phase.wait(limit_ns); }); },
          "limit_ns"_a)
      .def(
          "begin",
          [](Going& self, int side, Out<int64_t> numbers, Ints sends, Ints receives, int64_t unit, bool by_levels) {
            if (size(numbers) < 3 * self.ranks || size(sends) != self.ranks || size(receives) != self.ranks || unit < 1)
              throw std::invalid_argument("numbers, sends, receives: are not as many as they have to be");
            const auto ends = self.phase.begin(side, numbers.data(), sends.data(), receives.data(), unit, by_levels);
            return std::make_tuple(ends.sent, ends.received);
          },
          "side"_a, "numbers"_a.noconvert(), "sends"_a, "receives"_a, "unit"_a, "by_levels"_a)
      .def(
          "go",
          [](Going& self, Bytes recv, int64_t limit_ns) {
            auto go = [&] { return copying(size(recv), [&] { return self.phase.go(recv.data(), size(recv)); }); };
            Halt halt = go();
            if (halt == Halt::meets && without_gil([&] { return self.phase.wait(limit_ns); })) halt = go();
            return static_cast<int64_t>(halt);
          },
          "recv"_a.noconvert(), "limit_ns"_a)
      .def("plan",
           [](const Going& self) {
             const Plan& found = self.phase.plan();
             return std::make_tuple(told(found.sends), told(found.receives), found.relayed);
           })
      .def("all_are_there", [](const Going& self) { return self.phase.all_are_there(); })
      .def("grown", [](const Going& self) {
        return std::make_tuple(self.phase.grown_place(), static_cast<int64_t>(self.phase.grown_side()));
      });
}

}  // namespace hpcrec
