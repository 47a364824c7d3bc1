/* Lets reads of files under $SLOW_READS_UNDER take $SLOW_READS_US microseconds longer, as a disk would that is far
   away.

   Preloaded (LD_PRELOAD). Knows nothing of what the files are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char* under;
static useconds_t longer_us;

__attribute__((constructor)) static void begin(void) {
  const char* us = getenv("SLOW_READS_US");
  under = getenv("SLOW_READS_UNDER");
  longer_us = us ? (useconds_t)atol(us) : 0;
}

static void wait_for(int file) {
  char name[64], path[4096];
  ssize_t n;
  if (!under || !longer_us) return;
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  n = readlink(name, path, sizeof path - 1);
  if (n <= 0) return;
  path[n] = 0;
  if (!strncmp(path, under, strlen(under))) usleep(longer_us);
}

#define REAL(name, result, ...)       \
  static result (*real)(__VA_ARGS__); \
  if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t read(int file, void* to, size_t n) {
  REAL("read", ssize_t, int, void*, size_t);
  wait_for(file);
  return real(file, to, n);
}

ssize_t pread(int file, void* to, size_t n, off_t at) {
  REAL("pread", ssize_t, int, void*, size_t, off_t);
  wait_for(file);
  return real(file, to, n, at);
}

ssize_t pread64(int file, void* to, size_t n, off64_t at) {
  REAL("pread64", ssize_t, int, void*, size_t, off64_t);
  wait_for(file);
  return real(file, to, n, at);
}

ssize_t preadv(int file, const struct iovec* to, int n, off_t at) {
  REAL("preadv", ssize_t, int, const struct iovec*, int, off_t);
  wait_for(file);
  return real(file, to, n, at);
}

ssize_t preadv64(int file, const struct iovec* to, int n, off64_t at) {
  REAL("preadv64", ssize_t, int, const struct iovec*, int, off64_t);
  wait_for(file);
  return real(file, to, n, at);
}
