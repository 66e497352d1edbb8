/* Makes one fsync or fdatasync fail with EIO, in a process that has this preloaded.

   ATOMLOG_TEST_SYNC_FAILS   "n pattern": the n-th sync, counted from 1, of a file whose path matches (as in a shell) fails
   ATOMLOG_TEST_SYNC_REPORT  a file that gets "fails PATH" then, and "succeeds PATH" for each later sync of such a path

   Like a real one, the failure is told once: the kernel forgets what could not be written, and the next sync succeeds. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int seen;

static void report(const char *what, const char *path) {
    const char *name = getenv("ATOMLOG_TEST_SYNC_REPORT");
    int file = name ? open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (file >= 0) {
        dprintf(file, "%s %s\n", what, path);
        close(file);
    }
}

static int fails(int descriptor) {
    char link[64], path[4096];
    const char *wanted = getenv("ATOMLOG_TEST_SYNC_FAILS");
    if (!wanted)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    const char *text = strchr(wanted, ' ');
    if (size < 0 || !text)
        return 0;
    path[size] = 0;
    if (fnmatch(text + 1, path, 0) != 0)
        return 0;
    int number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (number < atoi(wanted))
        return 0;
    report(number == atoi(wanted) ? "fails" : "succeeds", path);
    return number == atoi(wanted);
}

static int synced(const char *name, int descriptor) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (fails(descriptor)) {
        errno = EIO;
        return -1;
    }
    return real(descriptor);
}

int fsync(int descriptor) { return synced("fsync", descriptor); }
int fdatasync(int descriptor) { return synced("fdatasync", descriptor); }
