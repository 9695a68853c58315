/* Preloaded into a process, this counts its calls of the file system below one folder, and at the
   n-th kills the process or lets calls fail; see faults.py.

   Every call goes to a log: "open PATH" (of a file that may be new), "truncate PATH" (as it is
   opened), "write PATH", "fsync PATH -> BYTES", "rename PATH -> PATH" ... The number of a call is
   that of its line. Nothing happens before samebits_arm, and nothing in a
   program that the process starts.

   It counts two more things, for failing.py: allocations from a size on (samebits_starve), which
   fail then, and messages that go through sockets (samebits_silence), at one of which the process
   stops, dies, or loses the connection. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WATCH, KILL, KILL_AFTER, FAIL, FULL };

static char root[PATH_MAX];
static long count, fatal;
static int mode, failure, record = -1, reading;

void samebits_arm(const char *folder, int how, long number, int error, int descriptor);
void samebits_note_reading(void);
void samebits_starve(long number, long failures, size_t bytes);
long samebits_allocations(void);
void samebits_silence(int how, long number);
long samebits_messages(void);

void samebits_arm(const char *folder, int how, long number, int error, int descriptor)
{
    snprintf(root, sizeof root, "%s", folder);
    mode = how, fatal = number, failure = error, record = descriptor, count = 0;
}

/* Files opened to be read go to the log as well, as "load PATH". */
void samebits_note_reading(void) { reading = 1; }

/* The real function, by name. */
static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* A path as the log has it: absolute, relative ones below the folder of a descriptor. */
static const char *whole(char *out, int folder, const char *path)
{
    char link[64];
    ssize_t length = 0;
    out[0] = '\0';
    if (path == NULL || path[0] != '/') {
        if (folder == AT_FDCWD)
            snprintf(link, sizeof link, "/proc/self/cwd");
        else
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, out, PATH_MAX - 1);
        if (length < 0) length = 0;
        out[length] = '\0';
        if (path != NULL && length + 2 < PATH_MAX) out[length++] = '/';
    }
    if (path != NULL) snprintf(out + length, PATH_MAX - (size_t)length, "%s", path);
    return out;
}

static int below_root(const char *path)
{
    size_t length = strlen(root);
    return record >= 0 && strncmp(path, root, length) == 0
           && (path[length] == '/' || path[length] == '\0');
}

/* Note a call; true if it is to fail. `grows`: it needs space on the disk. */
static int fault(const char *what, const char *path, const char *other, int grows)
{
    char line[2 * PATH_MAX + 32];
    int length;
    if (!below_root(path)) return 0;
    length = snprintf(line, sizeof line, "%s %s%s%s\n", what, path, other ? " -> " : "",
                      other ? other : "");
    syscall(SYS_write, record, line, (size_t)length);
    count++;
    if (mode == KILL && count == fatal) _exit(137);
    if ((mode == FAIL && count == fatal) || (mode == FULL && grows && count >= fatal)) {
        errno = failure;
        return 1;
    }
    return 0;
}

/* After a call that was noted. */
static void done(const char *path)
{
    if (mode == KILL_AFTER && count == fatal && below_root(path)) _exit(137);
}

