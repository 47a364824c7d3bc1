// Reading requests: once for the sizes, which refuses what is damaged, and once into arrays of these sizes. Either
// reads the lists of a message into memory that all messages share; the first skips ids by their widths.
#include <cstring>
#include <stdexcept>
#include <string>

#include "hpcrec/packed.h"
#include "hpcrec/requests.h"
#include "hpcrec/requests_format.h"

namespace hpcrec {
namespace {
using requests_format::Coding;
using requests_format::Numbers;

bool is_short(uint64_t n) {
  return n < static_cast<uint64_t>(packed_block);
}

// Numbers out of bits, byte by byte as they are needed: none behind the last that has a bit.
class Bits {
 public:
  explicit Bits(const uint8_t* at) : at_(at) {}
  uint64_t take(int64_t bits) {
    if (bits > most_packed_bits) {  // a whole word
      const uint64_t low = take(32);
      return low | take(32) << 32;
    }
    for (; filled_ < bits; filled_ += 8) held_ |= static_cast<uint64_t>(*at_++) << filled_;
    const uint64_t number = held_ & ((uint64_t{1} << bits) - 1);
    held_ >>= bits;
    filled_ -= bits;
    return number;
  }

 private:
  const uint8_t* at_;
  uint64_t held_ = 0;
  int64_t filled_ = 0;
};

// Reads the messages of senders, one after the other.
class Reader {
 public:
  // `to` is null where sizes alone are wanted.
  Reader(const RequestsReceived& from, const RequestsRead* to) : from_(from), to_(to) {}

  RequestsSize read_all() {
    for (sender_ = 0; sender_ < from_.n_senders; ++sender_) {
      const int64_t at = from_.at[sender_], bytes = from_.bytes[sender_];
      if (bytes < 0 || at < 0 || bytes > from_.size || at > from_.size - bytes)
        refuse("its message is not inside the " + std::to_string(from_.size) + " bytes");
      if (bytes == 0) continue;
      at_ = from_.message + at;
      end_ = at_ + bytes;
      limit_ = packed_block * static_cast<uint64_t>(bytes);
      read_cells();
      read_lengths();
      read_ids();
      read_weights();
      if (end_ - at_ >= requests_format::padding)
        refuse(std::to_string(end_ - at_) + " bytes are left behind its message; allowed are fewer than " +
               std::to_string(requests_format::padding));
      done_.cells += n_;
    }
    return done_;
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw std::invalid_argument("sender " + std::to_string(sender_) + ": " + found);
  }
  void require(bool good, const char* what) const {
    if (!good) refuse(std::string(what) + " are damaged");
  }
  // Outputs are as large as the first reading said. A message that has changed since is not to be written past them.
  void require_room(int64_t n, int64_t done, int64_t room) const {
    if (to_ && n > room - done) refuse("its message changed as it was read");
  }

  template <class Put> void packed(int64_t n, const char* what, Put&& put) {
    const uint8_t* next = read_packed(at_, end_, n, put);
    require(next != nullptr, what);
    at_ = next;
  }
  void list(Numbers& numbers, int64_t n, const char* what) {
    require(n <= static_cast<int64_t>(limit_), what);
    numbers.resize(n);
    packed(n, what, [&](int64_t i, uint64_t number) { numbers[i] = static_cast<int64_t>(number); });
  }

