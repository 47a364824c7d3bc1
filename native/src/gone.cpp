// The handler of the signal.
#include "hpcrec/gone.h"

#include <csignal>
#include <mutex>

namespace hpcrec {

thread_local sigjmp_buf* gone::landing = nullptr;

namespace {
struct sigaction before;

void came(int number, siginfo_t* said, void*) {
  if (gone::landing) siglongjmp(*gone::landing, 1);
  sigaction(SIGBUS, &before, nullptr);         // the same access raises it again, for whoever had it before
  if (said->si_code <= 0) std::raise(number);  // it was sent, by no access
}
}  // namespace

void watch_for_gone_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours{};
    ours.sa_sigaction = came;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;  // not blocked, so nothing is to be put back where it is left
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
  });
}

}  // namespace hpcrec
