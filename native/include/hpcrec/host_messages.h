// Messages between the ranks of one host, in memory that they share, and what crosses to other hosts for all of them.
//
// A rank has two sides, used in turn, with its messages to all ranks and numbers about them: where each begins, how
// long it is, and how long what comes to it will be. And a third, the relay, with what it has received for ranks of its
// host and where that begins. Knows ranks, places and bytes, not what they mean; who may read when is the caller's to
// see to (phase.h). Other processes write what is read here: nothing is read outside what was shown.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcrec {

constexpr int relay_side = 2;

// Where each of n consecutive messages begins; returns where the last ends, or -1 where one is below 0, no whole number
// of units, or the end is beyond what an integer holds.
int64_t places(const int64_t* bytes, int64_t n, int64_t unit, int64_t* at);
// Zeros where the padding of such messages can be: the last unit of each. Returns where the last ends; beyond the room
// nothing has been cleared. Throws where one is not empty and has less than a unit.
int64_t clear_padding(uint8_t* room, int64_t room_bytes, const int64_t* bytes, int64_t n, int64_t unit);
// Adds bytes and messages to ranks to counts: bytes to this host and to others, messages likewise. Without messages it
// is one to each that bytes go to; across, if it is not below 0, is how many there are to all of other hosts. What a
// rank has for itself is not counted. Returns the bytes that were.
int64_t count(const int64_t* bytes, const int64_t* messages, int64_t across, const int64_t* to, int64_t n,
              const int64_t* crosses, int64_t ranks, int64_t rank, int64_t* counts);

// How what one host has for another crosses: no byte, one message, one of each rank, one of each rank to each.
enum class Way : int64_t { nothing, together, peers, alone };

// The other hosts, one after the other.
struct OtherHosts {
  std::vector<int64_t> there;       // their ranks
  std::vector<int64_t> begins;      // [n + 1] of each in these
  std::vector<int64_t> gates;       // of each, the place of the rank of this host that sends to it and receives from it
  std::vector<int64_t> takers;      // of each of their ranks, the place of who receives from it where each sends to one
  std::vector<bool> peers;          // of each, whether each rank may send to one there
  int64_t peer_bytes, alone_bytes;  // from rank to rank, in the mean: from here on each sends to one, and to each
};

// What a rank has to do with another host.
struct Task {
  int64_t host;
  Way way;
  int64_t bytes;  // that it sends there, for all of this host where they go together; or that come so
};

struct Plan {
  std::vector<Task> sends, receives;
  bool relayed = false;   // whether anything comes that this host's ranks hand over
  bool by_gates = false;  // and all that crosses, to this host and from it, goes by gates
};

class HostMessages {
 public:
  // local: the ranks of this host, in order, of so many; place: this one's among them.
  HostMessages(int64_t ranks, std::vector<int64_t> local, int64_t place);

  int64_t ranks() const { return ranks_; }
  // Ranks of this host, how many of them are gates, and whether this one is.
  uint32_t here() const { return static_cast<uint32_t>(local_.size()); }
  uint32_t gates() const { return gates_; }
  bool gate() const { return gate_; }
  void set_others(OtherHosts others);
  // Shows what is mapped of a side of the rank at a place. Has to stay until another is shown.
  void show(int64_t place, int which, const int64_t* numbers, int64_t n_numbers, const uint8_t* messages,
            int64_t bytes);

  // What this rank sends and receives, for itself and for its host, of the messages of a side.
  Plan plan(int which);
  // Bytes that come from the rank of that number among those of other hosts, for all of this one; of the last plan.
  int64_t due(int64_t m) const;
  // Each of the following copies, and returns -1; or the place of a rank of whose side more is needed than was shown.

  // What the rank at a place, or (-1) each rank of this host, sends to some ranks, by sender and then by receiver.
  int64_t pack(int which, int64_t place, const int64_t* there, int64_t n, uint8_t* out, int64_t out_bytes) const;
  // What the ranks of this host send to this one, to where each begins in recv.
  int64_t take(int which, uint8_t* recv, int64_t recv_bytes, const int64_t* at, const int64_t* bytes) const;
  // What has come for this rank by relays, of the last plan.
  int64_t take_relayed(int which, uint8_t* recv, int64_t recv_bytes, const int64_t* at, const int64_t* bytes) const;

 private:
  struct Side {
    const int64_t* numbers = nullptr;
    int64_t n_numbers = 0;
    const uint8_t* messages = nullptr;
    int64_t bytes = 0;
  };

  const Side& side(int64_t place, int which) const { return sides_[static_cast<size_t>(place * 3 + which)]; }
  int64_t number(int64_t place, int which, int64_t i) const;
  int64_t begins(int64_t place, int which, int64_t rank) const { return number(place, which, rank); }
  int64_t sends(int64_t place, int which, int64_t rank) const { return number(place, which, ranks_ + rank); }
  int64_t receives(int64_t place, int which, int64_t rank) const { return number(place, which, 2 * ranks_ + rank); }
  bool copy(const Side& from, int64_t from_at, int64_t n, uint8_t* to, int64_t to_bytes, int64_t to_at) const;
  void check(int which, const int64_t* there, int64_t n) const;
  Way way(size_t host, int64_t bytes) const;

  int64_t ranks_, place_;
  uint32_t gates_ = 0;
  bool gate_ = false;
  std::vector<int64_t> local_;
  std::vector<Side> sides_;
  OtherHosts others_{};
  std::vector<int64_t> due_;    // of the last plan: bytes of each of their ranks for this host
  std::vector<Way> coming_in_;  // and of each host, how they come
};

}  // namespace hpcrec
