// Where the processes of one host meet: a barrier in memory that they share.
//
// Knows two words; not what processes meet for, nor how many there are. Who waits sleeps in the kernel (futex) and
// takes no core from those it waits for; where there is a core for each it looks for a while first, which is quicker.
// Each process counts the openings that it waits for itself, for it may come again before it has seen the last one.
#pragma once
#include <atomic>
#include <cstdint>

namespace hpcrec {

class Meeting {
 public:
  // words: two, shared by all and 0 before anybody comes: how many are there, and how often it was opened.
  Meeting(uint32_t* words, int64_t spin_ns);
  // This process is there and waits for the next opening. True: it is the last of so many, who is to open.
  bool come(uint32_t processes);
  // This process waits for the next opening, which others are there for.
  void expect();
  // Lets those go who wait.
  void open();
  // Whether what this process waits for has come.
  bool met() const;
  // Waits for that, or so long. True: it has come.
  bool wait(int64_t limit_ns);

 private:
  std::atomic<uint32_t>*there_, *opened_;
  uint32_t due_ = 0;  // openings, when what this process waits for has come
  int64_t spin_ns_;
  bool looked_ = false;  // for this one
};

}  // namespace hpcrec
