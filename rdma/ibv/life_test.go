package ibv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/rdmatest"
)

// rig holds one object of each kind, opened in order.
type rig struct {
	memory  *mem.Region
	p       *Provider
	dev     rdma.Device
	pd      rdma.PD
	channel rdma.CompChannel
	cq      rdma.CQ
	srq     rdma.SRQ
	qp      rdma.QP
	sharing rdma.QP // uses receives of srq
	mr      rdma.MR
	opened  []interface{ Close() error }
}

func newRig(tb testing.TB, api *ibverbs.API) *rig {
	tb.Helper()
	b, err := hostmem.Alloc(4096)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			tb.Error(err)
		}
	})
	r := new(rig)
	if r.memory, err = hostmem.Region(b); err != nil {
		tb.Fatal(err)
	}
	r.p = newProvider(api)
	r.opened = append(r.opened, r.p)
	return r
}

// keep records an opened object.
func keep[T interface{ Close() error }](r *rig, to *T, made T, err error) error {
	if err == nil {
		*to = made
		r.opened = append(r.opened, made)
	}
	return err
}

// open opens all objects up to the first failure.
func (r *rig) open() error {
	steps := []func() error{
		func() error { v, err := r.p.Open("fake0"); return keep(r, &r.dev, v, err) },
		func() error { v, err := r.dev.AllocPD(); return keep(r, &r.pd, v, err) },
		func() error { v, err := r.dev.CreateCompChannel(); return keep(r, &r.channel, v, err) },
		func() error {
			v, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 8, Channel: r.channel, Vector: 1})
			return keep(r, &r.cq, v, err)
		},
		func() error {
			v, err := r.pd.CreateSRQ(rdma.SRQCaps{MaxWR: 4, MaxSGE: 2})
			return keep(r, &r.srq, v, err)
		},
		func() error {
			v, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, Caps: rdma.QPCaps{
				MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInlineBytes: 16,
			}})
			return keep(r, &r.qp, v, err)
		},
		func() error {
			v, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, SRQ: r.srq, Caps: rdma.QPCaps{MaxSendWR: 1, MaxSendSGE: 1}})
			return keep(r, &r.sharing, v, err)
		},
		func() error {
			v, err := r.pd.RegMR(mem.All(r.memory), rdma.MROptions{Access: rdma.AccessLocalWrite | rdma.AccessRelaxedOrdering})
			return keep(r, &r.mr, v, err)
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// close closes the open objects in reverse order, and retries each failure once.
func (r *rig) close() error {
	var errs []error
	for _, c := range slices.Backward(r.opened) {
		if err := c.Close(); err != nil {
			errs = append(errs, err, c.Close())
		}
	}
	r.opened = nil
	return errors.Join(errs...)
}

func (r *rig) closeAtEnd(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() {
		if err := r.close(); err != nil {
			tb.Error(err)
		}
	})
}

func opened(tb testing.TB) (*library, *rig) {
	tb.Helper()
	l, api := newLibrary(tb)
	r := newRig(tb, api)
	r.closeAtEnd(tb)
	if err := r.open(); err != nil {
		tb.Fatal(err)
	}
	return l, r
}

// use calls every verb that creates nothing.
func (r *rig) use() error {
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	_, err := r.p.Devices()
	note(err)
	_, err = r.dev.QueryPort(1)
	note(err)
	_, err = r.dev.QueryGID(1, 1)
	note(err)
	note(rdmatest.Loopback(r.dev, r.qp, rdma.ConnectOptions{GIDIndex: 1}))
	_, err = r.qp.Query()
	note(err)
	note(r.cq.RequestNotify(false))
	_, err = r.qp.PostSend(make([]rdma.SendWR, 3))
	note(err)
	_, err = r.qp.PostRecv(make([]rdma.RecvWR, 3))
	note(err)
	_, err = r.srq.PostRecv(make([]rdma.RecvWR, 3))
	note(err)
	_, err = r.cq.Poll(make([]rdma.WC, 3))
	note(err)
	return errors.Join(errs...)
}

// Each verb fails in turn. The failure must be reported with its errno, earlier objects must be
// freed, and the fake library checks that no object is freed before its children.
func TestEveryVerbMayFail(t *testing.T) {
	for n := 0; ; n++ {
		l, api := newLibrary(t)
		l.failAt = n
		r := newRig(t, api)
		err := r.open()
		if err == nil {
			err = r.use()
		}
		err = errors.Join(err, r.close())
		if l.failed == "" {
			if err != nil {
				t.Fatalf("without a failure: %v", err)
			}
			if n < 20 {
				t.Fatalf("only %d verbs were called", n)
			}
			return
		}
		reported := errors.Is(err, errInjected) || l.failed == "poll_cq" && errors.Is(err, unix.EIO)
		if !reported {
			t.Fatalf("%s, call %d, failed unreported: %v", l.failed, n, err)
		}
	}
}

func TestParentsRefuseToCloseBeforeTheirChildren(t *testing.T) {
	_, r := opened(t)
	for name, c := range map[string]struct {
		close    func() error
		children int
	}{
		"provider": {r.p.Close, 1},
		"device":   {r.dev.Close, 3}, // a domain, a channel, a completion queue
		"domain":   {r.pd.Close, 4},  // a memory region, three queues
		"channel":  {r.channel.Close, 1},
		"queue":    {r.cq.Close, 4}, // for sends and receives of two queue pairs
		"shared":   {r.srq.Close, 1},
	} {
		err := c.close()
		if !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("%d objects", c.children)) {
			t.Errorf("%s: %v, want ErrBusy and %d", name, err, c.children)
		}
	}
}

