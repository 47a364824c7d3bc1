// Messages between the ranks of one host: copies out of memory that they share.
#include "hpcrec/host_messages.h"

#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "hpcrec/check.h"

namespace hpcrec {
namespace {
// Numbers that another process has written may be any: a sum that overflows is a wrong one, which is then refused.
int64_t sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
}  // namespace

int64_t places(const int64_t* bytes, int64_t n, int64_t unit, int64_t* at) {
  int64_t end = 0;
  for (int64_t i = 0; i < n; ++i) {
    at[i] = end;
    if (bytes[i] < 0 || bytes[i] % unit || __builtin_add_overflow(end, bytes[i], &end)) return -1;
  }
  return end;
}

int64_t clear_padding(uint8_t* room, int64_t room_bytes, const int64_t* bytes, int64_t n, int64_t unit) {
  int64_t all = 0, end = 0;
  for (int64_t i = 0; i < n; ++i)
    if ((bytes[i] && bytes[i] < unit) || __builtin_add_overflow(all, bytes[i], &all))
      throw std::invalid_argument("bytes: a message has less than a unit");
  if (all > room_bytes) return all;
  for (int64_t i = 0; i < n; ++i) {
    end += bytes[i];
    if (bytes[i]) std::memset(room + end - unit, 0, static_cast<size_t>(unit));
  }
  return all;
}

int64_t count(const int64_t* bytes, const int64_t* messages, int64_t across, const int64_t* to, int64_t n,
              const int64_t* crosses, int64_t ranks, int64_t rank, int64_t* counts) {
  require_below("ranks", to, n, ranks);
  int64_t all = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (to[i] == rank) continue;
    const int far = crosses[to[i]] ? 1 : 0;
    counts[far] = sum(counts[far], bytes[i]);
    if (!far || across < 0) counts[2 + far] = sum(counts[2 + far], messages ? messages[i] : bytes[i] > 0 ? 1 : 0);
    all = sum(all, bytes[i]);
  }
  if (across > 0) counts[3] = sum(counts[3], across);
  return all;
}

HostMessages::HostMessages(int64_t ranks, std::vector<int64_t> local, int64_t place)
    : ranks_(ranks), place_(place), local_(std::move(local)), sides_(3 * local_.size()) {
  const int64_t here = static_cast<int64_t>(local_.size());
  if (place < 0 || place >= here) throw std::invalid_argument("place: is not one of the ranks of this host");
  require_below("local", local_.data(), here, ranks);
}

void HostMessages::show(int64_t place, int which, const int64_t* numbers, int64_t n_numbers, const uint8_t* messages,
                        int64_t bytes) {
  if (place < 0 || place >= static_cast<int64_t>(local_.size()) || which < 0 || which > relay_side)
    throw std::invalid_argument("place, side: there is none of those numbers");
  if (n_numbers < (which == relay_side ? 1 : 3) * ranks_)
    throw std::invalid_argument("numbers: are fewer than there are of a side");
  sides_[static_cast<size_t>(place * 3 + which)] = {numbers, n_numbers, messages, bytes};
}

void HostMessages::check(int which, const int64_t* there, int64_t n) const {
  if (which < 0 || which >= relay_side) throw std::invalid_argument("side: is 0 or 1");
  require_below("there", there, n, ranks_);
}

int64_t HostMessages::number(int64_t place, int which, int64_t i) const {
  const Side& of = side(place, which);
  if (i >= of.n_numbers) throw std::invalid_argument("a side that has not been shown is looked at");
  return of.numbers[i];
}

// False: the source, which another process has made longer, has more than what is mapped of it.
bool HostMessages::copy(const Side& from, int64_t from_at, int64_t n, uint8_t* to, int64_t to_bytes,
                        int64_t to_at) const {
  if (n < 0 || from_at < 0 || to_at < 0 || to_at > to_bytes || n > to_bytes - to_at)
    throw std::invalid_argument("a message does not lie where it is said to");
  if (from_at > from.bytes || n > from.bytes - from_at) return false;
  std::memcpy(to + to_at, from.messages + from_at, static_cast<size_t>(n));
  return true;
}

void HostMessages::set_others(OtherHosts others) {
  const size_t n = others.gates.size(), m = others.there.size();
  const int64_t here = static_cast<int64_t>(local_.size());
  if (others.begins.size() != n + 1 || others.takers.size() != m || others.peers.size() != n)
    throw std::invalid_argument("others: are not as many everywhere");
  require_below("there", others.there.data(), static_cast<int64_t>(m), ranks_);
  require_below("gates", others.gates.data(), static_cast<int64_t>(n), here);
  require_below("takers", others.takers.data(), static_cast<int64_t>(m), here);
  if (others.begins.front() != 0 || others.begins.back() != static_cast<int64_t>(m))
    throw std::invalid_argument("begins: are not those of there");
  for (size_t host = 0; host < n; ++host)
    if (others.begins[host] >= others.begins[host + 1]) throw std::invalid_argument("begins: a host has no rank");
  others_ = std::move(others);
  const std::set<int64_t> gates(others_.gates.begin(), others_.gates.end());
  gates_ = static_cast<uint32_t>(gates.size()), gate_ = gates.count(place_) > 0;
  due_.assign(m, 0);
  coming_in_.assign(n, Way::nothing);
}

