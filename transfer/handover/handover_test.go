package handover_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/handover"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is the time that a test waits for an expected event.
var patience = testkit.Patience()

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

const (
	layers    = 6
	pages     = 16
	pageBytes = 4096
	bytesAll  = layers * 2 * pages * pageBytes
)

// rig is a prefill engine with the memory here, and a decode engine with the memory there.
type rig struct {
	here, there *mem.Region
	prefill     *transfer.Engine
	remote      *transfer.Remote
	sender      *handover.Sender
	receiver    *handover.Receiver
	at          string // address of the segment
}

func newRig(t *testing.T, depth int) *rig {
	t.Helper()
	r := &rig{here: host(t), there: host(t)}
	engine := func() *transfer.Engine {
		e, err := transfer.Open(transfer.Options{})
		must(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			must(t, e.Close(ctx))
		})
		return e
	}
	decode := engine()
	s, err := decode.Publish(t.Context(), "decode")
	must(t, err)
	_, err = s.Register(t.Context(), r.there, transfer.RegisterOptions{})
	must(t, err)
	r.prefill = engine()
	r.at = decode.Address() + "/decode"
	r.remote, err = r.prefill.OpenSegment(t.Context(), r.at)
	must(t, err)
	r.sender, err = handover.NewSender(r.prefill, r.remote, handover.Options{Layers: planes(r.here), Depth: depth})
	must(t, err)
	r.receiver = handover.NewReceiver(decode, 0)
	return r
}

// planes returns the planes of keys and values of each layer. They have the same places on both
// sides.
func planes(here *mem.Region) [][]transfer.PagePlane {
	all := make([][]transfer.PagePlane, layers)
	for k := range int64(layers) {
		for i := range int64(2) {
			base := (2*k + i) * pages * pageBytes
			all[k] = append(all[k], transfer.PagePlane{
				Region: here, Base: base, Stride: pageBytes, Bytes: pageBytes, RemoteBase: base, RemoteStride: pageBytes,
			})
		}
	}
	return all
}

func host(t *testing.T) *mem.Region {
	t.Helper()
	b, err := hostmem.Alloc(bytesAll)
	must(t, err)
	t.Cleanup(func() { must(t, hostmem.Free(b)) })
	r, err := hostmem.Region(b)
	must(t, err)
	return r
}

// pairs maps local pages to different remote pages.
var pairs = []transfer.PagePair{{Local: 3, Remote: 9}, {Local: 4, Remote: 2}, {Local: 5, Remote: 15}}

// compute writes a layer's pages with unique bytes.
func (r *rig) compute(k int, seed byte) {
	for i := range 2 {
		for _, p := range pairs {
			copy(r.page(r.here, k, i, p.Local), bytes.Repeat([]byte{seed + byte(k*16+i*8) + byte(p.Local)}, pageBytes))
		}
	}
}

func (r *rig) page(of *mem.Region, layer, plane int, page uint32) []byte {
	return of.Bytes()[((2*layer+plane)*pages+int(page))*pageBytes:][:pageBytes]
}

// same reports whether the layer's pages have arrived.
func (r *rig) same(k int) bool {
	for i := range 2 {
		for _, p := range pairs {
			if !bytes.Equal(r.page(r.there, k, i, p.Remote), r.page(r.here, k, i, p.Local)) {
				return false
			}
		}
	}
	return true
}

func (r *rig) next(t *testing.T) handover.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := r.receiver.Receive(ctx)
	must(t, err)
	return e
}

// work is a dependency that stands for a computation.
type work struct {
	done chan struct{}
	err  error
}

func (w *work) Done() <-chan struct{} { return w.done }
func (w *work) Err() error            { return w.err }

// Each layer is sent when its computation ends. When the receiver reports a layer, its pages have
// arrived.
func TestLayersArriveAsTheyAreComputed(t *testing.T) {
	r := newRig(t, 0)
	for n := range 3 {
		id := fmt.Appendf(nil, "request %d", n)
		q, err := r.sender.Begin(id, pairs)
		must(t, err)
		computing := make([]*work, layers)
		for k := range layers {
			computing[k] = &work{done: make(chan struct{})}
		}
		handed := make(chan error, 1)
		go func() {
			for k, w := range computing {
				if err := q.Layer(t.Context(), k, w); err != nil {
					handed <- err
					return
				}
			}
			handed <- nil
		}()
		for k, w := range computing {
			r.compute(k, byte(n*50))
			close(w.done)
			e := r.next(t)
			if e.Layer != k || e.Layers != layers || string(e.Request) != string(id) || e.Failed || e.Complete != (k == layers-1) || e.Segment != "decode" || e.From != r.prefill.Identity() {
				t.Errorf("event %+v", e)
			}
			if !r.same(k) {
				t.Errorf("layer %d has arrived, and its pages are others", k)
			}
		}
		must(t, <-handed)
		must(t, q.Finish(t.Context()))
	}
}

