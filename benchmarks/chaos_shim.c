/* Loaded before libc by benchmarks/chaos_disk.py: a disk that loses what was not synced, is slow or full, and a clock
 * that jumps. Only files below CHAOS_ROOT are touched; without that variable every call passes through.
 *
 * CHAOS_POWER   folder, on the same disk: a log of what changed (`log`), what each file held when it was last synced
 *               (`snap.<inode>`), and links to what renames and removals took away (`grave.<n>.<pid>`)
 * CHAOS_BYTES   file whose first eight bytes count what may still be written; then every write fails with ENOSPC
 * CHAOS_SLOW_US longest delay of a write, rename or sync
 * CHAOS_JUMP_S, CHAOS_JUMP_AFTER_MS   the wall clock moves by so much, so long after the start
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define MAX_FD 65536

static char root[PATH_MAX], power[PATH_MAX];
static size_t root_length;
static long slow_us, jump_s, jump_after_ms;
static int64_t *bytes_left;
static struct timespec started;
static time_t jumped_at;
static unsigned char below_root[MAX_FD];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long graves;

static long number(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

__attribute__((constructor)) static void configure(void) {
  const char *text = getenv("CHAOS_ROOT");
  snprintf(root, sizeof root, "%s", text ? text : "");
  root_length = strlen(root);
  text = getenv("CHAOS_POWER");
  snprintf(power, sizeof power, "%s", text ? text : "");
  slow_us = number("CHAOS_SLOW_US");
  jump_s = number("CHAOS_JUMP_S");
  jump_after_ms = number("CHAOS_JUMP_AFTER_MS");
  bytes_left = NULL;
  text = getenv("CHAOS_BYTES");
  if (text) {
    int fd = open(text, O_RDWR);
    if (fd >= 0) {
      void *page = mmap(NULL, sizeof *bytes_left, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      if (page != MAP_FAILED) bytes_left = page;
      close(fd);
    }
  }
  REAL(clock_gettime);
  struct timespec now;
  real(CLOCK_REALTIME, &now);
  jumped_at = now.tv_sec + jump_after_ms / 1000;
  real(CLOCK_MONOTONIC, &started);
}

static int is_below(const char *path) {
  return root_length && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || !path[root_length]);
}

/* The absolute path of `path` seen from `dirfd`; 1 if it lies below the root. */
static int resolve(int dirfd, const char *path, char *out) {
  if (!root_length || !path) return 0;
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
    return is_below(out);
  }
  char link[64];
  if (dirfd == AT_FDCWD) {
    if (!getcwd(out, PATH_MAX)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    if (length < 0) return 0;
    out[length] = 0;
  }
  size_t used = strlen(out);
  snprintf(out + used, PATH_MAX - used, "/%s", path);
  return is_below(out);
}

/* A write waits up to CHAOS_SLOW_US; what goes to the medium itself, twenty times as long. */
static void delay(int times) {
  if (slow_us) usleep(random() % (times * slow_us));
}

/* How much of a write finds room: like a real disk, the last one is cut short and the next one fails. */
static ssize_t room(int fd, size_t count) {
  if (!bytes_left || fd < 0 || fd >= MAX_FD || !below_root[fd]) return (ssize_t)count;
  int64_t before = __atomic_fetch_sub(bytes_left, (int64_t)count, __ATOMIC_SEQ_CST);
  if (before >= (int64_t)count) return (ssize_t)count;
  __atomic_store_n(bytes_left, 0, __ATOMIC_SEQ_CST);
  if (before > 0) return before;
  errno = ENOSPC;
  return -1;
}

static void note(const char *format, ...) {
  if (!power[0]) return;
  char name[PATH_MAX + 8], line[4 * PATH_MAX];
  int saved = errno;
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  snprintf(name, sizeof name, "%s/log", power);
  REAL(openat);
  int fd = real(AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) {
    REAL(write);
    if (real(fd, line, length) != length) abort();
    close(fd);
  }
  errno = saved;
}

/* Keep what `path` names alive under a name of its own; the name, or "-" if there is nothing. */
static void bury(const char *path, char *name) {
  snprintf(name, 64, "-");
  if (!power[0]) return;
  char target[PATH_MAX + 80];
  long grave = __atomic_add_fetch(&graves, 1, __ATOMIC_SEQ_CST);
  snprintf(target, sizeof target, "%s/grave.%ld.%d", power, grave, getpid());
  if (link(path, target) == 0) snprintf(name, 64, "grave.%ld.%d", grave, getpid());
}

static void save(int fd, unsigned long inode);

