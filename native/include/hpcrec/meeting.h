// Where the processes of one host meet: a barrier in memory that they share.
//
// Knows two words and how many processes there are; not what they meet for. Who waits sleeps in the kernel (futex) and
// takes no core from those it waits for; where there is a core for each it looks for a while first, which is quicker.
#pragma once
#include <atomic>
#include <cstdint>

namespace hpcrec {

class Meeting {
 public:
  // words: two, shared by all and 0 before anybody arrives: how many are there, and how often all were.
  Meeting(uint32_t* words, uint32_t processes, int64_t spin_ns);
  // This process is there. True: so are all others. False: it has to wait.
  bool arrive();
  // Waits until all are there, or so long. True: they are.
  bool wait(int64_t limit_ns);

 private:
  bool met() const { return times_->load(std::memory_order_acquire) != before_; }

  std::atomic<uint32_t>*there_, *times_;
  uint32_t processes_, before_ = 0;
  int64_t spin_ns_;
  bool looked_ = false;  // in this meeting
};

}  // namespace hpcrec