  void read_cells() {
    const char* const what = "its cells";
    n_ = 0;
    int64_t place = 0;
    for (uint8_t byte = 128; byte >= 128; ++place) {
      require(place < requests_format::most_varint_bytes && at_ < end_, what);
      byte = *at_++;
      n_ |= static_cast<int64_t>(byte & 127) << (7 * place);
    }
    require(n_ >= 1 && n_ <= from_.n_entries, what);
    list(entries_, n_, what);  // what lies between them
    list(bags_, n_, what);
    list(how_, n_, what);
    ids_.resize(n_);
    uint64_t entry = 0;
    const uint64_t most = 2 * static_cast<uint64_t>(Coding::table) + 1;
    int64_t n_bags = 0;
    for (int64_t i = 0; i < n_; ++i, ++entry) {
      const auto between = static_cast<uint64_t>(entries_[i]), bags = static_cast<uint64_t>(bags_[i]);
      const auto n_entries = static_cast<uint64_t>(from_.n_entries);
      require(entry < n_entries && between < n_entries - entry, what);
      require(bags < limit_ && static_cast<uint64_t>(how_[i]) <= most, what);
      entries_[i] = static_cast<int64_t>(entry += between);
      n_bags += ++bags_[i];
    }
    require_room(n_, done_.cells, to_ ? to_->room.cells : 0);
    require_room(n_bags, done_.bags, to_ ? to_->room.bags : 0);
    first_bag_ = done_.bags;
    done_.bags += n_bags;
  }

  bool lengths_follow(int64_t i) const { return how_[i] & requests_format::lengths_follow; }
  Coding coding(int64_t i) const { return static_cast<Coding>(how_[i] / requests_format::coding_unit); }

  // The widths of short runs, and their bits; of the i-th of `short_` are so many numbers.
  template <class Size> Bits begin_runs(const char* what, Size&& size_of_run) {
    const auto n = static_cast<int64_t>(short_.size());
    list(widths_, n, what);
    int64_t bits = 0;
    for (int64_t i = 0; i < n; ++i) {
      require(is_packed_width(widths_[i]), what);
      bits += widths_[i] * size_of_run(short_[i]);
    }
    const Bits found(at_);
    require((bits + 7) / 8 <= end_ - at_, what);
    at_ += (bits + 7) / 8;
    return found;
  }

  void read_lengths() {
    const char* const what = "its lengths";
    short_.clear();
    for (int64_t i = 0; i < n_; ++i)
      if (lengths_follow(i) && is_short(bags_[i])) short_.push_back(i);
    Bits bits = begin_runs(what, [&](int64_t i) { return bags_[i]; });
    // Lengths are first where the offset behind their bag will be: where a long run's are is not known before.
    int64_t* to = to_ ? to_->offsets + 1 + first_bag_ : nullptr;
    const int64_t* width = widths_.data();
    bool fits = true;
    uint64_t total = 0;
    const auto add = [&](uint64_t length) {
      fits &= length <= limit_ - total;
      total += fits ? length : 0;
      return static_cast<int64_t>(length);
    };
    for (int64_t i = 0; i < n_; ++i) {
      total = 0;
      const int64_t n = bags_[i];
      if (!lengths_follow(i)) {
        total = n;
        if (to) std::fill(to, to + n, 1);
      } else if (is_short(n)) {
        for (int64_t v = 0; v < n; ++v) {
          const int64_t length = add(bits.take(*width));
          if (to) to[v] = length;
        }
        ++width;
      }
      ids_[i] = static_cast<int64_t>(total);
      if (to) to += n;
    }
    to = to_ ? to_->offsets + 1 + first_bag_ : nullptr;
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t n = bags_[i];
      if (lengths_follow(i) && !is_short(n)) {
        total = 0;
        packed(n, what, [&](int64_t v, uint64_t length) {
          add(length);
          if (to) to[v] = static_cast<int64_t>(length);
        });
        ids_[i] = static_cast<int64_t>(total);
      }
      if (to) to += n;
    }
    require(fits, what);
  }

  void read_ids() {
    const char* const what = "its ids";
    int64_t n_tables = 0, n_ids = 0;
    short_.clear();
    for (int64_t i = 0; i < n_; ++i) {
      n_tables += coding(i) == Coding::table;
      n_ids += ids_[i];
      if (ids_[i] > 0 && is_short(ids_[i])) short_.push_back(i);
    }
    list(distinct_, n_tables, what);
    int64_t table = 0;
    for (int64_t i = 0; i < n_; ++i) {
      if (coding(i) != Coding::table) continue;
      require(!is_short(ids_[i]) && distinct_[table] >= 1 && distinct_[table] <= ids_[i], what);
      ++table;
    }
    require_room(n_ids, done_.ids, to_ ? to_->room.ids : 0);
    Bits bits = begin_runs(what, [&](int64_t i) { return ids_[i]; });
    if (to_) read_short_ids(bits, to_->ids + done_.ids);
    int64_t* to = to_ ? to_->ids + done_.ids : nullptr;
    table = 0;
    for (int64_t i = 0; i < n_; ++i) {
      if (!is_short(ids_[i])) {
        if (coding(i) == Coding::table) read_table(ids_[i], distinct_[table++], to);
        else read_long_ids(ids_[i], coding(i) == Coding::rising, to);
      }
      if (to) to += ids_[i];
    }
    done_.ids += n_ids;
  }

