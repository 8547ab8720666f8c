// A library to be preloaded: what disks do to a program that saves checkpoints. It counts the calls that change files
// below a directory called "checkpoints", and
//   DISK_KILL_AT=N     ends the process, as SIGKILL does, in place of call N
//   DISK_FAIL_AT=N     and from there on lets calls fail, with
//   DISK_ERRNO=E       this error number
//   DISK_SLOW=SECONDS  makes every fsync() of a rank's file take so long
//   DISK_WRITE_MS=MS   makes every pwrite() to a rank's file take so long
//   DISK_READ_MS=MS    makes every pread() of any file take so long
//   DISK_HOLD=F        while the file F exists, lets every pread() of a file whose path ends with DISK_READS_OF wait
//   DISK_UNREADABLE=F  while the file F exists, lets every pread() of a file whose path ends with DISK_READS_OF fail, with
//                      DISK_ERRNO, or without it as if the file had ended
//   DISK_HIDE=1        shows no directory's names, and no manifest
//   DISK_COUNT=FILE    writes the number of calls there at the end
//   DISK_OPENED=FILE   writes there what is opened to be written to, a path a line
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int calls;
static char watched[4096], has_trouble[4096];  // by descriptor

static long setting(const char* name) {
    const char* text = getenv(name);
    return text ? strtol(text, NULL, 10) : 0;
}

// Whether the file exists that this setting names.
static int exists(const char* name) { return getenv(name) && access(getenv(name), F_OK) == 0; }

static int concerns(const char* path) { return path && strstr(path, "/checkpoints"); }

// Whether the call is to fail.
static int meet(void) {
    const int call = __sync_add_and_fetch(&calls, 1);
    if (call == setting("DISK_KILL_AT")) kill(getpid(), SIGKILL);
    if (!setting("DISK_FAIL_AT") || call < setting("DISK_FAIL_AT")) return 0;
    errno = (int)setting("DISK_ERRNO");
    return 1;
}

__attribute__((destructor)) static void report(void) {
    const char* path = getenv("DISK_COUNT");
    FILE* file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%d\n", calls);
    fclose(file);
}

static void note_opened(const char* path) {
    const char* list = getenv("DISK_OPENED");
    FILE* file = list ? fopen(list, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", path);
    fclose(file);
}

enum { OTHER_FILE = 1, RANK_FILE = 2 };
static int watch(int fd, int kind) {
    if (fd >= 0 && fd < (int)sizeof watched) watched[fd] = (char)kind;
    return fd;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_file(int (*real)(const char*, int, ...), const char* path, int flags, int mode) {
    const int yes = concerns(path), writes = (flags & O_ACCMODE) != O_RDONLY;
    if (yes && setting("DISK_HIDE") && strstr(path, "manifest.json")) return errno = ENOENT, -1;
    if (yes && writes && meet()) return -1;
    if (yes && writes) note_opened(path);
    const char* const end = getenv("DISK_READS_OF");
    const int fd = watch(real(path, flags, mode), yes ? (strstr(path, "rank_") ? RANK_FILE : OTHER_FILE) : 0);
    if (fd >= 0 && fd < (int)sizeof has_trouble)
        has_trouble[fd] = end && strlen(path) > strlen(end) && !strcmp(path + strlen(path) - strlen(end), end);
    return fd;
}
int open(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const int mode = va_arg(rest, int);
    va_end(rest);
    return open_file(REAL(open), path, flags, mode);
}
int open64(const char* path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const int mode = va_arg(rest, int);
    va_end(rest);
    return open_file(REAL(open64), path, flags, mode);
}
int close(int fd) {
    watch(fd, 0);
    return REAL(close)(fd);
}
static ssize_t write_file(ssize_t (*real)(int, const void*, size_t, off_t), int fd, const void* data, size_t n, off_t at) {
    if (fd < 0 || fd >= (int)sizeof watched || !watched[fd]) return real(fd, data, n, at);
    if (watched[fd] == RANK_FILE && setting("DISK_WRITE_MS")) usleep((unsigned)setting("DISK_WRITE_MS") * 1000);
    if (meet()) return -1;
    return real(fd, data, n, at);
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t at) { return write_file(REAL(pwrite), fd, data, n, at); }
ssize_t pwrite64(int fd, const void* data, size_t n, off_t at) { return write_file(REAL(pwrite64), fd, data, n, at); }
static ssize_t read_file(ssize_t (*real)(int, void*, size_t, off_t), int fd, void* data, size_t n, off_t at) {
    if (setting("DISK_READ_MS")) usleep((unsigned)setting("DISK_READ_MS") * 1000);
    if (fd >= 0 && fd < (int)sizeof has_trouble && has_trouble[fd]) {
        while (exists("DISK_HOLD")) usleep(1000);
        if (exists("DISK_UNREADABLE")) return (errno = (int)setting("DISK_ERRNO")) ? -1 : 0;
    }
    return real(fd, data, n, at);
}
ssize_t pread(int fd, void* data, size_t n, off_t at) { return read_file(REAL(pread), fd, data, n, at); }
ssize_t pread64(int fd, void* data, size_t n, off_t at) { return read_file(REAL(pread64), fd, data, n, at); }
int fsync(int fd) {
    if (fd < 0 || fd >= (int)sizeof watched || !watched[fd]) return REAL(fsync)(fd);
    if (watched[fd] == RANK_FILE && setting("DISK_SLOW")) sleep((unsigned)setting("DISK_SLOW"));
    if (meet()) return -1;
    return REAL(fsync)(fd);
}
int rename(const char* from, const char* to) {
    if (concerns(from) && meet()) return -1;
    return REAL(rename)(from, to);
}
DIR* opendir(const char* path) {
    if (concerns(path) && setting("DISK_HIDE")) return errno = ENOENT, NULL;
    return REAL(opendir)(path);
}
int mkdir(const char* path, mode_t mode) {
    if (concerns(path) && meet()) return -1;
    return REAL(mkdir)(path, mode);
}
int unlink(const char* path) {
    if (concerns(path) && meet()) return -1;
    return REAL(unlink)(path);
}
int unlinkat(int directory, const char* name, int flags) {
    if (directory >= 0 && directory < (int)sizeof watched && watched[directory] && meet()) return -1;
    return REAL(unlinkat)(directory, name, flags);
}
int rmdir(const char* path) {
    if (concerns(path) && meet()) return -1;
    return REAL(rmdir)(path);
}
// What the calls are with _FORTIFY_SOURCE, which Ubuntu's compiler defines.
int __open_2(const char* path, int flags) { return open(path, flags, 0); }
ssize_t __pread_chk(int fd, void* data, size_t n, off_t at, size_t size) { return n > size ? -1 : pread(fd, data, n, at); }