// While Depth layers are in flight, the next Layer call waits.
func TestBackPressure(t *testing.T) {
	r := newRig(t, 2)
	q, err := r.sender.Begin([]byte("slow"), pairs)
	must(t, err)
	w := &work{done: make(chan struct{})}
	for k := range 2 {
		r.compute(k, 1)
		must(t, q.Layer(t.Context(), k, w))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := q.Layer(ctx, 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third layer, of two that may be under way: %v", err)
	}
	close(w.done)
	for k := 2; k < layers; k++ {
		r.compute(k, 1)
		must(t, q.Layer(t.Context(), k))
	}
	must(t, q.Finish(t.Context()))
	seen := make(map[int]bool)
	for range layers {
		e := r.next(t)
		seen[e.Layer] = true
		if e.Complete != (len(seen) == layers) || !r.same(e.Layer) {
			t.Errorf("event %+v", e)
		}
	}
	if len(seen) != layers {
		t.Errorf("layers %v", seen)
	}
}

// A request fails as a whole if a layer fails, if layers are missing, or if it is canceled. The
// receiver reports the failure once.
func TestFailures(t *testing.T) {
	broken := errors.New("the computation failed")
	for name, c := range map[string]struct {
		act  func(t *testing.T, r *rig, q *handover.Request) error
		want error
	}{
		"a layer": {func(t *testing.T, r *rig, q *handover.Request) error {
			w := &work{make(chan struct{}), broken}
			close(w.done)
			must(t, q.Layer(t.Context(), 0, w))
			for k := 1; k < layers; k++ {
				if err := q.Layer(t.Context(), k); err != nil {
					break // the request has failed
				}
			}
			return q.Finish(t.Context())
		}, broken},
		"layers are missing": {func(t *testing.T, r *rig, q *handover.Request) error {
			must(t, q.Layer(t.Context(), 1))
			return q.Finish(t.Context())
		}, errdefs.ErrCanceled},
		"it is canceled": {func(t *testing.T, r *rig, q *handover.Request) error {
			w := &work{done: make(chan struct{})} // never closed
			for k := range layers {
				if k == handover.DefaultDepth {
					break
				}
				must(t, q.Layer(t.Context(), k, w))
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(broken)
			return q.Finish(ctx)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 0)
			q, err := r.sender.Begin([]byte(name), pairs)
			must(t, err)
			if err := c.act(t, r, q); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			for {
				e := r.next(t)
				if string(e.Request) != name || e.Complete {
					t.Errorf("event %+v", e)
				}
				if e.Failed {
					break
				}
			}
			if err := q.Layer(t.Context(), 5); err == nil {
				t.Error("a layer of a request that has ended was taken")
			}
			if err := q.Finish(t.Context()); !errors.Is(err, errdefs.ErrClosed) {
				t.Errorf("a second end: %v", err)
			}
			// A second request is not affected.
			q, err = r.sender.Begin([]byte("another"), pairs)
			must(t, err)
			for k := range layers {
				r.compute(k, 9)
				must(t, q.Layer(t.Context(), k))
			}
			must(t, q.Finish(t.Context()))
			for e := r.next(t); !e.Complete; e = r.next(t) {
				if e.Failed || string(e.Request) != "another" {
					t.Fatalf("event %+v", e)
				}
			}
		})
	}
}

// If the receiver has stopped, the request fails within its timeout, and Finish reports that it
// could not send the notification.
func TestReceiverIsGone(t *testing.T) {
	r := newRig(t, 0)
	must(t, r.remoteGone(t))
	q, err := r.sender.Begin([]byte("lost"), pairs)
	must(t, err)
	for k := range layers {
		if err := q.Layer(t.Context(), k); err != nil {
			break
		}
	}
	if err := q.Finish(t.Context()); err == nil {
		t.Error("a request arrived nowhere")
	}
}

// remoteGone replaces the remote by a segment that is then closed.
func (r *rig) remoteGone(t *testing.T) error {
	t.Helper()
	e, err := transfer.Open(transfer.Options{})
	must(t, err)
	s, err := e.Publish(t.Context(), "gone")
	must(t, err)
	_, err = s.Register(t.Context(), r.there, transfer.RegisterOptions{})
	must(t, err)
	remote, err := r.prefill.OpenSegment(t.Context(), e.Address()+"/gone")
	must(t, err)
	r.sender, err = handover.NewSender(r.prefill, remote, handover.Options{Layers: planes(r.here), Timeout: 2 * time.Second})
	must(t, err)
	return e.Close(t.Context())
}

// Invalid requests and layers are refused.
func TestRefuses(t *testing.T) {
	r := newRig(t, 0)
	for name, o := range map[string]handover.Options{
		"no layers": {}, "no planes": {Layers: [][]transfer.PagePlane{{}}}, "a negative depth": {Layers: planes(r.here), Depth: -1},
	} {
		if _, err := handover.NewSender(r.prefill, r.remote, o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.sender.Begin(make([]byte, handover.MaxIDBytes+1), pairs); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a long identifier: %v", err)
	}
	if _, err := r.sender.Begin(nil, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no pages: %v", err)
	}
	q, err := r.sender.Begin(nil, pairs)
	must(t, err)
	must(t, q.Layer(t.Context(), 0))
	for k, want := range map[int]error{-1: errdefs.ErrInvalid, layers: errdefs.ErrInvalid, 0: errdefs.ErrExists} {
		if err := q.Layer(t.Context(), k); !errors.Is(err, want) {
			t.Errorf("layer %d: %v", k, err)
		}
	}
	if err := q.Finish(t.Context()); !errors.Is(err, errdefs.ErrCanceled) {
		t.Error(err)
	}
}

// TestGroups checks that the layers of each page group use that group's pages, and that layers of a
// group without pages are also reported.
func TestGroups(t *testing.T) {
	r := newRig(t, 0)
	groups := []int{0, 1, 2, 0, 1, 2}
	sender, err := handover.NewSender(r.prefill, r.remote, handover.Options{Layers: planes(r.here), Groups: groups})
	must(t, err)
	if _, err := sender.Begin([]byte("one group"), pairs); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("pages of one group of three: %v", err)
	}
	if _, err := sender.Begin([]byte("no pages"), nil, nil, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no pages: %v", err)
	}
	for i := range r.here.Bytes() {
		r.here.Bytes()[i] = byte(i>>12)*7 + 1
	}
	other := []transfer.PagePair{{Local: 8, Remote: 0}}
	q, err := sender.Begin([]byte("groups"), pairs, nil, other)
	must(t, err)
	for k := range layers {
		must(t, q.Layer(t.Context(), k))
	}
	must(t, q.Finish(t.Context()))
	for e := r.next(t); !e.Complete; e = r.next(t) {
		if e.Failed {
			t.Fatalf("event %+v", e)
		}
	}
	for k, group := range groups {
		want := map[uint32]uint32{} // maps remote pages to local pages
		for _, p := range [][]transfer.PagePair{pairs, nil, other}[group] {
			want[p.Remote] = p.Local
		}
		for i := range 2 {
			for page := range uint32(pages) {
				from, ok := want[page]
				if got := r.page(r.there, k, i, page); ok && !bytes.Equal(got, r.page(r.here, k, i, from)) || !ok && got[0] != 0 {
					t.Errorf("layer %d plane %d page %d has wrong bytes", k, i, page)
				}
			}
		}
	}
	for _, groups := range [][]int{{0}, {0, 0, 0, 0, 0, -1}, {0, 0, 0, 0, 0, 6}} {
		if _, err := handover.NewSender(r.prefill, r.remote, handover.Options{Layers: planes(r.here), Groups: groups}); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("groups %v: %v", groups, err)
		}
	}
}

