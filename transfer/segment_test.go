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

// TestDefectStoppedImporterStopsTheSegment checks a segment with an importer that does not release
// memory that is being unregistered. Other peers can still refresh the segment, more memory can be
// registered, and Close ends with its context.
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

// TestDefectRefreshHoldsBatchesUp checks that batches run while a refresh waits for an exporter
// that does not answer.
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
	c, err := l.AcceptUnix() // the import request
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

// TestDefectSegmentsNICsChange checks that a refresh is refused if the segment reports other NICs
// than before. Parts in flight use keys of the first NICs.
func TestDefectSegmentsNICsChange(t *testing.T) {
	p := newPair(t, Options{}, Options{}, host(t, 4096))
	p.remote.mu.Lock()
	p.remote.desc.NICs = []string{"nic0", "nic1"}
	p.remote.mu.Unlock()
	wantErr(t, "other NICs", p.remote.Refresh(t.Context()), errdefs.ErrMismatch)
}

// TestDefectPagesOfABufferThatIsShorterNow checks the bounds of pages after their buffer was
// replaced by a shorter one. Each part must fit the buffer of that time, to the last page of every
// plane.
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

// TestDefectDescriptionLongerThanAFrame checks that a segment does not register more memory than
// its description has space for. A request whose answer is too long is refused, and its connection
// stays usable.
func TestDefectDescriptionLongerThanAFrame(t *testing.T) {
	there := host(t, 4096)
	p := newPair(t, Options{}, Options{}, there)
	o := RegisterOptions{Name: strings.Repeat("<", MaxNameBytes)} // JSON encodes this character in six bytes
	var err error
	for n := 1; err == nil; n++ {
		_, err = p.segment.Register(t.Context(), there, o)
		if n == MaxBuffers {
			t.Fatal("the number of registrations has no limit")
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

// TestDefectClosedRemoteConnects checks that a closed Remote is neither refreshed nor probed and
// does not reconnect to the engine. Such a connection would never be closed.
func TestDefectClosedRemoteConnects(t *testing.T) {
	p := newPair(t, Options{}, Options{}, host(t, 4096))
	must(t, p.remote.Close())
	connections := func() int { return p.target.Stats().Connections }
	until(t, "the connection stays", func() bool { return connections() == 0 })
	wantErr(t, "refresh", p.remote.Refresh(t.Context()), errdefs.ErrClosed)
	_, err := p.remote.Probe(t.Context())
	wantErr(t, "probe", err, errdefs.ErrClosed)
	// A probe that started before Close makes its call later.
	wantErr(t, "a late call", p.remote.p.call(t.Context(), callProbe, struct{}{}, nil), errdefs.ErrClosed)
	if n := connections(); n != 0 {
		t.Errorf("%d connections are never closed", n)
	}
	p.open(t, p.target.Address())
	other := p.remote // the engine is still connected
	p.open(t, p.target.Address())
	must(t, p.remote.Close())
	_, err = p.remote.Probe(t.Context())
	wantErr(t, "probe beside another", err, errdefs.ErrClosed)
	_, err = other.Probe(t.Context())
	must(t, err)
}

// TestDefectRegisterWaitsWithoutEnd checks that Register waits for another call only until its
// context ends.
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

// stuckStore is a metadata store whose calls return only when their context ends.
type stuckStore struct{}

func (stuckStore) Put(ctx context.Context, _ string, _ []byte, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuckStore) Get(ctx context.Context, _ string) ([]byte, error) { return nil, ctx.Err() }

func (stuckStore) Delete(ctx context.Context, _ string) error { return ctx.Err() }

// TestDefectFailedPublishStays checks that a segment whose Publish timed out does not exist and
// that its name is free.
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

// TestDefectUnspecifiedAddressIsAdvertised checks that an engine does not advertise an unspecified
// address, which every other host would resolve to itself.
func TestDefectUnspecifiedAddressIsAdvertised(t *testing.T) {
	for _, o := range []Options{{Listen: ":0"}, {Listen: "0.0.0.0:0"}, {Listen: "[::]:0"}, {Listen: "127.0.0.1:0", Advertise: "0.0.0.0:7200"}, {Advertise: ":7200"}} {
		e, err := Open(o)
		wantErr(t, o.Listen+" "+o.Advertise, err, errdefs.ErrInvalid)
		if err == nil {
			closeEngine(t, e)
		}
	}
	if e := engine(t, Options{Listen: ":0", Advertise: "localhost:7200"}); e.Address() != "localhost:7200" {
		t.Errorf("the engine advertises %s", e.Address())
	}
}

// slowStore is a metadata store with slow writes, some of which fail. It counts the values that
// expired before they were renewed.
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

// TestDefectLeasesRunOut checks that the leases of many segments are renewed in time, although the
// store is slow and refuses some writes.
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
