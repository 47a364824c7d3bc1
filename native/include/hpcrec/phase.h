// One phase of messages between the ranks of a host, as one rank goes through it: it says where its messages lie, meets
// the others, takes what they have for it, and where something comes for ranks of the host from elsewhere it meets them
// once more and takes that. Where all that crosses to and from other hosts goes by gates, who is none sleeps through
// both meetings at once. Goes as far as it can without waiting; what it halts for is the caller's to see to. Knows
// ranks and bytes; not MPI, and not who is late.
#pragma once
#include <cstdint>
#include <vector>

#include "hpcrec/host_messages.h"
#include "hpcrec/meeting.h"

namespace hpcrec {

// It is over; it waits for ranks of the host (Meeting::wait); its own messages to and from other hosts, of the plan,
// may begin; what ranks of the host have sent was taken, and those messages have to be here before it goes on; a rank
// has made its side longer, which has to be shown before it goes on.
enum class Halt : int64_t { done, meets, crosses, taken, grown };

class Phase {
 public:
  // What the ranks of a host share of their phases: 0 before anybody begins one.
  static constexpr int64_t words = 4;
  // Messages have to stay.
  Phase(HostMessages& messages, uint32_t* words, int64_t spin_ns);
  Phase(const Phase&) = delete;  // it points to its own meetings
  Phase& operator=(const Phase&) = delete;

  // This rank waits for all of its host, between phases. True: all are there.
  bool arrive();
  // Waits for what arrive or go has halted for, or so long. True: it has come.
  bool wait(int64_t limit_ns) { return waits_for_->wait(limit_ns); }
  // Begins one: of a side, whose numbers are written here. Returns where the last of consecutive messages ends, sent
  // and received; below 0, and then nothing has begun, where one has no whole units.
  struct Ends {
    int64_t sent, received;
  };
  Ends begin(int which, int64_t* numbers, const int64_t* sends, const int64_t* receives, int64_t unit, bool by_levels);
  Halt go(uint8_t* recv, int64_t recv_bytes);

  const Plan& plan() const { return plan_; }
  // Whether all ranks of the host have said where their messages lie.
  bool all_are_there() const { return first_.met(); }
  // The place and the side of whose messages more has to be shown.
  int64_t grown_place() const { return grown_place_; }
  int grown_side() const { return grown_side_; }

 private:
  enum class Stage { over, arrives, meets, takes, taken, meets_again, takes_relayed };

  void announce();
  void settle();
  bool has_tasks() const { return !plan_.sends.empty() || !plan_.receives.empty(); }

  HostMessages& messages_;
  Meeting first_, through_;  // where all have said where their messages lie; where all that comes to this host is there
  Meeting* waits_for_ = &first_;
  Stage stage_ = Stage::over;
  int which_ = 0, grown_side_ = 0;
  bool by_levels_ = false, planned_ = false, sleeps_through_ = false;
  std::vector<int64_t> begins_, receives_;  // of what comes
  Plan plan_;
  int64_t grown_place_ = -1;
};

}  // namespace hpcrec
