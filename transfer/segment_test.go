package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// TestDefectStoppedImporterStopsTheSegment: as long as an importer does not let go of memory that is being unregistered, others still learn
// what the segment has, more is registered, and closing it ends with its context.
func TestDefectStoppedImporterStopsTheSegment(t *testing.T) {
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	more := host(t, 4096)
	p := newPair(t, Options{Share: shareServer(t)}, Options{})
	_, err = p.segment.Register(t.Context(), h.Region(), RegisterOptions{Source: h})
	must(t, err)
	theirs, err := importer(t, nil).Import(t.Context(), *p.segment.Describe().Buffers[0].Share)
	must(t, err)
	origin := theirs.Region().Origin()
	must(t, origin.Acquire())
	unregistered := make(chan error, 1)
	defer func() {
		origin.Release()
		must(t, <-unregistered)
		must(t, p.segment.Close(t.Context()))
		must(t, theirs.Close())
	}()
	go func() { unregistered <- p.segment.Unregister(context.Background(), 0) }()
	until(t, "it is not withdrawn", func() bool { return origin.Check() != nil })
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	must(t, p.remote.Refresh(within(5*time.Second)))
	off, err := p.segment.Register(t.Context(), more, RegisterOptions{})
	must(t, err)
	must(t, p.segment.Unregister(within(5*time.Second), off))
	wantErr(t, "unregister what another call waits for", p.segment.Unregister(within(50*time.Millisecond), 0), errdefs.ErrBusy)
	wantErr(t, "close", p.segment.Close(within(50*time.Millisecond)), errdefs.ErrBusy)
	_, err = p.segment.Register(t.Context(), more, RegisterOptions{})
	wantErr(t, "register in a closed segment", err, errdefs.ErrClosed)
}

// TestDefectRefreshHoldsBatchesUp: batches move while a refresh waits for an exporter that does not answer.
func TestDefectRefreshHoldsBatchesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "silent.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	there, here := host(t, 4096), host(t, 4096)
	p := newPair(t, Options{Share: shareServer(t)}, Options{Importer: importer(t, nil)}, there)
	off, err := p.segment.Register(t.Context(), h.Region(), RegisterOptions{Source: h})
	must(t, err)
	p.segment.mu.Lock()
	p.segment.buffers[1].desc.Share.Socket = path
	p.segment.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refreshed := make(chan error, 1)
	go func() { refreshed <- p.remote.Refresh(ctx) }()
	c, err := l.AcceptUnix() // it asks
	must(t, err)
	moved := make(chan error, 1)
	go func() {
		b, err := p.initiator.Submit(t.Context(), []Task{{Op: Write, Segment: p.remote, Local: mem.All(here)}}, SubmitOptions{})
		if err == nil {
			err = wait(t, b)
		}
		moved <- err
	}()
	select {
	case err := <-moved:
		moved <- err
	case err := <-refreshed:
		t.Errorf("the refresh ended first: %v", err)
		refreshed <- err
	case <-time.After(testkit.Patience()):
		t.Error("a batch waits for the refresh")
	}
	cancel()
	must(t, <-refreshed)
	must(t, <-moved)
	wantErr(t, "what was not imported", p.remote.Shared(off), context.Canceled)
	must(t, c.Close())
}

// TestDefectSegmentsNICsChange: a segment that is said to have other NICs than it had is refused: parts on their way go by keys of the first.
func TestDefectSegmentsNICsChange(t *testing.T) {
	p := newPair(t, Options{}, Options{}, host(t, 4096))
	p.remote.mu.Lock()
	p.remote.desc.NICs = []string{"nic0", "nic1"}
	p.remote.mu.Unlock()
	wantErr(t, "other NICs", p.remote.Refresh(t.Context()), errdefs.ErrMismatch)
}