  void read_short_ids(Bits bits, int64_t* to) {
    const int64_t* width = widths_.data();
    RequestCell* cell = to_->cells + done_.cells;
    for (int64_t i = 0; i < n_; ++i) {
      const int64_t n = ids_[i];
      *cell++ = {sender_, entries_[i], n, bags_[i]};
      if (n > 0 && is_short(n)) {
        const uint64_t rising = coding(i) == Coding::rising;
        uint64_t base = 0;  // of packed ids
        for (int64_t k = 0; k < n; ++k) {
          const uint64_t number = base + bits.take(*width);
          to[k] = static_cast<int64_t>(number);
          base = rising ? number + 1 : 0;
        }
        ++width;
      }
      to += n;
    }
  }

  // To null: skips them.
  void read_long_ids(int64_t n, bool rising, int64_t* to) {
    const char* const what = "its ids";
    if (!to) {
      at_ = skip_packed(at_, end_, n);
      require(at_ != nullptr, what);
    } else if (rising) {
      uint64_t next = 0;
      packed(n, what, [&](int64_t k, uint64_t number) {
        to[k] = static_cast<int64_t>(next += number);
        ++next;
      });
    } else {
      packed(n, what, [=](int64_t k, uint64_t number) { to[k] = static_cast<int64_t>(number); });
    }
  }

  void read_table(int64_t n, int64_t n_distinct, int64_t* to) {
    if (to) table_.resize(n_distinct);
    read_long_ids(n_distinct, true, to ? table_.data() : nullptr);
    bool fits = true;
    packed(n, "its ids", [&](int64_t k, uint64_t place) {
      const bool fit = place < static_cast<uint64_t>(n_distinct);
      fits &= fit;
      if (to) to[k] = table_[fit ? place : 0];
    });
    require(fits, "its ids");
  }

  void read_weights() {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n_; ++i) bytes += from_.weighted[entries_[i]] ? from_.item * ids_[i] : 0;
    require(bytes <= end_ - at_, "its weights");
    require_room(bytes, done_.weights, to_ ? to_->room.weights : 0);
    if (to_ && bytes) std::memcpy(to_->weights + done_.weights, at_, bytes);
    at_ += bytes;
    done_.weights += bytes;
  }

  const RequestsReceived& from_;
  const RequestsRead* to_;
  RequestsSize done_{0, 0, 0, 0};
  // Of the sender that is read: its number, cells and first bag, and what is left of its message.
  int64_t sender_ = 0, n_ = 0, first_bag_ = 0;
  const uint8_t *at_ = nullptr, *end_ = nullptr;
  uint64_t limit_ = 0;
  Numbers entries_, bags_, how_, ids_, short_, widths_, distinct_, table_;
};

}  // namespace

RequestsSize measure_requests(const RequestsReceived& from) {
  return Reader(from, nullptr).read_all();
}

void read_requests(const RequestsReceived& from, const RequestsRead& to) {
  const RequestsSize found = Reader(from, &to).read_all();
  if (found.ids != to.room.ids || found.bags != to.room.bags || found.cells != to.room.cells ||
      found.weights != to.room.weights)
    throw std::invalid_argument("messages changed as they were read");
  to.offsets[0] = 0;
  for (int64_t v = 0; v < found.bags; ++v) to.offsets[v + 1] += to.offsets[v];
}

}  // namespace hpcrec
