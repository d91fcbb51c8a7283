package transfer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/share"
)

// usage counts resources of the process that a leak would increase.
type usage struct{ files, mappings, goroutines, heap, resident int } // heap and resident in bytes

func currentUsage(tb testing.TB) (h usage) {
	tb.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(tb, err)
	maps, err := os.ReadFile("/proc/self/maps")
	must(tb, err)
	debug.FreeOSMemory() // also collects garbage
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	statm, err := os.ReadFile("/proc/self/statm")
	must(tb, err)
	var size, resident int
	_, err = fmt.Sscan(string(statm), &size, &resident)
	must(tb, err)
	return usage{len(files), strings.Count(string(maps), "memfd:kvlane"), runtime.NumGoroutine(), int(m.HeapAlloc), resident * os.Getpagesize()}
}

// noMore waits until the process uses no more resources than before, apart from a small tolerance
// for other code.
func noMore(tb testing.TB, before usage) {
	tb.Helper()
	// A thousand leaks of a few kilobytes, or of a page of 64 KiB, exceed these limits.
	const few, heap, resident = 8, 2 << 20, 32 << 20
	var now usage
	until(tb, fmt.Sprintf("before: %+v", before), func() bool {
		now = currentUsage(tb)
		return now.files <= before.files+few && now.mappings <= before.mappings && now.goroutines <= before.goroutines+few &&
			now.heap <= before.heap+heap && (testkit.Race || now.resident <= before.resident+resident)
	})
	tb.Logf("%+v, and before %+v", now, before)
}

// TestSegmentsComeAndGo checks that a thousand segments leave no resources in the process or the
// metadata store. The same holds for memory that is registered and unregistered in an open segment.
func TestSegmentsComeAndGo(t *testing.T) {
	server := metadata.NewServer(metadata.ServerOptions{})
	store := httpStore(t, server)
	there, here := host(t, 1<<16), host(t, 1<<16)
	target, initiator := engine(t, Options{Store: store, Share: shareServer(t)}), engine(t, Options{Store: store, Importer: importer(t, nil)})
	stays, err := target.Publish(t.Context(), "stays")
	must(t, err)
	long, err := initiator.OpenSegment(t.Context(), "stays")
	must(t, err)
	before := currentUsage(t)
	for i := range 1000 {
		registerOnce(t, stays, long)
		name := fmt.Sprintf("kv-%d", i)
		s, err := target.Publish(t.Context(), name)
		must(t, err)
		_, err = s.Register(t.Context(), there, RegisterOptions{})
		must(t, err)
		if i%10 == 0 {
			r, err := initiator.OpenSegment(t.Context(), name)
			must(t, err)
			b, err := initiator.Submit(t.Context(), []Task{{Op: Write, Segment: r, Local: mem.All(here)}}, SubmitOptions{})
			must(t, err)
			must(t, wait(t, b))
			must(t, r.Close())
		}
		must(t, s.Close(t.Context()))
	}
	if n, s := server.Len(), target.Stats(); n != 1 || s.Segments != 1 {
		t.Errorf("%d are in the store, %d in the engine", n, s.Segments)
	}
	must(t, long.Refresh(t.Context()))
	noMore(t, before)
}

// registerOnce registers memory in a segment, lets a Remote import it, and unregisters it.
func registerOnce(t *testing.T, s *Segment, r *Remote) {
	t.Helper()
	h, err := share.AllocHost(nil, 1<<16)
	must(t, err)
	clear(h.Region().Bytes()) // makes the memory resident
	off, err := s.Register(t.Context(), h.Region(), RegisterOptions{Source: h})
	must(t, err)
	must(t, r.Refresh(t.Context()))
	must(t, r.Shared(off))
	must(t, s.Unregister(t.Context(), off))
	must(t, h.Close())
}

// targetProcess is a process with a segment.
type targetProcess struct {
	cmd  *exec.Cmd
	addr string
}

// startTarget starts a target process. The caller must kill it.
func startTarget(n int64, dir string, gpu ...string) (*targetProcess, error) {
	p := &targetProcess{cmd: exec.CommandContext(context.Background(), "/proc/self/exe", append([]string{fmt.Sprint(n), dir}, gpu...)...)}
	p.cmd.Env = append(os.Environ(), roleEnv+"=target")
	p.cmd.Stderr = os.Stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // the process exits when its input is closed
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("the target printed %q: %w", line, err)
	}
	p.addr = strings.TrimSpace(line)
	return p, nil
}