// TestDefectLayerWaitsForAnother checks a layer whose batch waits to be submitted. It must not
// delay other layers or the end of the request beyond their limits, and ends with the request.
func TestDefectLayerWaitsForAnother(t *testing.T) {
	r := newRig(t, 0)
	e, err := transfer.Open(transfer.Options{Batches: 1})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close(context.Background())) })
	remote, err := e.OpenSegment(t.Context(), r.at)
	must(t, err)
	sender, err := handover.NewSender(e, remote, handover.Options{Layers: planes(r.here)})
	must(t, err)
	gate := &work{done: make(chan struct{})}
	_, err = e.Submit(t.Context(), []transfer.Task{{Op: transfer.Write, Segment: remote, Local: mem.Extent{Region: r.here}}}, transfer.SubmitOptions{After: []mem.Dependency{gate}})
	must(t, err)
	q, err := sender.Begin([]byte("no room"), pairs)
	must(t, err)
	first := make(chan error, 1)
	go func() { first <- q.Layer(context.Background(), 0) }()
	time.Sleep(20 * time.Millisecond)
	within := func(what string, f func() error, want error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- f() }()
		select {
		case err := <-ended:
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		case <-time.After(patience / 4):
			t.Errorf("%s: it is waited for", what)
		}
	}
	within("another layer", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		return q.Layer(ctx, 1)
	}, context.DeadlineExceeded)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errdefs.ErrExpired)
	finished := make(chan error, 1)
	go func() { finished <- q.Finish(ended) }()
	within("the layer of a request that was given up", func() error { return <-first }, errdefs.ErrCanceled)
	close(gate.done)
	within("the request", func() error { return <-finished }, errdefs.ErrCanceled)
	if e := r.next(t); !e.Failed {
		t.Errorf("event %+v", e)
	}
}

// TestDefectIdentifierOfTheCaller checks that a request copies its identifier, so that the caller
// may change the slice.
func TestDefectIdentifierOfTheCaller(t *testing.T) {
	r := newRig(t, 0)
	id := []byte("request")
	q, err := r.sender.Begin(id, pairs)
	must(t, err)
	clear(id)
	must(t, q.Layer(t.Context(), 0))
	if e := r.next(t); string(e.Request) != "request" {
		t.Errorf("event %+v", e)
	}
	if err := q.Finish(t.Context()); !errors.Is(err, errdefs.ErrCanceled) {
		t.Error(err)
	}
}
