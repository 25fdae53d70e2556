/* Between a process and its files: fails, tears or records the calls that write to them.
 *
 * Loaded with LD_PRELOAD. The environment says what to do. It is read anew in every forked process,
 * at the first file opened below SHIM_FOLDER (which may come after main began, so that a process
 * that forks workers is untouched itself):
 *
 *   SHIM_FOLDER=/path/       only files below it
 *   SHIM_FAULT=kind@n+k      at the n-th call that the kind concerns, and the k-1 after it:
 *       kill    SIGKILL before the call                      every call
 *       torn    half of a write, then SIGKILL                writes
 *       eio     the call fails with EIO, nothing is done     every call
 *       enospc  the call fails with ENOSPC                   writes, truncations
 *       short   a write that writes half, and says so        writes
 *       fsync   a sync that fails with EIO                   syncs
 *   SHIM_FIRED=/path         a file that is created at the fault
 *   SHIM_LOG=/path           a record of every call, with the bytes written (read by verify/calls.py)
 *
 *     cc -shared -fPIC -O2 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, RENAME = 8, UNLINK = 16, CREATE = 32 };
enum fault { NONE, KILL, TORN, EIO_, ENOSPC_, SHORT, FSYNC };

static const struct { const char *name; int concerns; } FAULTS[] = {
    [NONE] = {"", 0},
    [KILL] = {"kill", WRITE | SYNC | TRUNCATE | RENAME | UNLINK},
    [TORN] = {"torn", WRITE},
    [EIO_] = {"eio", WRITE | SYNC | TRUNCATE | RENAME},
    [ENOSPC_] = {"enospc", WRITE | TRUNCATE},
    [SHORT] = {"short", WRITE},
    [FSYNC] = {"fsync", SYNC},
};

#define DESCRIPTORS 4096
static char *paths[DESCRIPTORS];
static pid_t read_by;       /* the process for which the environment was read */
static char folder[PATH_MAX];
static enum fault fault;
static long first, times, seen;
static int record = -1;
static pthread_mutex_t one_record = PTHREAD_MUTEX_INITIALIZER;

static void listen_to_environment(void)
{
    pid_t self = getpid();
    if (read_by == self)
        return;
    const char *given = getenv("SHIM_FOLDER");
    if (given == NULL || strlen(given) >= sizeof folder)
        return;
    read_by = self;
    strcpy(folder, given);
    fault = NONE, seen = 0;
    const char *wanted = getenv("SHIM_FAULT");
    char name[16];
    if (wanted != NULL && (times = 1) && sscanf(wanted, "%15[a-z]@%ld+%ld", name, &first, &times) >= 2)
        for (int one = KILL; one <= FSYNC; one++)
            if (!strcmp(name, FAULTS[one].name))
                fault = one;
    const char *log = getenv("SHIM_LOG");
    record = log == NULL ? -1
        : (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int below(const char *path)
{
    listen_to_environment();
    return folder[0] && !strncmp(path, folder, strlen(folder));
}

static int ours(int descriptor)
{
    return descriptor >= 0 && descriptor < DESCRIPTORS && paths[descriptor] != NULL;
}

/* kind, length of the path, path, offset, length of the bytes, bytes: in one append */
static void note(uint8_t kind, const char *path, int64_t offset, const void *bytes, uint32_t size)
{
    if (record < 0)
        return;
    uint16_t length = strlen(path);
    size_t total = 15 + length + size;
    char *line = malloc(total), *end = line;
    *end++ = kind;
    memcpy(end, &length, 2), end += 2;
    memcpy(end, path, length), end += length;
    memcpy(end, &offset, 8), end += 8;
    memcpy(end, &size, 4), end += 4;
    if (size)
        memcpy(end, bytes, size);
    pthread_mutex_lock(&one_record);
    syscall(SYS_write, record, line, total);
    pthread_mutex_unlock(&one_record);
    free(line);
}

static enum fault due(int kind)
{
    if (!(FAULTS[fault].concerns & kind))
        return NONE;
    long now = __sync_add_and_fetch(&seen, 1);
    if (now < first || now >= first + times)
        return NONE;
    const char *fired = getenv("SHIM_FIRED");
    if (fired != NULL)
        syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, fired, O_WRONLY | O_CREAT, 0600));
    if (fault == KILL) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    return fault;
}