func (p *targetProcess) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// TestKilledPeers kills processes during batches. No resources may be left, and every task must end
// long before its deadline. Half of the memory is reached over sockets, half is imported.
func TestKilledPeers(t *testing.T) {
	peers := 200
	if testing.Short() || testkit.Race {
		peers = 20
	}
	const n, atOnce = 1 << 20, 4
	here := host(t, n)
	in := importer(t, nil)
	e := engine(t, Options{Importer: in, PartBytes: 32 << 10})
	dir := t.TempDir() + "/s"
	before := currentUsage(t)
	var all sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i := range peers {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			killOne(t, e, here, dir, i)
		})
	}
	all.Wait()
	noMore(t, before)
}

func killOne(t *testing.T, e *Engine, here *mem.Region, dir string, i int) {
	p, err := startTarget(here.Len(), dir)
	if err != nil {
		t.Error(err)
		return
	}
	defer p.kill()
	r, err := e.OpenSegment(t.Context(), p.addr+"/kv")
	if err != nil {
		t.Error(err)
		return
	}
	o := SubmitOptions{Timeout: patience}
	if i%2 == 0 {
		o.Path = PathTCP
	}
	var batches []*Batch
	for range 4 {
		b, err := e.Submit(t.Context(), []Task{{Op: Read, Segment: r, Local: mem.All(here)}}, o)
		if err != nil {
			t.Error(err)
			return
		}
		batches = append(batches, b)
		if len(batches) == 2 {
			p.kill()
		}
	}
	begun := time.Now()
	for k, b := range batches {
		if err := wait(t, b); k == 3 && !errors.Is(err, errdefs.ErrLost) {
			t.Errorf("a batch after the peer's end: %v", err)
		}
	}
	if took := time.Since(begun); took > patience*3/4 {
		t.Errorf("%v until all batches had ended", took)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestRestartedPeer checks that an engine that starts at the address of a dead one is recognized as
// a new engine.
func TestRestartedPeer(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { restartedPeer(t, nil) })
	t.Run("rdma", func(t *testing.T) { restartedPeer(t, softNICs(t, nil, 1)) })
}

func restartedPeer(t *testing.T, nics *rail.NICs) {
	there, here := host(t, 1<<16), host(t, 1<<16)
	o := Options{NICs: nics}
	p := newPair(t, o, o, there)
	p.local(t, here)
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	addr := p.target.Address()
	closeEngine(t, p.target)
	gone := p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Write, Local: mem.All(here)})
	wantErr(t, "a write to an engine that is gone", wait(t, gone), errdefs.ErrLost)
	var retry *Engine
	until(t, "the address is not free", func() (ok bool) {
		var err error
		retry, err = Open(Options{Listen: addr, NICs: nics})
		return err == nil
	})
	old := p.remote
	err := old.Refresh(t.Context())
	wantErr(t, "a refresh after the restart", err, errdefs.ErrLost)
	if !strings.Contains(err.Error(), "restart") {
		t.Errorf("a refresh after the restart: %v", err)
	}
	p.target = retry
	t.Cleanup(func() { closeEngine(t, retry) })
	p.publish(t, there)
	pattern(here.Bytes(), 1)
	before := append([]byte(nil), there.Bytes()...)
	b := p.submit(t, SubmitOptions{Timeout: patience}, Task{Op: Write, Segment: old, Local: mem.All(here)})
	wantErr(t, "a write to the engine before", wait(t, b), errdefs.ErrLost)
	same(t, "memory of the one after", there.Bytes(), before)
	p.open(t, addr)
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	same(t, "after it was opened again", there.Bytes(), here.Bytes())
}

