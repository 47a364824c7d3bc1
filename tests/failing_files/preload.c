/* Stands between a program and the C library's calls on files under one folder: lets a chosen call fail, or notes all.

   Preloaded (LD_PRELOAD), so it sees Python, HDF5, shells and native code alike. What it is to do stands in a block of
   memory that a process shares with the children that it forks; tests/failing_files/library.py has the same block. Paths
   that are not under the folder go through untouched. Knows nothing of what the files are.

   A close or an fsync that fails takes with it what was written to the file since it was last synced: those bytes read
   as zeros afterwards, as where a file server drops them. Memory that maps a file is seen where it is synced. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, CLOSE, RENAME, UNLINK, MKDIR, CALLS };
enum { PATH_BYTES = 512, HITS = 64, FILES = 8192, RANGES = 128, NOTED_TRUNCATE = 100, NOTED_RMDIR = 101, NOTED_LINK = 102 };

struct control {
  int32_t call, n, error, on; /* the n-th of these calls fails by this error; on: all later ones too */
  int32_t counted, hits;      /* of these calls so far, and how many have failed */
  int32_t log, skip_sync;     /* descriptor that all changes are noted to, or -1; whether fsync only says that it did */
  int64_t calls[CALLS];       /* all that were seen */
  char under[PATH_BYTES];
  struct { int32_t call; char path[PATH_BYTES]; } hit[HITS];
};

static struct control *control;
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;
static __thread int32_t host; /* whom what this thread does is noted for */

struct file {
  char path[PATH_BYTES]; /* empty: not under the folder */
  int writable, append, ranges;
  int32_t host;
  dev_t device;
  ino_t inode;
  off_t range[RANGES][2]; /* written and not synced */
};
static struct file files[FILES];
static int above; /* all descriptors that are known are below */

#define REAL(name, result, ...) \
  static result (*real)(__VA_ARGS__); \
  if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

struct control *failing_control(void) { return control; }
void failing_host(int32_t number) { host = number; }

__attribute__((constructor)) static void begin(void) {
  control = (void *)syscall(SYS_mmap, NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0L);
  if (control == MAP_FAILED) abort();
  control->call = control->log = -1;
}

static int under(const char *path) {
  size_t n;
  if (!control || !control->under[0] || !path) return 0;
  n = strlen(control->under);
  return !strncmp(path, control->under, n) && (path[n] == '/' || path[n] == 0);
}

/* The path that a call at a folder's descriptor means, if that is known and under our folder. */
static const char *at(int folder, const char *path, char *out) {
  if (!path) return NULL;
  if (path[0] == '/') {
    return under(path) && strlen(path) < PATH_BYTES ? path : NULL;
  }
  if (folder >= 0 && folder < FILES && files[folder].path[0]) {
    if (snprintf(out, PATH_BYTES, "%s/%s", files[folder].path, path) < PATH_BYTES) return out;
  }
  return NULL;
}

static struct file *of(int fd) { return (unsigned)fd < FILES && files[fd].path[0] ? &files[fd] : NULL; }
static __attribute__((noinline)) void forget(int fd) {
  if ((unsigned)fd < FILES) files[fd].path[0] = 0;
}

/* Whether this call is the one that fails; then errno is set. */
static int fails(int call, const char *path) {
  int number;
  if (!path) return 0;
  __atomic_add_fetch(&control->calls[call], 1, __ATOMIC_RELAXED);
  if (control->call != call) return 0;
  number = __atomic_add_fetch(&control->counted, 1, __ATOMIC_SEQ_CST);
  if (number < control->n || (number > control->n && !control->on)) return 0;
  number = __atomic_fetch_add(&control->hits, 1, __ATOMIC_SEQ_CST);
  if (number < HITS) {
    control->hit[number].call = call;
    snprintf(control->hit[number].path, PATH_BYTES, "%s", path);
  }
  errno = control->error;
  return 1;
}