Way HostMessages::way(size_t host, int64_t bytes) const {
  if (bytes <= 0) return Way::nothing;
  const int64_t there = others_.begins[host + 1] - others_.begins[host];
  const int64_t each = bytes / (there * static_cast<int64_t>(local_.size()));  // numbers that both hosts have
  if (each < others_.peer_bytes) return Way::together;
  return others_.peers[host] && each < others_.alone_bytes ? Way::peers : Way::alone;
}

Plan HostMessages::plan(int which) {
  check(which, nullptr, 0);
  Plan found;
  bool by_gates = true;
  for (size_t host = 0; host < others_.gates.size(); ++host) {
    const int64_t first = others_.begins[host], end = others_.begins[host + 1];
    const int64_t number_of_host = static_cast<int64_t>(host);
    int64_t sent = 0, due = 0, own_sent = 0, own_due = 0;
    bool takes = false;
    for (int64_t m = first; m < end; ++m) {
      const int64_t rank = others_.there[static_cast<size_t>(m)];
      int64_t of_rank = 0;
      for (int64_t place = 0; place < static_cast<int64_t>(local_.size()); ++place) {
        sent = sum(sent, sends(place, which, rank));
        of_rank = sum(of_rank, receives(place, which, rank));
      }
      due_[static_cast<size_t>(m)] = of_rank;
      due = sum(due, of_rank);
      own_sent = sum(own_sent, sends(place_, which, rank));
      own_due = sum(own_due, receives(place_, which, rank));
      takes = takes || others_.takers[static_cast<size_t>(m)] == place_;
    }
    const bool gate = others_.gates[host] == place_;
    const Way out = way(host, sent), in = way(host, due);
    coming_in_[host] = in;
    for (const Way way : {out, in}) by_gates = by_gates && (way == Way::nothing || way == Way::together);
    found.relayed = found.relayed || in == Way::together || in == Way::peers;
    if (out == Way::together ? gate : out != Way::nothing && own_sent > 0)
      found.sends.push_back({number_of_host, out, out == Way::together ? sent : own_sent});
    if (in == Way::together ? gate : in == Way::peers ? takes : in == Way::alone && own_due > 0)
      found.receives.push_back({number_of_host, in, in == Way::together ? due : own_due});
  }
  found.by_gates = found.relayed && by_gates;
  return found;
}

int64_t HostMessages::due(int64_t m) const {
  if (m < 0 || m >= static_cast<int64_t>(due_.size())) throw std::invalid_argument("m: there is no such rank");
  return due_[static_cast<size_t>(m)];
}

int64_t HostMessages::pack(int which, int64_t place, const int64_t* there, int64_t n, uint8_t* out,
                           int64_t out_bytes) const {
  check(which, there, n);
  const int64_t here = static_cast<int64_t>(local_.size());
  if (place < -1 || place >= here) throw std::invalid_argument("place: there is none of that number");
  int64_t at = 0;
  for (int64_t from = place < 0 ? 0 : place; from < (place < 0 ? here : place + 1); ++from)
    for (int64_t i = 0; i < n;) {
      // Messages that lie behind each other are copied at once.
      const int64_t begin = begins(from, which, there[i]);
      int64_t bytes = sends(from, which, there[i]);
      for (++i; i < n && begins(from, which, there[i]) == sum(begin, bytes); ++i)
        bytes = sum(bytes, sends(from, which, there[i]));
      if (!bytes) continue;
      if (!copy(side(from, which), begin, bytes, out, out_bytes, at)) return from;
      at += bytes;
    }
  if (at != out_bytes) throw std::invalid_argument("out: is not as long as the messages");
  return -1;
}

int64_t HostMessages::take(int which, uint8_t* recv, int64_t recv_bytes, const int64_t* at,
                           const int64_t* bytes) const {
  const int64_t rank = local_[static_cast<size_t>(place_)], here = static_cast<int64_t>(local_.size());
  check(which, &rank, 1);
  for (int64_t from = 0; from < here; ++from) {
    const int64_t sender = local_[static_cast<size_t>(from)];
    if (!bytes[sender]) continue;
    const int64_t begin = begins(from, which, rank);
    if (!copy(side(from, which), begin, bytes[sender], recv, recv_bytes, at[sender])) return from;
  }
  return -1;
}

int64_t HostMessages::take_relayed(int which, uint8_t* recv, int64_t recv_bytes, const int64_t* at,
                                   const int64_t* bytes) const {
  check(which, nullptr, 0);
  for (size_t host = 0; host < others_.gates.size(); ++host) {
    const bool together = coming_in_[host] == Way::together;
    if (!together && coming_in_[host] != Way::peers) continue;
    const size_t first = static_cast<size_t>(others_.begins[host]), end = static_cast<size_t>(others_.begins[host + 1]);
    int64_t of_senders = 0;  // before this one, in a message of all
    for (size_t m = first; m < end; ++m) {
      const int64_t sender = others_.there[m], by = together ? others_.gates[host] : others_.takers[m];
      if (bytes[sender]) {
        int64_t before = 0;  // for ranks of this host before this one
        for (int64_t place = 0; place < place_; ++place) before = sum(before, receives(place, which, sender));
        const int64_t noted = number(by, relay_side, others_.there[together ? first : m]);
        const int64_t from = sum(sum(noted, before), together ? of_senders : 0);
        if (!copy(side(by, relay_side), from, bytes[sender], recv, recv_bytes, at[sender])) return by;
      }
      of_senders = sum(of_senders, due_[m]);
    }
  }
  return -1;
}

}  // namespace hpcrec