// httpStore returns a metadata client for a server with handler h.
func httpStore(t *testing.T, h http.Handler) *metadata.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := metadata.NewClient(s.URL+"/metadata", patience)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// TestMetadataServerIsGone stops the metadata server. Transfers must continue, and opening a
// segment must fail with the reason. A new, empty server must get all live segments again.
func TestMetadataServerIsGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	serve := func(l net.Listener) *httptest.Server {
		h := httptest.NewUnstartedServer(metadata.NewServer(metadata.ServerOptions{}))
		_ = h.Listener.Close()
		h.Listener = l
		h.Start()
		return h
	}
	h := serve(l)
	store, err := metadata.NewClient("http://"+addr+"/metadata", 2*time.Second)
	must(t, err)
	t.Cleanup(store.Close)
	o := Options{Store: store, Lease: 300 * time.Millisecond}
	target, initiator := engine(t, o), engine(t, o)
	there, here := host(t, 1<<16), host(t, 1<<16)
	s, err := target.Publish(t.Context(), "kv")
	must(t, err)
	_, err = s.Register(t.Context(), there, RegisterOptions{})
	must(t, err)
	var r *Remote
	// The lease may have expired before its renewal.
	until(t, "the segment is not there", func() bool {
		r, err = initiator.OpenSegment(t.Context(), "kv")
		return err == nil
	})
	move := func() {
		t.Helper()
		b, err := initiator.Submit(t.Context(), []Task{{Op: Write, Segment: r, Local: mem.All(here)}}, SubmitOptions{Timeout: patience})
		must(t, err)
		must(t, wait(t, b))
	}
	time.Sleep(2 * o.Lease)
	found := func() bool {
		r, err := initiator.OpenSegment(t.Context(), "kv")
		return err == nil && r.Close() == nil
	}
	until(t, "its lease is not renewed", found)
	h.Close()
	move()
	_, err = initiator.OpenSegment(t.Context(), "kv")
	if err == nil || errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("open while the store is stopped: %v", err)
	}
	_, err = target.Publish(t.Context(), "other")
	if err == nil {
		t.Error("publish succeeded while the store is stopped")
	}
	until(t, "nobody says that the store is gone", func() bool { return target.Stats().Metadata != nil })
	until(t, "the address is not free", func() bool {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
		return err == nil
	})
	h = serve(l)
	defer h.Close()
	until(t, "the segment does not come back", found)
	until(t, "the error stays", func() bool { return target.Stats().Metadata == nil })
	move()
	must(t, s.Close(t.Context()))
	_, err = initiator.OpenSegment(t.Context(), "kv")
	wantErr(t, "open what was closed", err, errdefs.ErrNotFound)
}

// TestClose checks that Close of an engine ends running batches and refuses later ones.
func TestClose(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { closes(t, nil) })
	t.Run("rdma", func(t *testing.T) { closes(t, softNICs(t, nil, 1)) })
}

func closes(t *testing.T, nics *rail.NICs) {
	there, here := host(t, 1<<16), host(t, 1<<16)
	o := Options{NICs: nics}
	p := newPair(t, o, o, there)
	p.local(t, here)
	p.do(t, Task{Op: Write, Local: mem.All(here)})
	b := p.submit(t, SubmitOptions{After: []mem.Dependency{&dependency{done: make(chan struct{})}}}, Task{Op: Write, Local: mem.All(here)})
	wantErr(t, "close a segment in use", p.remote.Close(), errdefs.ErrBusy)
	closeEngine(t, p.initiator)
	wantErr(t, "what was under way", b.Err(), errdefs.ErrClosed)
	_, err := p.initiator.Submit(t.Context(), []Task{{Op: Write, Segment: p.remote, Local: mem.All(here)}}, SubmitOptions{})
	wantErr(t, "submit", err, errdefs.ErrClosed)
	_, err = p.initiator.OpenSegment(t.Context(), p.target.Address())
	wantErr(t, "open", err, errdefs.ErrClosed)
	_, err = p.initiator.Publish(t.Context(), "kv")
	wantErr(t, "publish", err, errdefs.ErrClosed)
	_, err = p.initiator.Receive(t.Context())
	wantErr(t, "receive", err, errdefs.ErrClosed)
}

// TestDefectClosingEngineCutsItsAnswer closes an engine that has received a notification while its
// reply is still being sent. The batch of the notification must succeed.
func TestDefectClosingEngineCutsItsAnswer(t *testing.T) {
	there, here := host(t, 4096), host(t, 4096)
	p := newPair(t, Options{}, Options{}, there)
	inbox := &p.target.inbox
	inbox.mu.Lock() // delays the receipt of the notification
	b := p.submit(t, SubmitOptions{Notify: []byte{1}}, Task{Op: Write, Local: mem.All(here)})
	stacks := make([]byte, 1<<20)
	until(t, "the notification is there", func() bool { return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*inbox).put(")) })
	closed := make(chan error, 1)
	go func() { closed <- p.target.Close(t.Context()) }()
	until(t, "connections are closed", func() bool {
		p.target.served.mu.Lock()
		defer p.target.served.mu.Unlock()
		return p.target.served.closed
	})
	inbox.mu.Unlock()
	must(t, wait(t, b))
	must(t, <-closed)
	if n, err := p.target.Receive(t.Context()); err != nil || len(n.Body) != 1 {
		t.Errorf("%+v, %v", n, err)
	}
}