#define CALL(type, name, parameters, arguments, place, what, other, grows)                         \
    type name parameters                                                                           \
    {                                                                                              \
        char path[PATH_MAX], second[PATH_MAX];                                                     \
        type result;                                                                               \
        (void)second;                                                                              \
        place;                                                                                     \
        if (fault(what, path, other, grows)) return -1;                                            \
        result = ((type(*) parameters)real(#name))arguments;                                       \
        done(path);                                                                                \
        return result;                                                                             \
    }

#define ONE(folder, name) whole(path, folder, name)
#define TWO(folder, name, into, as) (whole(path, folder, name), whole(second, into, as))

/* No power is lost: to have been asked is enough. */
static int synced(int f)
{
    char path[PATH_MAX], size[32];
    struct stat status;
    snprintf(size, sizeof size, "%lld", fstat(f, &status) ? 0LL : (long long)status.st_size);
    if (fault("fsync", whole(path, f, NULL), size, 1)) return -1;
    done(path);
    return 0;
}

int fsync(int f) { return synced(f); }
int fdatasync(int f) { return synced(f); }

CALL(int, ftruncate, (int f, off_t n), (f, n), ONE(f, NULL), "write", NULL, 0)
CALL(int, ftruncate64, (int f, off64_t n), (f, n), ONE(f, NULL), "write", NULL, 0)
CALL(int, mkdir, (const char *p, mode_t m), (p, m), ONE(AT_FDCWD, p), "mkdir", NULL, 1)
CALL(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), ONE(d, p), "mkdir", NULL, 1)
CALL(int, unlink, (const char *p), (p), ONE(AT_FDCWD, p), "unlink", NULL, 0)
CALL(int, rmdir, (const char *p), (p), ONE(AT_FDCWD, p), "unlink", NULL, 0)
CALL(int, unlinkat, (int d, const char *p, int f), (d, p, f), ONE(d, p), "unlink", NULL, 0)
CALL(int, rename, (const char *a, const char *b), (a, b), TWO(AT_FDCWD, a, AT_FDCWD, b), "rename",
     second, 0)
CALL(int, renameat, (int d, const char *a, int e, const char *b), (d, a, e, b), TWO(d, a, e, b),
     "rename", second, 0)
CALL(int, renameat2, (int d, const char *a, int e, const char *b, unsigned f), (d, a, e, b, f),
     TWO(d, a, e, b), f ? "exchange" : "rename", second, 0)
CALL(int, symlink, (const char *t, const char *p), (t, p), ONE(AT_FDCWD, p), "link", NULL, 1)
CALL(int, link, (const char *a, const char *b), (a, b), TWO(AT_FDCWD, b, AT_FDCWD, a), "link",
     second, 1)

/* --- messages between processes --- */

enum { STOP = 1, DIE, CUT };

static long messages, last_message;
static int silence;

void samebits_silence(int how, long number)
{
    silence = how, last_message = number, messages = 0;
}

long samebits_messages(void) { return messages; }

/* What goes to a descriptor, if that is a socket, is a message: true where it is cut off. */
static int message(int f)
{
    struct stat status;
    int before = errno;
    if (silence == 0 || fstat(f, &status) != 0 || !S_ISSOCK(status.st_mode)) {
        errno = before;
        return 0;
    }
    if (__atomic_add_fetch(&messages, 1, __ATOMIC_RELAXED) != last_message) return 0;
    if (silence == STOP) kill(getpid(), SIGSTOP);
    if (silence == DIE) _exit(137);
    if (silence != CUT) return 0;
    shutdown(f, SHUT_RDWR);
    errno = ECONNRESET;
    return 1;
}

#define SEND(name, type, parameters, arguments)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        if (message(f)) return -1;                                                                 \
        return ((type(*) parameters)real(#name))arguments;                                         \
    }

SEND(send, ssize_t, (int f, const void *b, size_t n, int o), (f, b, n, o))
SEND(sendmsg, ssize_t, (int f, const struct msghdr *m, int o), (f, m, o))
SEND(sendmmsg, int, (int f, struct mmsghdr *m, unsigned n, int o), (f, m, n, o))

/* Half of it is on its way to the disk when a process is killed while it writes. */
#define WRITE(name, parameters, arguments, half)                                                   \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        char path[PATH_MAX];                                                                       \
        ssize_t result;                                                                            \
        if (message(f)) return -1;                                                                 \
        whole(path, f, NULL);                                                                      \
        if (mode == KILL && count + 1 == fatal && n > 1 && below_root(path))                       \
            ((ssize_t(*) parameters)real(#name))half;                                              \
        if (fault("write", path, NULL, 1)) return -1;                                              \
        result = ((ssize_t(*) parameters)real(#name))arguments;                                    \
        done(path);                                                                                \
        return result;                                                                             \
    }

WRITE(write, (int f, const void *b, size_t n), (f, b, n), (f, b, n / 2))
WRITE(pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), (f, b, n / 2, o))
WRITE(pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), (f, b, n / 2, o))
WRITE(writev, (int f, const struct iovec *b, int n), (f, b, n), (f, b, n / 2))
WRITE(sendfile, (int f, int i, off_t *o, size_t n), (f, i, o, n), (f, i, o, n / 2))
WRITE(sendfile64, (int f, int i, off64_t *o, size_t n), (f, i, o, n), (f, i, o, n / 2))

#define OPEN(name, first, folder, ...)                                                             \
    int name(first const char *p, int flags, ...)                                                  \
    {                                                                                              \
        char path[PATH_MAX];                                                                       \
        mode_t m = 0;                                                                              \
        int result;                                                                                \
        int changes = (flags & (O_CREAT | O_TRUNC)) != 0;                                          \
        const char *what = changes ? flags & O_TRUNC ? "truncate" : "open" : "load";               \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_list rest;                                                                          \
            va_start(rest, flags);                                                                 \
            m = va_arg(rest, mode_t);                                                              \
            va_end(rest);                                                                          \
        }                                                                                          \
        whole(path, folder, p);                                                                    \
        if ((changes || reading) && fault(what, path, NULL, changes)) return -1;                   \
        result = ((int (*)(first const char *, int, ...))real(#name))(__VA_ARGS__);                \
        if (changes) done(path);                                                                   \
        return result;                                                                             \
    }

#define NONE
#define FOLDER int d,
OPEN(open, NONE, AT_FDCWD, p, flags, m)
OPEN(open64, NONE, AT_FDCWD, p, flags, m)
OPEN(openat, FOLDER, d, d, p, flags, m)
OPEN(openat64, FOLDER, d, d, p, flags, m)

/* --- memory --- */

void *__libc_malloc(size_t n); /* of glibc: what the functions below stand before */
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static long allocations, scarce, scarcity;
static size_t least;

/* From now on count allocations of at least `bytes`; those from `number` on, so many, fail. */
void samebits_starve(long number, long failures, size_t bytes)
{
    allocations = 0, scarce = number, scarcity = failures, least = bytes;
}

long samebits_allocations(void) { return allocations; }

static int denied(size_t n)
{
    long number;
    if (least == 0 || n < least) return 0;
    number = __atomic_add_fetch(&allocations, 1, __ATOMIC_RELAXED);
    if (number < scarce || number - scarce >= scarcity) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return denied(n) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return denied(n * size) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return denied(n) ? NULL : __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { return denied(n) ? NULL : __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *found = memalign(alignment, n);
    if (found == NULL) return ENOMEM;
    *out = found;
    return 0;
}

void *mmap(void *p, size_t n, int protection, int flags, int f, off_t o)
{
    if ((flags & MAP_ANONYMOUS) && denied(n)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, p, n, protection, flags, f, o);
}