// TestDefectPagesOfABufferThatIsShorterNow: pages that are cut into parts lie in the buffer as it is by then, to the last of every plane.
func TestDefectPagesOfABufferThatIsShorterNow(t *testing.T) {
	const page = 4096
	there, here := host(t, 8*page), host(t, 8*page)
	p := newPair(t, Options{}, Options{}, there)
	plane := func(k int64) PagePlane {
		return PagePlane{Region: here, Base: 4 * k * page, Stride: page, Bytes: page, RemoteBase: 4 * k * page, RemoteStride: page}
	}
	for _, planes := range [][]PagePlane{{plane(1)}, {plane(0), plane(1)}} {
		before := &dependency{done: make(chan struct{})}
		b := p.submit(t, SubmitOptions{Timeout: patience, After: []mem.Dependency{before}}, Task{Op: Write, Pages: &Pages{Planes: planes, Pairs: []PagePair{{0, 0}, {3, 3}}}})
		p.remote.mu.Lock()
		whole := p.remote.buffers[0]
		shorter := *whole
		shorter.Length = 7 * page
		p.remote.buffers[0] = &shorter
		p.remote.mu.Unlock()
		close(before.done)
		wantErr(t, "a last page beyond the buffer", wait(t, b), errdefs.ErrInvalid)
		p.remote.mu.Lock()
		p.remote.buffers[0] = whole
		p.remote.mu.Unlock()
	}
}

// TestDefectDescriptionLongerThanAFrame: more is not registered than a segment can be described with, and a request whose answer is too long
// is refused, on a connection that goes on.
func TestDefectDescriptionLongerThanAFrame(t *testing.T) {
	there := host(t, 4096)
	p := newPair(t, Options{}, Options{}, there)
	o := RegisterOptions{Name: strings.Repeat("<", MaxNameBytes)} // which JSON writes in six bytes
	var err error
	for n := 1; err == nil; n++ {
		_, err = p.segment.Register(t.Context(), there, o)
		if n == MaxBuffers {
			t.Fatal("there is no end to it")
		}
	}
	wantErr(t, "one more", err, errdefs.ErrBusy)
	must(t, p.remote.Refresh(t.Context()))
	if n := len(p.remote.Describe().Buffers); n < 1000 || n >= MaxBuffers {
		t.Errorf("%d buffers", n)
	}
	p.segment.mu.Lock()
	p.segment.buffers[0].desc.Name = strings.Repeat("x", maxFramePayload)
	p.segment.mu.Unlock()
	var refused *refusal
	if err := p.remote.Refresh(t.Context()); !errors.As(err, &refused) || !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an answer that is too long: %v", err)
	}
	if s, there := p.initiator.Stats(), p.target.Stats(); s.Reconnects != 0 || there.Malformed != 0 {
		t.Errorf("%d connections were made again, %d made no sense", s.Reconnects, there.Malformed)
	}
}

// TestDefectClosedRemoteConnects: a segment that was closed is neither refreshed nor probed, and nothing connects to its engine again: nobody would
// close the connection.
func TestDefectClosedRemoteConnects(t *testing.T) {
	p := newPair(t, Options{}, Options{}, host(t, 4096))
	must(t, p.remote.Close())
	connections := func() int { return p.target.Stats().Connections }
	until(t, "the connection stays", func() bool { return connections() == 0 })
	wantErr(t, "refresh", p.remote.Refresh(t.Context()), errdefs.ErrClosed)
	_, err := p.remote.Probe(t.Context())
	wantErr(t, "probe", err, errdefs.ErrClosed)
	// A probe that began before the end asks later.
	wantErr(t, "a late call", p.remote.p.call(t.Context(), callProbe, struct{}{}, nil), errdefs.ErrClosed)
	if n := connections(); n != 0 {
		t.Errorf("%d connections that nobody closes", n)
	}
	p.open(t, p.target.Address())
	other := p.remote // the engine is connected still
	p.open(t, p.target.Address())
	must(t, p.remote.Close())
	_, err = p.remote.Probe(t.Context())
	wantErr(t, "probe beside another", err, errdefs.ErrClosed)
	_, err = other.Probe(t.Context())
	must(t, err)
}