/* What the disk holds of a file that is opened for writing: what was there before this life, or nothing. */
static void remember(int fd, unsigned long inode, int existed) {
  char whole[PATH_MAX + 80];
  if (!power[0]) return;
  snprintf(whole, sizeof whole, "%s/snap.%lu", power, inode);
  if (!existed) {
    REAL(openat);
    int out = real(AT_FDCWD, whole, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) abort();
    close(out);
  } else if (access(whole, F_OK) != 0) {
    save(fd, inode);
  }
}

static int opened(int fd, const char *path, int flags, int existed) {
  if (fd < 0 || fd >= MAX_FD) return fd;
  below_root[fd] = 1;
  struct stat now;
  if ((flags & O_ACCMODE) != O_RDONLY && fstat(fd, &now) == 0 && S_ISREG(now.st_mode)) {
    remember(fd, now.st_ino, existed);
    note("O\t%lu\t%s\t%d\n", (unsigned long)now.st_ino, path, !existed);
  }
  return fd;
}

static int open_any(int dirfd, const char *path, int flags, mode_t mode) {
  REAL(openat);
  char whole[PATH_MAX];
  if (!resolve(dirfd, path, whole)) {
    int fd = real(dirfd, path, flags, mode);
    if (fd >= 0 && fd < MAX_FD) below_root[fd] = 0;
    return fd;
  }
  if ((flags & O_CREAT) && bytes_left && *bytes_left <= 0) {
    errno = ENOSPC;
    return -1;
  }
  pthread_mutex_lock(&lock);
  int existed = access(whole, F_OK) == 0;
  int fd = opened(real(dirfd, path, flags, mode), whole, flags, existed);
  pthread_mutex_unlock(&lock);
  return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(name)                                      \
  int name(const char *path, int flags, ...) {          \
    va_list arguments;                                  \
    va_start(arguments, flags);                         \
    mode_t mode = mode_of(flags, arguments);            \
    va_end(arguments);                                  \
    return open_any(AT_FDCWD, path, flags, mode);       \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                        \
  int name(int dirfd, const char *path, int flags, ...) {   \
    va_list arguments;                                      \
    va_start(arguments, flags);                             \
    mode_t mode = mode_of(flags, arguments);                \
    va_end(arguments);                                      \
    return open_any(dirfd, path, flags, mode);              \
  }
OPENAT(openat)
OPENAT(openat64)

static int is_ours(int fd) { return root_length && fd >= 0 && fd < MAX_FD && below_root[fd]; }

ssize_t write(int fd, const void *data, size_t count) {
  REAL(write);
  if (!is_ours(fd)) return real(fd, data, count);
  delay(1);
  ssize_t most = room(fd, count);
  return most < 0 ? -1 : real(fd, data, most);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
  REAL(writev);
  size_t total = 0;
  for (int i = 0; i < count; i++) total += parts[i].iov_len;
  return room(fd, total) == (ssize_t)total ? real(fd, parts, count) : (errno = ENOSPC, -1);
}

#define PWRITE(name, offset_type)                                              \
  ssize_t name(int fd, const void *data, size_t count, offset_type offset) {   \
    REAL(name);                                                                \
    if (is_ours(fd)) delay(1);                                                 \
    ssize_t most = room(fd, count);                                            \
    return most < 0 ? -1 : real(fd, data, most, offset);                       \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define SENDFILE(name, offset_type)                                  \
  ssize_t name(int out, int in, offset_type *offset, size_t count) { \
    REAL(name);                                                      \
    struct stat source;                                              \
    size_t most = fstat(in, &source) == 0 && (size_t)source.st_size < count ? (size_t)source.st_size : count; \
    ssize_t fits = room(out, most);                                  \
    return fits < 0 ? -1 : real(out, in, offset, fits ? (size_t)fits : count); \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

/* Save what a file holds: all of it is on the disk from here on. */
static void save(int fd, unsigned long inode) {
  char part[PATH_MAX + 80], whole[PATH_MAX + 80], name[64], block[1 << 16];
  snprintf(part, sizeof part, "%s/part.%lu.%d", power, inode, getpid());
  snprintf(whole, sizeof whole, "%s/snap.%lu", power, inode);
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  REAL(openat);
  int in = real(AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
  int out = real(AT_FDCWD, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ssize_t count;
  {
    REAL(write);
    while ((count = read(in, block, sizeof block)) > 0)
      if (real(out, block, count) != count) abort();
  }
  close(in);
  close(out);
  if (count < 0 || renameat2(AT_FDCWD, part, AT_FDCWD, whole, 0) != 0) abort();
}

static int synced(int fd) {
  struct stat now;
  if (fstat(fd, &now) != 0) return -1;
  delay(20);
  if (!power[0]) return 0;
  pthread_mutex_lock(&lock);
  if (S_ISREG(now.st_mode)) save(fd, now.st_ino);
  note("S\t%lu\n", (unsigned long)now.st_ino);
  pthread_mutex_unlock(&lock);
  return 0;
}

int fsync(int fd) {
  REAL(fsync);
  return is_ours(fd) ? synced(fd) : real(fd);
}

int fdatasync(int fd) {
  REAL(fdatasync);
  return is_ours(fd) ? synced(fd) : real(fd);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
  REAL(renameat);
  char old[PATH_MAX], new[PATH_MAX], grave[64];
  if (!resolve(to_fd, to, new) || !resolve(from_fd, from, old)) return real(from_fd, from, to_fd, to);
  delay(20);
  pthread_mutex_lock(&lock);
  bury(new, grave);
  int failed = real(from_fd, from, to_fd, to);
  if (!failed) note("R\t%s\t%s\t%s\n", old, new, grave);
  pthread_mutex_unlock(&lock);
  return failed;
}

int rename(const char *from, const char *to) {
  char scratch[PATH_MAX];
  REAL(rename);
  return resolve(AT_FDCWD, to, scratch) ? renameat(AT_FDCWD, from, AT_FDCWD, to) : real(from, to);
}

int unlinkat(int dirfd, const char *path, int flags) {
  REAL(unlinkat);
  char whole[PATH_MAX], grave[64] = "-";
  if (!resolve(dirfd, path, whole)) return real(dirfd, path, flags);
  pthread_mutex_lock(&lock);
  if (!(flags & AT_REMOVEDIR)) bury(whole, grave);
  int failed = real(dirfd, path, flags);
  if (!failed) note(flags & AT_REMOVEDIR ? "X\t%s\n" : "U\t%s\t%s\n", whole, grave);
  pthread_mutex_unlock(&lock);
  return failed;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int dirfd, const char *path, mode_t mode) {
  REAL(mkdirat);
  char whole[PATH_MAX];
  if (!resolve(dirfd, path, whole)) return real(dirfd, path, mode);
  pthread_mutex_lock(&lock);
  int failed = real(dirfd, path, mode);
  if (!failed) note("M\t%s\n", whole);
  pthread_mutex_unlock(&lock);
  return failed;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static time_t jump(void) {
  if (!jump_s) return 0;
  struct timespec now;
  REAL(clock_gettime);
  real(CLOCK_MONOTONIC, &now);
  long passed_ms = (now.tv_sec - started.tv_sec) * 1000 + (now.tv_nsec - started.tv_nsec) / 1000000;
  return passed_ms >= jump_after_ms ? jump_s : 0;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  REAL(clock_gettime);
  int failed = real(clock, out);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += jump();
  return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  REAL(gettimeofday);
  int failed = real(out, zone);
  if (!failed) out->tv_sec += jump();
  return failed;
}

/* Files that were touched after the jump carry the time that the clock showed then. */
static int shifted(int failed, struct stat *out) {
  time_t by = failed ? 0 : jump();
  if (by) {
    if (out->st_mtim.tv_sec >= jumped_at) out->st_mtim.tv_sec += by;
    if (out->st_ctim.tv_sec >= jumped_at) out->st_ctim.tv_sec += by;
  }
  return failed;
}

#define STAT(name, first_type)                        \
  int name(first_type file, struct stat *out) {       \
    int (*real)(first_type, struct stat *) =          \
        (int (*)(first_type, struct stat *))dlsym(RTLD_NEXT, #name); \
    return shifted(real(file, out), out);             \
  }
#define FSTATAT(name)                                                                \
  int name(int dirfd, const char *path, struct stat *out, int flags) {               \
    int (*real)(int, const char *, struct stat *, int) =                             \
        (int (*)(int, const char *, struct stat *, int))dlsym(RTLD_NEXT, #name);     \
    return shifted(real(dirfd, path, out, flags), out);                              \
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
STAT(stat, const char *)
STAT(lstat, const char *)
STAT(fstat, int)
FSTATAT(fstatat)
#pragma GCC diagnostic pop
/* On 64-bit machines the names with 64 are the same functions. */
int stat64(const char *, struct stat64 *) __attribute__((alias("stat")));
int lstat64(const char *, struct stat64 *) __attribute__((alias("lstat")));
int fstat64(int, struct stat64 *) __attribute__((alias("fstat")));
int fstatat64(int, const char *, struct stat64 *, int) __attribute__((alias("fstatat")));

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
