/* Stands between a program and the C library's renames: stops the whole process directly before one of them, once.

   Preloaded (LD_PRELOAD). It is the first rename of a path that fits the shell pattern in HPCREC_STOPS_BEFORE_RENAME_OF.
   The thread that renames sends itself the signal: when the process is continued, the system call is its next one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  static int stopped;
  const char *pattern = getenv("HPCREC_STOPS_BEFORE_RENAME_OF");
  if (pattern && !fnmatch(pattern, old, 0) && !__sync_lock_test_and_set(&stopped, 1)) raise(SIGSTOP);
  return syscall(SYS_renameat2, from, old, to, new, flags);
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