static void note(int call, int fd, int32_t whose, int64_t offset, const char *path, const char *other, const void *data,
                 size_t n_bytes) {
  struct {
    int32_t call, fd, host, path_bytes, other_bytes, zero;
    int64_t offset, n_bytes;
  } head = {call, fd, whose, path ? strlen(path) : 0, other ? strlen(other) : 0, 0, offset, n_bytes};
  struct iovec parts[4] = {{&head, sizeof head},
                           {(void *)path, head.path_bytes},
                           {(void *)other, head.other_bytes},
                           {(void *)data, data ? n_bytes : 0}};
  size_t whole = sizeof head + head.path_bytes + head.other_bytes + (data ? n_bytes : 0);
  if (syscall(SYS_writev, control->log, parts, 4) != (ssize_t)whole) abort();
}

static void lock(void) {
  if (control && control->log >= 0) pthread_mutex_lock(&noting);
}
static void unlock(void) {
  if (control && control->log >= 0) pthread_mutex_unlock(&noting);
}
static int noted(void) { return control && control->log >= 0; }

/* ---- descriptors ---- */

static void opened(int fd, const char *path, int flags) {
  struct stat found;
  struct file *file;
  if (fd < 0 || fd >= FILES) return;
  file = &files[fd];
  if (fd >= above) above = fd + 1;
  memset(file, 0, offsetof(struct file, range));
  snprintf(file->path, PATH_BYTES, "%s", path);
  file->writable = (flags & O_ACCMODE) != O_RDONLY;
  file->append = (flags & O_APPEND) != 0;
  file->host = host;
  if (!fstat(fd, &found)) {
    file->device = found.st_dev;
    file->inode = found.st_ino;
  }
  if (noted()) note(OPEN, fd, host, flags, path, NULL, NULL, 0);
}

static void wrote(int fd, struct file *file, const void *data, ssize_t n_bytes, off_t start) {
  if (n_bytes <= 0) return;
  if (noted()) note(WRITE, fd, file->host, start, NULL, NULL, data, n_bytes);
  if (file->ranges && file->range[file->ranges - 1][1] == start) {
    file->range[file->ranges - 1][1] = start + n_bytes;
  } else if (file->ranges < RANGES) {
    file->range[file->ranges][0] = start;
    file->range[file->ranges++][1] = start + n_bytes;
  }
}

/* What is known to be written and not synced is so no more: it is on the disk, or lost. */
static void settle(struct file *file, int lost) {
  static const char zeros[4096];
  struct stat found;
  for (int fd = 0; fd < above; fd++) {
    struct file *other = &files[fd];
    if (!other->path[0] || other->device != file->device || other->inode != file->inode || !other->ranges) continue;
    for (int i = 0; lost && i < other->ranges; i++) {
      if (syscall(SYS_fstat, fd, &found)) break;
      int direct = fcntl(fd, F_GETFL);
      fcntl(fd, F_SETFL, direct & ~(O_DIRECT | O_APPEND));
      for (off_t from = other->range[i][0]; from < other->range[i][1] && from < found.st_size;) {
        off_t stop = other->range[i][1] < found.st_size ? other->range[i][1] : found.st_size;
        size_t n = stop - from < (off_t)sizeof zeros ? stop - from : (off_t)sizeof zeros;
        if (syscall(SYS_pwrite64, fd, zeros, n, from) != (ssize_t)n) break;
        from += n;
      }
      fcntl(fd, F_SETFL, direct);
    }
    other->ranges = 0;
  }
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
  char room[PATH_BYTES];
  const char *whole = at(folder, path, room);
  int fd;
  if (whole && control->call == OPEN && (control->error == ENOSPC || control->error == EDQUOT) && !(flags & O_CREAT)) {
    __atomic_add_fetch(&control->calls[OPEN], 1, __ATOMIC_RELAXED); /* which takes no space, so it cannot fail by this */
  } else if (fails(OPEN, whole)) {
    return -1;
  }
  if (whole) lock();
  fd = syscall(SYS_openat, folder, path, flags | (sizeof(long) == 8 ? 0 : O_LARGEFILE), mode);
  if (whole && fd >= 0) opened(fd, whole, flags);
  else forget(fd);
  if (whole) {
    int kept = errno;
    unlock();
    errno = kept;
  }
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list more; \
    va_start(more, flags); \
    mode = va_arg(more, mode_t); \
    va_end(more); \
  }