func TestClosedObjectsRefuse(t *testing.T) {
	_, r := opened(t)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Devices":       func() error { _, err := r.p.Devices(); return err },
		"Open":          func() error { _, err := r.p.Open("fake0"); return err },
		"QueryPort":     func() error { _, err := r.dev.QueryPort(1); return err },
		"QueryGID":      func() error { _, err := r.dev.QueryGID(1, 0); return err },
		"AllocPD":       func() error { _, err := r.dev.AllocPD(); return err },
		"CreateChannel": func() error { _, err := r.dev.CreateCompChannel(); return err },
		"CreateCQ":      func() error { _, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 1}); return err },
		"WaitEvent":     func() error { _, err := r.dev.WaitEvent(ctx); return err },
		"RegMR":         func() error { _, err := r.pd.RegMR(mem.All(r.memory), rdma.MROptions{}); return err },
		"CreateSRQ":     func() error { _, err := r.pd.CreateSRQ(rdma.SRQCaps{MaxWR: 1}); return err },
		"CreateQP":      func() error { _, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq}); return err },
		"Wait":          func() error { _, err := r.channel.Wait(ctx); return err },
		"Poll":          func() error { _, err := r.cq.Poll(make([]rdma.WC, 1)); return err },
		"RequestNotify": func() error { return r.cq.RequestNotify(false) },
		"Modify":        func() error { return r.qp.Modify(rdma.QPAttr{}) },
		"Query":         func() error { _, err := r.qp.Query(); return err },
		"PostSend":      func() error { _, err := r.qp.PostSend(make([]rdma.SendWR, 1)); return err },
		"PostRecv":      func() error { _, err := r.qp.PostRecv(make([]rdma.RecvWR, 1)); return err },
		"SRQ.PostRecv":  func() error { _, err := r.srq.PostRecv(make([]rdma.RecvWR, 1)); return err },
	} {
		if err := call(); !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	if err := errors.Join(r.mr.Close(), r.qp.Close(), r.cq.Close(), r.dev.Close(), r.p.Close()); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestObjectsOfOthersAreRefused(t *testing.T) {
	_, r := opened(t)
	_, other := opened(t)
	if _, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: other.cq}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("queue pair with another device's queue: %v", err)
	}
	if _, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("queue pair without a completion queue: %v", err)
	}
	if _, err := r.pd.CreateQP(rdma.QPOptions{SendCQ: r.cq, RecvCQ: r.cq, SRQ: other.srq}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("queue pair with another device's shared queue: %v", err)
	}
	if _, err := r.dev.CreateCQ(rdma.CQOptions{Entries: 1, Channel: other.channel}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("completion queue with another device's channel: %v", err)
	}
}

func TestEventsFindTheirQueue(t *testing.T) {
	l, r := opened(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	channel, ok := r.channel.(*CompChannel)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	own, ok := r.cq.(*CQ)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	// The first event belongs to an unknown queue.
	l.events = []ibverbs.CQ{999, own.native}
	l.signal(uintptr(channel.native))
	l.signal(uintptr(channel.native))
	if q, err := r.channel.Wait(ctx); err != nil || q != r.cq {
		t.Errorf("event of %v, %v", q, err)
	}

	l.async = []ibverbs.AsyncEvent{
		{Type: int32(rdma.EventCQErr), Element: uintptr(own.native)},
		{Type: int32(rdma.EventQPFatal), Element: 77},
		{Type: int32(rdma.EventPortErr), Element: 0xdead_0000_0001}, // an int in a larger word
		{Type: int32(rdma.EventDeviceFatal)},
	}
	want := []rdma.AsyncEvent{
		{Type: rdma.EventCQErr, CQ: r.cq}, {Type: rdma.EventQPFatal, QPNum: 77}, {Type: rdma.EventPortErr, Port: 1}, {Type: rdma.EventDeviceFatal},
	}
	dev, ok := r.dev.(*Device)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	for _, w := range want {
		l.signal(uintptr(dev.ctx))
		if e, err := r.dev.WaitEvent(ctx); err != nil || e != w {
			t.Errorf("event %+v, %v; want %+v", e, err, w)
		}
	}
}

// A wait ends with its own context or when the channel is closed, but not with another context.
func TestWaitsEnd(t *testing.T) {
	l, r := opened(t)
	channel, ok := r.channel.(*CompChannel)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	own, ok := r.cq.(*CQ)
	if !ok {
		t.Fatal("the object is not of this package")
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	waits := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() { _, err := r.channel.Wait(ctx); done <- err }()
		return done
	}
	first := waits(ctx)
	second := waits(t.Context())
	time.Sleep(10 * time.Millisecond) // both wait by now; one of them polls the descriptor
	cancel(enough)
	if err := <-first; !errors.Is(err, enough) {
		t.Errorf("the wait whose context ended: %v", err)
	}
	if _, err := r.channel.Wait(ctx); !errors.Is(err, enough) {
		t.Errorf("a wait with an ended context: %v", err)
	}
	l.mu.Lock()
	l.events = []ibverbs.CQ{own.native}
	l.mu.Unlock()
	l.signal(uintptr(channel.native))
	if err := <-second; err != nil {
		t.Errorf("the second wait: %v", err)
	}

	third := waits(t.Context())
	time.Sleep(10 * time.Millisecond)
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if err := <-third; !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("the wait on a channel that closes: %v", err)
	}
}
