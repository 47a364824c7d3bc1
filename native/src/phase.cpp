// What a rank does in a phase of messages of its host, one stage after the other.
#include "hpcrec/phase.h"

#include <algorithm>
#include <stdexcept>

namespace hpcrec {

Phase::Phase(HostMessages& messages, uint32_t* words, int64_t spin_ns)
    : messages_(messages), first_(words, spin_ns), through_(words + 2, spin_ns) {}

bool Phase::arrive() {
  waits_for_ = &first_;
  if (first_.come(messages_.here())) first_.open();
  return first_.met();
}

Phase::Ends Phase::begin(int which, int64_t* numbers, const int64_t* sends, const int64_t* receives, int64_t unit,
                         bool by_levels) {
  if (which != 0 && which != 1) throw std::invalid_argument("side: is 0 or 1");
  const int64_t ranks = messages_.ranks();
  begins_.resize(static_cast<size_t>(ranks));
  const Ends ends{places(sends, ranks, unit, numbers), places(receives, ranks, unit, begins_.data())};
  if (ends.sent < 0 || ends.received < 0) return ends;
  std::copy_n(sends, ranks, numbers + ranks);
  std::copy_n(receives, ranks, numbers + 2 * ranks);
  receives_.assign(receives, receives + ranks);
  which_ = which, by_levels_ = by_levels, stage_ = Stage::arrives;
  return ends;
}

// Says that this rank's numbers are there. The last to do so sees whether those who are no gates have to be woken now.
void Phase::announce() {
  planned_ = false;
  if (!by_levels_) {
    arrive();
    return;
  }
  waits_for_ = messages_.gate() ? &first_ : &through_;
  const bool last = first_.come(messages_.here());
  if (!messages_.gate()) through_.expect();
  if (!last) return;
  plan_ = messages_.plan(which_), planned_ = true;
  if (!plan_.by_gates) through_.open();
  first_.open();
}

// Sees to what this rank goes on with, once it is woken: then all numbers are there, and every rank makes the same of
// them.
void Phase::settle() {
  if (!planned_) plan_ = by_levels_ ? messages_.plan(which_) : Plan{};
  sleeps_through_ = plan_.by_gates && !messages_.gate();
  if (by_levels_ && !plan_.by_gates && messages_.gate()) through_.expect();  // what was opened for the others
}

Halt Phase::go(uint8_t* recv, int64_t recv_bytes) {
  for (;;) switch (stage_) {
      case Stage::over:
        throw std::logic_error("a phase that has not begun cannot go on");
      case Stage::arrives:
        announce();
        stage_ = Stage::meets;
        break;
      case Stage::meets:
        if (!waits_for_->met()) return Halt::meets;
        settle();
        stage_ = Stage::takes;
        if (!sleeps_through_ && has_tasks()) return Halt::crosses;
        break;
      case Stage::takes:
        grown_place_ = messages_.take(which_, recv, recv_bytes, begins_.data(), receives_.data());
        grown_side_ = which_;
        if (grown_place_ >= 0) return Halt::grown;
        stage_ = sleeps_through_ ? Stage::takes_relayed : Stage::taken;
        if (!sleeps_through_ && (plan_.relayed || has_tasks())) return Halt::taken;
        break;
      case Stage::taken:
        stage_ = plan_.relayed ? Stage::meets_again : Stage::over;
        if (!plan_.relayed) return Halt::done;
        waits_for_ = &through_;
        if (through_.come(plan_.by_gates ? messages_.gates() : messages_.here())) through_.open();
        break;
      case Stage::meets_again:
        if (!through_.met()) return Halt::meets;
        stage_ = Stage::takes_relayed;
        break;
      case Stage::takes_relayed:
        grown_place_ = messages_.take_relayed(which_, recv, recv_bytes, begins_.data(), receives_.data());
        grown_side_ = relay_side;
        if (grown_place_ >= 0) return Halt::grown;
        stage_ = Stage::over;
        return Halt::done;
    }
}

}  // namespace hpcrec
