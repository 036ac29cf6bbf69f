/* A disk that fails as the tests want it: preloaded into a process (LD_PRELOAD), it disturbs the files under one folder.
 *
 * GRIDCHASE_FAULTY_DISK names a file whose first byte says how the disk is now; files below the folder that this file is
 * in are disturbed, the file itself is not. 0: works. 1: full, writes give ENOSPC. 2: read-only, EROFS. 3: it hangs,
 * until the byte changes: whatever would reach the disk waits.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { WORKS, FULL, READ_ONLY, HUNG };

static volatile const unsigned char *mode_byte;
static char folder[4096];

__attribute__((constructor)) static void attach(void) {
  const char *path = getenv("GRIDCHASE_FAULTY_DISK");
  int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
  int file = path ? real_open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return;
  snprintf(folder, sizeof folder, "%s", path);
  strrchr(folder, '/')[1] = 0;
  mode_byte = mapped;
}

static int is_ours(const char *path) { return mode_byte && path && *folder && !strncmp(path, folder, strlen(folder)); }

static int is_our_file(int file) {
  char link[64], path[4096];
  if (!mode_byte || *mode_byte == WORKS) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  return is_ours(path);
}

/* Return 0 where a change may go on, else the error. */
static int fault(int full_is_fault) {
  while (*mode_byte == HUNG) nanosleep(&(struct timespec){0, 2000000}, NULL);
  if (*mode_byte == READ_ONLY) return EROFS;
  return *mode_byte == FULL && full_is_fault ? ENOSPC : 0;
}

#define FAIL_IF(condition, full_is_fault) \
  do { \
    int code = (condition) ? fault(full_is_fault) : 0; \
    if (code) { \
      errno = code; \
      return -1; \
    } \
  } while (0)

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    static int (*real)(const char *, int, ...); \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    va_list rest; \
    va_start(rest, flags); \
    int permissions = va_arg(rest, int); \
    va_end(rest); \
    FAIL_IF(is_ours(path) && (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)), 0); \
    return real(path, flags, permissions); \
  }
OPEN(open)
OPEN(open64)

#define OPEN_AT(name) \
  int name(int folder_file, const char *path, int flags, ...) { \
    static int (*real)(int, const char *, int, ...); \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    va_list rest; \
    va_start(rest, flags); \
    int permissions = va_arg(rest, int); \
    va_end(rest); \
    int is_under = is_ours(path) || (path[0] != '/' && is_our_file(folder_file)); \
    FAIL_IF(is_under && (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)), 0); \
    return real(folder_file, path, flags, permissions); \
  }
OPEN_AT(openat)
OPEN_AT(openat64)

#define CALL(type, name, parameters, arguments, condition, full_is_fault) \
  type name parameters { \
    static type(*real) parameters; \
    if (!real) real = dlsym(RTLD_NEXT, #name); \
    FAIL_IF(condition, full_is_fault); \
    return real arguments; \
  }
CALL(ssize_t, write, (int file, const void *bytes, size_t n), (file, bytes, n), is_our_file(file), 1)
CALL(ssize_t, pwrite64, (int file, const void *bytes, size_t n, off64_t at), (file, bytes, n, at), is_our_file(file), 1)
CALL(int, fsync, (int file), (file), is_our_file(file), 1)
CALL(int, rename, (const char *from, const char *to), (from, to), is_ours(to), 0)
CALL(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), is_ours(to), 0)
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), is_ours(path), 1)
CALL(int, unlink, (const char *path), (path), is_ours(path), 0)