static int refused(enum fault found)
{
    if (found == NONE || found == SHORT || found == TORN)
        return 0;
    errno = found == ENOSPC_ ? ENOSPC : EIO;
    return 1;
}

static ssize_t put(int descriptor, const void *bytes, size_t size, off64_t offset, int at)
{
    enum fault found = ours(descriptor) ? due(WRITE) : NONE;
    if (refused(found))
        return -1;
    if ((found == SHORT || found == TORN) && size > 1)
        size /= 2;
    off64_t where = at ? offset : lseek(descriptor, 0, SEEK_CUR);
    ssize_t done = at ? syscall(SYS_pwrite64, descriptor, bytes, size, offset)
                      : syscall(SYS_write, descriptor, bytes, size);
    if (found == TORN) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
    if (done > 0 && ours(descriptor)) {
        if (!at && fcntl(descriptor, F_GETFL) & O_APPEND)
            where = lseek(descriptor, 0, SEEK_CUR) - done;
        note(WRITE, paths[descriptor], where, bytes, done);
    }
    return done;
}

ssize_t write(int descriptor, const void *bytes, size_t size)
{
    if (!ours(descriptor))
        return syscall(SYS_write, descriptor, bytes, size);
    return put(descriptor, bytes, size, 0, 0);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t offset)
{
    return put(descriptor, bytes, size, offset, 1);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t size, off_t offset)
{
    return put(descriptor, bytes, size, offset, 1);
}

static int synchronize(int descriptor, int call)
{
    if (ours(descriptor) && refused(due(SYNC)))
        return -1;
    int done = syscall(call, descriptor);
    if (!done && ours(descriptor))
        note(SYNC, paths[descriptor], 0, NULL, 0);
    return done;
}

int fsync(int descriptor) { return synchronize(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synchronize(descriptor, SYS_fdatasync); }

int ftruncate64(int descriptor, off64_t size)
{
    if (ours(descriptor) && refused(due(TRUNCATE)))
        return -1;
    int done = syscall(SYS_ftruncate, descriptor, size);
    if (!done && ours(descriptor))
        note(TRUNCATE, paths[descriptor], size, NULL, 0);
    return done;
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int rename(const char *from, const char *to)
{
    int known = below(to);
    if (known && refused(due(RENAME)))
        return -1;
    int done = syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!done && known)
        note(RENAME, from, 0, to, strlen(to));
    return done;
}

int unlink(const char *path)
{
    int known = below(path);
    if (known)
        due(UNLINK);
    int done = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!done && known)
        note(UNLINK, path, 0, NULL, 0);
    return done;
}

static int open_at(int where, const char *path, int flags, mode_t mode)
{
    int known = below(path);
    int fresh = known && flags & O_CREAT && syscall(SYS_faccessat, where, path, F_OK);
    int descriptor = syscall(SYS_openat, where, path, flags | O_LARGEFILE, mode);
    if (descriptor < 0 || descriptor >= DESCRIPTORS || !known)
        return descriptor;
    free(paths[descriptor]);
    paths[descriptor] = strdup(path);
    if (fresh)
        note(CREATE, path, 0, NULL, 0);
    else if ((flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY)
        note(TRUNCATE, path, 0, NULL, 0);
    return descriptor;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, last); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int where, const char *path, int flags, ...) { MODE(flags) return open_at(where, path, flags, mode); }
int openat64(int where, const char *path, int flags, ...) { MODE(flags) return open_at(where, path, flags, mode); }

int close(int descriptor)
{
    if (ours(descriptor)) {
        free(paths[descriptor]);
        paths[descriptor] = NULL;
    }
    return syscall(SYS_close, descriptor);
}
