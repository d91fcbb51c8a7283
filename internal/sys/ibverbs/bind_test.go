package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestLoadWithoutLibrary(t *testing.T) {
	_, err := load("libkvlane-none.so.1")
	if !errors.Is(err, errdefs.ErrNotSupported) || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("error %v: want ErrNotSupported with the loader's reason", err)
	}
}

// The C library can be loaded, but is not libibverbs.
func TestLoadNamesEveryMissingSymbol(t *testing.T) {
	_, err := load("libc.so.6")
	if !errors.Is(err, errdefs.ErrNotSupported) {
		t.Fatalf("error %v is not ErrNotSupported", err)
	}
	for _, want := range []string{"rdma-core 33", "ibv_get_device_list", "_ibv_query_gid_ex", "ibv_reg_mr_iova2", "ibv_destroy_srq"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "ibv_reg_dmabuf_mr") {
		t.Errorf("an optional symbol is reported as missing: %v", err)
	}
}

// Looked up by name alone, a symbol must be the one of the header, and not an old version for
// programs of 2006.
func TestSymbolsAreOfTheDefaultVersion(t *testing.T) {
	lib, err := dl.Open(library)
	if err != nil {
		testkit.Skip(t, "verbs", err.Error())
	}
	defer lib.Close()
	libc, err := dl.Open("libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	defer libc.Close()
	p, err := libc.Symbol("dlvsym")
	if err != nil {
		testkit.Skip(t, "verbs", err.Error())
	}
	var dlvsym func(handle uintptr, name, version string) uintptr
	purego.RegisterFunc(&dlvsym, p)
	handle, err := purego.Dlopen(library, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, purego.Dlclose(handle)) })
	for name, version := range map[string]string{
		"ibv_open_device": "IBVERBS_1.1", "ibv_query_device": "IBVERBS_1.1", "ibv_create_qp": "IBVERBS_1.1",
		"ibv_modify_qp": "IBVERBS_1.1", "ibv_get_async_event": "IBVERBS_1.1", "_ibv_query_gid_ex": "IBVERBS_1.11",
	} {
		got, err := lib.Symbol(name)
		if err != nil {
			t.Error(err)
		}
		if want := dlvsym(handle, name, version); got != want {
			t.Errorf("%s is at %#x, its version %s at %#x", name, got, version, want)
		}
	}
}

// recorder is a libibverbs in C. Each function records its name and arguments, sets errno and
// returns answer. Objects are arrays of words. The first word points to a context with the
// functions of the data path.
const recorder = `
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint64_t u;
static char last[512]; static u answer; static int error, stopped;
static u note(const char *name, u *a, int n) {
	if (stopped) return answer;
	int at = snprintf(last, sizeof last, "%s", name);
	for (int i = 0; i < n; i++)
		at += snprintf(last + at, sizeof last - at, a[i] >> 20 ? " *" : " %lx", (unsigned long)a[i]);
	if (error) errno = error;
	return answer;
}
#define FN(name) u name(u a, u b, u c, u d, u e, u f) { u args[] = {a, b, c, d, e, f}; return note(#name, args, 6); }
static FN(poll_cq) static FN(req_notify_cq)
static u refuse; // which request of a chain is refused
static u post(const char *name, u q, u *wr, u *bad) {
	if (stopped) return answer;
	int at = snprintf(last, sizeof last, "%s", name);
	for (int i = 0; wr; i++, wr = (u *)wr[1]) {
		int n = *(int *)((char *)wr + 24);
		at += snprintf(last + at, sizeof last - at, " [%lu", (unsigned long)wr[0]);
		for (uint32_t *s = (uint32_t *)wr[2]; n-- > 0; s += 4)
			at += snprintf(last + at, sizeof last - at, " %u:%u", s[2], s[3]);
		at += snprintf(last + at, sizeof last - at, "]");
		if (answer && i == refuse) { *bad = (u)wr; return answer; }
	}
	return answer;
}
static u post_send(u q, u *wr, u *bad) { return post("send", q, wr, bad); }
static u post_recv(u q, u *wr, u *bad) { return post("recv", q, wr, bad); }
static u post_srq_recv(u q, u *wr, u *bad) { return post("srq_recv", q, wr, bad); }
static u context[64], object[16];
char *recorder_last(void) { return last; }
u recorder_context(void) { return (u)context; }
u recorder_object(void) {
	object[0] = (u)context;
	context[96/8] = (u)poll_cq; context[104/8] = (u)req_notify_cq; context[168/8] = (u)post_srq_recv;
	context[208/8] = (u)post_send; context[216/8] = (u)post_recv;
	((int *)context)[268/4] = 17; ((int *)context)[272/4] = 5;
	((int *)object)[8/4] = 23;
	((int *)object)[28/4] = 127;
	((int *)object)[36/4] = 0x36; ((int *)object)[40/4] = 0x40;
	((int *)object)[52/4] = 0x52;
	return (u)object;
}
void recorder_set(u a, int e, u r) { answer = a; error = e; refuse = r; }
void recorder_stop(void) { stopped = 1; }
`