int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_at(folder, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* The C library's streams and listings open files by calls of its own. */
static FILE *stream(const char *path, const char *mode) {
  REAL("fopen", FILE *, const char *, const char *);
  int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY, fd;
  FILE *found;
  if (!under(path)) return real(path, mode);
  flags |= mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT | O_APPEND : 0;
  if ((fd = open_at(AT_FDCWD, path, flags, 0666)) < 0) return NULL;
  if (!(found = fdopen(fd, mode))) close(fd);
  return found;
}
FILE *fopen(const char *path, const char *mode) { return stream(path, mode); }
FILE *fopen64(const char *path, const char *mode) { return stream(path, mode); }

size_t fread(void *to, size_t size, size_t n, FILE *from) {
  REAL("fread", size_t, void *, size_t, size_t, FILE *);
  struct file *file = of(fileno(from));
  return file && fails(READ, file->path) ? 0 : real(to, size, n, from);
}
int fclose(FILE *closed) {
  REAL("fclose", int, FILE *);
  forget(fileno(closed)); /* its own close is not seen */
  return real(closed);
}

DIR *opendir(const char *path) {
  REAL("opendir", DIR *, const char *);
  return fails(OPEN, under(path) ? path : NULL) ? NULL : real(path);
}

static int duplicated(int fd, int from) {
  if (fd >= 0 && fd < FILES) {
    if (fd >= above) above = fd + 1;
    if (from < FILES && from >= 0) files[fd] = files[from];
    else files[fd].path[0] = 0;
    if (files[fd].path[0]) {
      files[fd].writable = files[fd].ranges = 0; /* the first one answers for what was written */
      lock();
      if (noted()) note(OPEN, fd, host, 0, files[fd].path, NULL, NULL, 0);
      unlock();
    }
  }
  return fd;
}
int dup(int fd) { return duplicated(syscall(SYS_dup, fd), fd); }
int dup2(int fd, int to) { return fd == to ? (int)syscall(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : to : duplicated(syscall(SYS_dup3, fd, to, 0), fd); }

int fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  int result = syscall(SYS_fcntl, fd, command, argument);
  return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? duplicated(result, fd) : result;
}
int fcntl64(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  return fcntl(fd, command, argument);
}

int close(int fd) {
  struct file *file = of(fd);
  int failed = 0, result;
  if (!file) return syscall(SYS_close, fd);
  lock();
  /* a file that was only read has nothing left to say at its close */
  if (file->writable && fails(CLOSE, file->path)) {
    failed = errno;
    settle(file, 1);
  }
  if (noted()) note(CLOSE, fd, file->host, failed, NULL, NULL, NULL, 0);
  file->path[0] = 0;
  result = syscall(SYS_close, fd);
  unlock();
  if (failed) {
    errno = failed;
    return -1;
  }
  return result;
}

static int synced(int fd, int number) {
  struct file *file = of(fd);
  int result = 0, kept;
  if (!file) return syscall(number, fd);
  lock();
  if (fails(FSYNC, file->path)) {
    kept = errno;
    settle(file, 1);
    if (noted()) note(FSYNC, fd, host, kept, NULL, NULL, NULL, 0);
    result = -1;
    errno = kept;
  } else {
    if (!control->skip_sync) result = syscall(number, fd);
    kept = errno;
    if (!result) settle(file, 0);
    if (!result && noted()) note(FSYNC, fd, host, 0, NULL, NULL, NULL, 0);
  }
  unlock();
  errno = kept;
  return result;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

/* ---- bytes ---- */

#define READING(call) \
  struct file *file = of(fd); \
  return file && fails(READ, file->path) ? -1 : (call)
ssize_t read(int fd, void *to, size_t n) { READING(syscall(SYS_read, fd, to, n)); }
ssize_t __read_chk(int fd, void *to, size_t n, size_t room) { (void)room; READING(syscall(SYS_read, fd, to, n)); }
ssize_t pread(int fd, void *to, size_t n, off_t from) { READING(syscall(SYS_pread64, fd, to, n, from)); }
ssize_t pread64(int fd, void *to, size_t n, off_t from) { READING(syscall(SYS_pread64, fd, to, n, from)); }
ssize_t readv(int fd, const struct iovec *to, int n) { READING(syscall(SYS_readv, fd, to, n)); }
ssize_t preadv(int fd, const struct iovec *to, int n, off_t from) { READING(syscall(SYS_preadv, fd, to, n, from, 0)); }
ssize_t preadv64(int fd, const struct iovec *to, int n, off_t from) { READING(syscall(SYS_preadv, fd, to, n, from, 0)); }

static ssize_t write_at(int fd, const void *data, size_t n, off_t start, int here) {
  struct file *file = of(fd);
  struct stat found;
  ssize_t done;
  int kept;
  if (file && fails(WRITE, file->path)) return -1;
  if (!file) return here ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, start);
  lock();
  if (here) {
    start = file->append && !fstat(fd, &found) ? found.st_size : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    done = syscall(SYS_write, fd, data, n);
  } else {
    done = syscall(SYS_pwrite64, fd, data, n, start);
  }
  kept = errno;
  wrote(fd, file, data, done, start);
  unlock();
  errno = kept;
  return done;
}
ssize_t write(int fd, const void *data, size_t n) { return write_at(fd, data, n, 0, 1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return write_at(fd, data, n, at, 0); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) { return write_at(fd, data, n, at, 0); }

/* One after the other: all of it, or up to the first that is cut short. */
static ssize_t write_parts(int fd, const struct iovec *parts, int n, off_t start, int here) {
  ssize_t whole = 0;
  for (int i = 0; i < n; i++) {
    ssize_t done = write_at(fd, parts[i].iov_base, parts[i].iov_len, start + whole, here);
    if (done < 0) return whole ? whole : -1;
    whole += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return whole;
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
  return of(fd) ? write_parts(fd, parts, n, 0, 1) : syscall(SYS_writev, fd, parts, n);
}
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) {
  return of(fd) ? write_parts(fd, parts, n, at, 0) : syscall(SYS_pwritev, fd, parts, n, at, 0);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off_t at) { return pwritev(fd, parts, n, at); }
ssize_t preadv64v2(int fd, const struct iovec *to, int n, off_t from, int flags) { READING(syscall(SYS_preadv2, fd, to, n, from, 0, flags)); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off_t at, int flags) {
  return of(fd) ? pwritev(fd, parts, n, at) : syscall(SYS_pwritev2, fd, parts, n, at, 0, flags);
}

static int truncated(int fd, off_t length) {
  struct file *file = of(fd);
  int result, kept;
  if (file && fails(WRITE, file->path)) return -1;
  if (!file) return syscall(SYS_ftruncate, fd, length);
  lock();
  result = syscall(SYS_ftruncate, fd, length);
  kept = errno;
  if (!result && noted()) note(NOTED_TRUNCATE, fd, file->host, length, NULL, NULL, NULL, 0);
  unlock();
  errno = kept;
  return result;
}
int ftruncate(int fd, off_t length) { return truncated(fd, length); }
int ftruncate64(int fd, off_t length) { return truncated(fd, length); }

/* Shared memory over a file: what is in it when it is synced is noted as one write. */
enum { MAPS = 64, MAP_FD = 100000 };
static struct { char *start, path[PATH_BYTES]; size_t n_bytes; } maps[MAPS];

void *mmap64(void *where, size_t n, int protection, int flags, int fd, off_t from) {
  struct file *file = of(fd);
  void *start = (void *)syscall(SYS_mmap, where, n, protection, flags, fd, from);
  if (!file || start == MAP_FAILED || !(flags & MAP_SHARED) || !(protection & PROT_WRITE) || from) return start;
  lock();
  for (int i = 0; i < MAPS; i++) {
    if (maps[i].start && maps[i].start != start) continue;
    maps[i].start = start;
    maps[i].n_bytes = n;
    memcpy(maps[i].path, file->path, PATH_BYTES);
    if (noted()) note(OPEN, MAP_FD + i, host, 0, maps[i].path, NULL, NULL, 0);
    break;
  }
  unlock();
  return start;
}
void *mmap(void *where, size_t n, int protection, int flags, int fd, off_t from) {
  return mmap64(where, n, protection, flags, fd, from);
}
int msync(void *start, size_t n, int flags) {
  for (int i = 0; i < MAPS; i++) {
    if (!maps[i].start || maps[i].start != start) continue;
    if (fails(FSYNC, maps[i].path)) return -1;
    lock();
    if (noted()) {
      note(WRITE, MAP_FD + i, host, 0, NULL, NULL, start, maps[i].n_bytes);
      note(FSYNC, MAP_FD + i, host, 0, NULL, NULL, NULL, 0);
    }
    unlock();
    return control->skip_sync ? 0 : syscall(SYS_msync, start, n, flags);
  }
  return syscall(SYS_msync, start, n, flags);
}
int munmap(void *start, size_t n) {
  for (int i = 0; i < MAPS; i++) {
    if (maps[i].start && maps[i].start == start) maps[i].start = NULL;
  }
  return syscall(SYS_munmap, start, n);
}

/* Copies inside the kernel are not offered: then programs copy by reads and writes, which are seen. */
ssize_t sendfile(int to, int from, off_t *at, size_t n) {
  if (of(to) || of(from)) return errno = ENOTSOCK, -1;
  return syscall(SYS_sendfile, to, from, at, n);
}
ssize_t sendfile64(int to, int from, off_t *at, size_t n) { return sendfile(to, from, at, n); }
ssize_t copy_file_range(int from, off_t *at, int to, off_t *to_at, size_t n, unsigned flags) {
  if (of(to) || of(from)) return errno = EXDEV, -1;
  return syscall(SYS_copy_file_range, from, at, to, to_at, n, flags);
}

/* ---- names ---- */

static int named(int call, int noted_as, const char *path, const char *other, int (*work)(void *), void *with) {
  int result, kept;
  if (fails(call, path)) return -1;
  if (path) lock();
  result = work(with);
  kept = errno;
  if (path && !result && noted()) note(noted_as, -1, host, 0, path, other, NULL, 0);
  if (path) unlock();
  errno = kept;
  return result;
}

struct names {
  int from, to;
  const char *old, *new;
  unsigned flags;
};
static int do_rename(void *with) {
  struct names *n = with;
  return syscall(SYS_renameat2, n->from, n->old, n->to, n->new, n->flags);
}
static int do_unlink(void *with) {
  struct names *n = with;
  return syscall(SYS_unlinkat, n->from, n->old, n->flags);
}
static int do_mkdir(void *with) {
  struct names *n = with;
  return syscall(SYS_mkdirat, n->from, n->old, n->flags);
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
  char rooms[2][PATH_BYTES];
  struct names names = {from, to, old, new, flags};
  const char *target = at(to, new, rooms[1]);
  return named(RENAME, RENAME, at(from, old, rooms[0]), target, do_rename, &names);
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int unlinkat(int folder, const char *path, int flags) {
  char room[PATH_BYTES];
  struct names names = {folder, 0, path, NULL, flags};
  return named(UNLINK, flags & AT_REMOVEDIR ? NOTED_RMDIR : UNLINK, at(folder, path, room), NULL, do_unlink, &names);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
/* Another name for a file: noted, and never told to fail. */
int linkat(int from, const char *old, int to, const char *new, int flags) {
  char rooms[2][PATH_BYTES];
  const char *path = at(from, old, rooms[0]), *other = at(to, new, rooms[1]);
  int result, kept;
  if (path) lock();
  result = syscall(SYS_linkat, from, old, to, new, flags);
  kept = errno;
  if (path && other && !result && noted()) note(NOTED_LINK, -1, host, 0, path, other, NULL, 0);
  if (path) unlock();
  errno = kept;
  return result;
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }
int mkdirat(int folder, const char *path, mode_t mode) {
  char room[PATH_BYTES];
  struct names names = {folder, 0, path, NULL, mode};
  return named(MKDIR, MKDIR, at(folder, path, room), NULL, do_mkdir, &names);
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* What a test says between the calls. */
void failing_mark(const char *text) {
  lock();
  if (noted()) note(-1, -1, host, 0, text, NULL, NULL, 0);
  unlock();
}