// TestDefectRegisterWaitsWithoutEnd: memory is registered after another call has ended, or the caller has waited for long enough.
func TestDefectRegisterWaitsWithoutEnd(t *testing.T) {
	p := newPair(t, Options{}, Options{})
	p.segment.changeLock <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := p.segment.Register(ctx, host(t, 4096), RegisterOptions{})
	wantErr(t, "beside another call", err, errdefs.ErrBusy)
	<-p.segment.changeLock
	_, err = p.segment.Register(t.Context(), host(t, 4096), RegisterOptions{})
	must(t, err)
}

// stuckStore answers when its caller's patience ends.
type stuckStore struct{}

func (stuckStore) Put(ctx context.Context, _ string, _ []byte, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuckStore) Get(ctx context.Context, _ string) ([]byte, error) { return nil, ctx.Err() }

func (stuckStore) Delete(ctx context.Context, _ string) error { return ctx.Err() }

// TestDefectFailedPublishStays: a segment that could not be published in time is not there, and its name is free.
func TestDefectFailedPublishStays(t *testing.T) {
	e := engine(t, Options{Store: stuckStore{}})
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := e.Publish(ctx, "kv")
		cancel()
		wantErr(t, "publish", err, context.DeadlineExceeded)
		if n := e.Stats().Segments; n != 0 {
			t.Fatalf("%d segments are there", n)
		}
	}
}

// TestDefectUnspecifiedAddressIsAdvertised: others are not told of an address at which each of them would reach itself.
func TestDefectUnspecifiedAddressIsAdvertised(t *testing.T) {
	for _, o := range []Options{{Listen: ":0"}, {Listen: "0.0.0.0:0"}, {Listen: "[::]:0"}, {Listen: "127.0.0.1:0", Advertise: "0.0.0.0:7200"}, {Advertise: ":7200"}} {
		e, err := Open(o)
		wantErr(t, o.Listen+" "+o.Advertise, err, errdefs.ErrInvalid)
		if err == nil {
			closeEngine(t, e)
		}
	}
	if e := engine(t, Options{Listen: ":0", Advertise: "localhost:7200"}); e.Address() != "localhost:7200" {
		t.Errorf("it advertises %s", e.Address())
	}
}

// slowStore takes a while for each value, fails for some, and notes for which more time has passed than they were kept.
type slowStore struct {
	stuckStore
	takes time.Duration
	fails string

	mu    sync.Mutex
	until map[string]time.Time
	late  int
}

func (s *slowStore) Put(ctx context.Context, key string, _ []byte, ttl time.Duration) error {
	if !pause(ctx, s.takes) {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if until, there := s.until[key]; there && time.Now().After(until) {
		s.late++
	}
	s.until[key] = time.Now().Add(ttl)
	if strings.HasSuffix(key, s.fails) && len(s.until) > 100 {
		return errdefs.ErrBusy
	}
	return nil
}

// TestDefectLeasesRunOut checks that the leases of many segments are renewed in time although the store is slow and refuses some.
func TestDefectLeasesRunOut(t *testing.T) {
	testkit.Grow(t, 2*time.Second, func(lease time.Duration) error { return leasesRunOut(t, lease) })
}

func leasesRunOut(t *testing.T, lease time.Duration) error {
	s := &slowStore{takes: lease * 3 / 400, fails: "7", until: make(map[string]time.Time)}
	o := Options{Store: s, Lease: lease}
	e := engine(t, o)
	var publishing sync.WaitGroup
	for i := range 200 {
		publishing.Go(func() {
			if _, err := e.Publish(t.Context(), fmt.Sprintf("kv-%d", i)); err != nil && !errors.Is(err, errdefs.ErrBusy) {
				t.Error(err)
			}
		})
	}
	publishing.Wait()
	n := e.Stats().Segments
	until(t, "nobody says that some are refused", func() bool { return e.Stats().Metadata != nil })
	time.Sleep(2 * o.Lease)
	s.mu.Lock()
	defer s.mu.Unlock()
	late := s.late
	for i := range 200 {
		if key := keyPrefix + fmt.Sprintf("kv-%d", i); !strings.HasSuffix(key, s.fails) && time.Now().After(s.until[key]) {
			late++
		}
	}
	if late > 0 {
		return fmt.Errorf("%d of %d leases ran out", late, n)
	}
	return nil
}