// fake is the loaded recorder.
type fake struct {
	*API
	last          func() string
	context       func() uintptr
	object        func() uintptr
	set           func(answer uint64, errno int32, refuse uint64)
	stopRecording func() // records no further calls
}

func loadFake(tb testing.TB) *fake {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		testkit.Skip(tb, "cc", err.Error())
	}
	// The names come from the error of a library that has none of them.
	_, err = load("libc.so.6")
	var c strings.Builder
	c.WriteString(recorder)
	for _, m := range regexp.MustCompile(`look up (\w+) in`).FindAllStringSubmatch(err.Error(), -1) {
		fmt.Fprintf(&c, "FN(%s)\n", m[1])
	}
	c.WriteString("FN(ibv_reg_dmabuf_mr)\n")
	dir := tb.TempDir()
	src, name := filepath.Join(dir, "recorder.c"), filepath.Join(dir, "librecorder.so")
	if err := os.WriteFile(src, []byte(c.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.CommandContext(tb.Context(), cc, "-w", "-shared", "-fPIC", "-O1", "-o", name, src).CombinedOutput(); err != nil {
		testkit.Skip(tb, "cc", fmt.Sprintf("%v: %s", err, out))
	}
	f := new(fake)
	if f.API, err = load(name); err != nil {
		tb.Fatal(err)
	}
	lib, err := dl.Open(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { must(tb, lib.Close()) })
	for _, s := range []struct {
		name string
		to   any
	}{{"recorder_last", &f.last}, {"recorder_context", &f.context}, {"recorder_object", &f.object}, {"recorder_set", &f.set}, {"recorder_stop", &f.stopRecording}} {
		p, err := lib.Symbol(s.name)
		if err != nil {
			tb.Fatal(err)
		}
		purego.RegisterFunc(s.to, p)
	}
	return f
}

// The expected name and arguments of each library call, in order; "*" is a pointer. Arguments that
// a function does not have are ignored.
func TestCallsReachTheLibrary(t *testing.T) {
	f := loadFake(t)
	object := f.object()
	for _, c := range []struct {
		want   string
		answer uint64
		call   func() syscall.Errno
	}{
		{"ibv_open_device 5", 7, func() syscall.Errno { _, e := f.OpenDevice(5); return e }},
		{"ibv_close_device 5", 0, func() syscall.Errno { return f.CloseDevice(5) }},
		{"ibv_query_device 5 *", 0, func() syscall.Errno { return f.QueryDevice(5, new(DeviceAttr)) }},
		{"ibv_query_port 5 2 *", 0, func() syscall.Errno { return f.QueryPort(5, 2, new(PortAttr)) }},
		{"_ibv_query_gid_ex 5 2 3 * 0 20", 0, func() syscall.Errno { return f.QueryGIDEx(5, 2, 3, new(GIDEntry)) }},
		{"ibv_get_async_event 5 *", 0, func() syscall.Errno { _, e := f.GetAsyncEvent(5); return e }},
		{"ibv_ack_async_event *", 0, func() syscall.Errno { f.AckAsyncEvent(AsyncEvent{}); return 0 }},
		{"ibv_alloc_pd 5", 7, func() syscall.Errno { _, e := f.AllocPD(5); return e }},
		{"ibv_dealloc_pd 5", 0, func() syscall.Errno { return f.DeallocPD(5) }},
		{"ibv_reg_mr_iova2 5 6 7 9 8", uint64(object), func() syscall.Errno {
			r, e := f.RegMR(5, 6, 7, 9, 8)
			if r.LKey != 0x36 || r.RKey != 0x40 {
				t.Errorf("keys %+v", r)
			}
			return e
		}},
		{"ibv_reg_dmabuf_mr 5 6 7 8 9 a", uint64(object), func() syscall.Errno { _, e := f.RegDMABufMR(5, 6, 7, 8, 9, 10); return e }},
		{"ibv_dereg_mr 5", 0, func() syscall.Errno { return f.DeregMR(5) }},
		{"ibv_create_comp_channel 5", uint64(object), func() syscall.Errno {
			_, fd, e := f.CreateCompChannel(5)
			if fd != 23 {
				t.Errorf("descriptor %d", fd)
			}
			return e
		}},
		{"ibv_destroy_comp_channel 5", 0, func() syscall.Errno { return f.DestroyCompChannel(5) }},
		{"ibv_create_cq 5 6 0 7 8", uint64(object), func() syscall.Errno {
			_, n, e := f.CreateCQ(5, 6, 7, 8)
			if n != 127 {
				t.Errorf("%d entries", n)
			}
			return e
		}},
		{"ibv_destroy_cq 5", 0, func() syscall.Errno { return f.DestroyCQ(5) }},
		{"ibv_get_cq_event 5 * *", 0, func() syscall.Errno { _, e := f.GetCQEvent(5); return e }},
		{"ibv_ack_cq_events 5 6", 0, func() syscall.Errno { f.AckCQEvents(5, 6); return 0 }},
		{"ibv_create_qp 5 *", uint64(object), func() syscall.Errno {
			_, n, e := f.CreateQP(5, new(QPInitAttr))
			if n != 0x52 {
				t.Errorf("queue pair number %#x", n)
			}
			return e
		}},
		{"ibv_destroy_qp 5", 0, func() syscall.Errno { return f.DestroyQP(5) }},
		{"ibv_modify_qp 5 * 11", 0, func() syscall.Errno { return f.ModifyQP(5, new(QPAttr), 0x11) }},
		{"ibv_query_qp 5 * 11 *", 0, func() syscall.Errno { return f.QueryQP(5, new(QPAttr), 0x11, new(QPInitAttr)) }},
		{"ibv_create_srq 5 *", 7, func() syscall.Errno { _, e := f.CreateSRQ(5, new(SRQAttr)); return e }},
		{"ibv_destroy_srq 5", 0, func() syscall.Errno { return f.DestroySRQ(5) }},
		{"req_notify_cq * 1", 0, func() syscall.Errno { return f.ReqNotifyCQ(CQ(object), true) }},
		{"req_notify_cq * 0", 0, func() syscall.Errno { return f.ReqNotifyCQ(CQ(object), false) }},
	} {
		f.set(c.answer, 0, 0)
		if errno := c.call(); errno != 0 {
			t.Errorf("%s: errno %d", c.want, errno)
		}
		if got := f.last() + " "; !strings.HasPrefix(got, c.want+" ") {
			t.Errorf("%s: the library was called with %s", c.want, got)
		}
	}
}

func TestMembersAreRead(t *testing.T) {
	f := loadFake(t)
	object := f.object()
	if got := f.AsyncFD(Context(f.context())); got != 17 {
		t.Errorf("descriptor of events %d", got)
	}
	if got := f.CompVectors(Context(f.context())); got != 5 {
		t.Errorf("%d completion vectors", got)
	}
	if got := f.QPNum(QP(object)); got != 0x52 {
		t.Errorf("queue pair number %#x", got)
	}
}

// Every way in which a function reports a failure.
func TestErrno(t *testing.T) {
	f := loadFake(t)
	object := CQ(f.object())
	pointer := func() syscall.Errno { _, e := f.OpenDevice(5); return e }
	status := func() syscall.Errno { return f.CloseDevice(5) }
	path := func() syscall.Errno { return f.ReqNotifyCQ(object, false) }
	for _, c := range []struct {
		name   string
		answer uint64
		errno  syscall.Errno
		call   func() syscall.Errno
		want   syscall.Errno
	}{
		{"object", 7, syscall.EAGAIN, pointer, 0},
		{"no object, and why", 0, syscall.ENODEV, pointer, syscall.ENODEV},
		{"no object, and nothing", 0, 0, pointer, syscall.EIO},
		{"success with an errno left behind", 0, syscall.EAGAIN, status, 0},
		{"upper half of the register undefined", 0xdead_beef_0000_0000, 0, status, 0},
		{"errno as the result", uint64(syscall.EBUSY), syscall.EAGAIN, status, syscall.EBUSY},
		{"negative errno as the result", 0xffff_ffff_ffff_ffea, 0, status, syscall.EINVAL},
		{"minus one, and why", 0xffff_ffff, syscall.EBUSY, status, syscall.EBUSY},
		{"minus one, and nothing", 0xffff_ffff, 0, status, syscall.EIO},
		{"data path: errno", uint64(syscall.ENOMEM), 0, path, syscall.ENOMEM},
		{"data path: negative errno", 0xffff_fff4, 0, path, syscall.ENOMEM},
		{"data path: minus one", 0xffff_ffff, syscall.EINVAL, path, syscall.EIO},
	} {
		f.set(c.answer, int32(c.errno), 0)
		if got := c.call(); got != c.want {
			t.Errorf("%s: errno %d, want %d", c.name, got, c.want)
		}
	}
}

func TestPollCuts(t *testing.T) {
	f := loadFake(t)
	object := CQ(f.object())
	w, err := NewWCArray(4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, w.Free()) })
	f.set(3, 0, 0)
	if got := f.PollCQ(object, w, 100); got != 3 || !strings.HasPrefix(f.last(), "poll_cq * 4 * ") {
		t.Errorf("answered %d; called with %s", got, f.last())
	}
	f.set(0xffff_ffff, 0, 0)
	if got := f.PollCQ(object, w, 4); got != -1 {
		t.Errorf("answered %d, want -1", got)
	}
}
