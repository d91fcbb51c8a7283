// A libcufile in a page: the calls over pread and pwrite on memory of the host. It notes what was called, in order, fails on
// demand, and runs asynchronous transfers when it is told to, reading their words then.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct { int err, cu_err; } result;
typedef struct { int type; union { int fd; void *handle; } h; const void *ops; } descr;
typedef struct { unsigned major, minor; size_t poll, direct; unsigned status, control, rest[6]; } props;
struct handle { int fd, open; };
struct transfer { struct handle *h; char *base; size_t *size; off_t *off, *at; ssize_t *moved; int write; };

static char calls[1 << 16];
static char failing[64];
static int failure, cuda, opens;
static struct transfer queued[16];
static int nqueued;

static result enter(const char *name) {
	strcat(strcat(calls, name), " ");
	result r = {0, 0};
	if (!strcmp(name, failing)) { r.err = failure; r.cu_err = cuda; }
	return r;
}

const char *fake_calls(void) { return calls; }
void fake_reset(void) { calls[0] = failing[0] = 0; opens = nqueued = 0; }
void fake_fail(const char *name, int status, int cu) { strcpy(failing, name); failure = status; cuda = cu; }

result cuFileDriverOpen(void) { result r = enter("DriverOpen"); if (!r.err) opens++; return r; }
result cuFileDriverClose_v2(void) { result r = enter("DriverClose"); if (!r.err) opens--; return r; }
result cuFileDriverGetProperties(props *p) {
	result r = enter("DriverGetProperties");
	p->major = 2; p->minor = 17; p->status = 1 << 4; p->control = 1 << 1; p->rest[5] = 77;
	return r;
}
result cuFileHandleRegister(void **fh, descr *d) {
	result r = enter("HandleRegister");
	if (r.err) return r;
	struct handle *h = malloc(sizeof *h);
	h->fd = d->h.fd; h->open = 1; *fh = h;
	if (d->type != 1 || d->ops) r.err = 5022;
	return r;
}
void cuFileHandleDeregister(struct handle *h) { enter("HandleDeregister"); h->open = 0; }
result cuFileBufRegister(const void *p, size_t n, int flags) { return enter("BufRegister"); }
result cuFileBufDeregister(const void *p) { return enter("BufDeregister"); }

static ssize_t move(struct handle *h, char *p, size_t n, off_t off, int write) {
	return write ? pwrite(h->fd, p, n, off) : pread(h->fd, p, n, off);
}
ssize_t cuFileRead(struct handle *h, void *base, size_t n, off_t off, off_t at) {
	result r = enter("Read");
	return r.err ? -r.err : h->open ? move(h, (char *)base + at, n, off, 0) : -5027;
}
ssize_t cuFileWrite(struct handle *h, const void *base, size_t n, off_t off, off_t at) {
	result r = enter("Write");
	return r.err ? -r.err : h->open ? move(h, (char *)base + at, n, off, 1) : -5027;
}
#ifndef OLD
static result enqueue(const char *name, void *stream, struct transfer t) {
	result r = enter(name);
	if (stream != (void *)0x77) r.err = 5022; // the seventh argument
	if (!r.err) queued[nqueued++] = t;
	return r;
}
result cuFileReadAsync(struct handle *h, void *base, size_t *n, off_t *off, off_t *at, ssize_t *moved, void *stream) {
	return enqueue("ReadAsync", stream, (struct transfer){h, base, n, off, at, moved, 0});
}
result cuFileWriteAsync(struct handle *h, void *base, size_t *n, off_t *off, off_t *at, ssize_t *moved, void *stream) {
	return enqueue("WriteAsync", stream, (struct transfer){h, base, n, off, at, moved, 1});
}
void fake_run(void) {
	for (int i = 0; i < nqueued; i++) {
		struct transfer *t = &queued[i];
		*t->moved = t->h->open ? move(t->h, t->base + *t->at, *t->size, *t->off, t->write) : -5027;
	}
	nqueued = 0;
}
result cuFileGetVersion(int *v) { *v = 1140; return enter("GetVersion"); }
result cuFileGetParameterBool(int param, _Bool *v) { result r = enter("GetParameterBool"); *v = param == 2; return r; }
#endif
