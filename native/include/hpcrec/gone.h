// Memory of mapped files, of which a page may be gone: the file was cut off, or the medium gives it no more. The system
// says so by a signal that ends the process, SIGBUS. Here a thread that reads such memory goes on without it. Knows
// neither files nor pages.
#pragma once
#include <csetjmp>

namespace hpcrec {

// Has SIGBUS come to this module first, for as long as the process lives; what comes where nobody reads mapped memory
// goes to whom it went to before.
void watch_for_gone_memory();

namespace gone {
extern thread_local sigjmp_buf* landing;  // null: nothing mapped is being read
}

// Does `read`, which has nothing to tidy up. False: it was left in the middle, at memory that is gone.
template <typename Read> bool all_there(const Read& read) {
  sigjmp_buf here;
  if (sigsetjmp(here, 0)) {
    gone::landing = nullptr;
    return false;
  }
  gone::landing = &here;
  read();
  gone::landing = nullptr;
  return true;
}

}  // namespace hpcrec
