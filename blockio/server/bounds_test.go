package server

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/wire"
)

// Clients without a credential that announce and send long hellos take little memory.
func TestHelloTakesLittleMemory(t *testing.T) {
	r := newRig(t, Options{}, 8)
	const conns, sent = 64, 1 << 20
	prefix := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 2<<20), 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	hello := append(prefix, make([]byte, sent)...)
	for range conns {
		nc, err := r.dial(t.Context())
		must(t, err)
		t.Cleanup(func() { _ = nc.Close() })
		_, _ = nc.Write(hello) // the server may have closed the connection
	}
	until(t, "long hellos are not refused", func() bool { return r.Stats().Refused == conns })
	runtime.ReadMemStats(&after)
	if n := int64(after.TotalAlloc - before.TotalAlloc); n > sent+conns*(sent/4) {
		t.Errorf("%d hellos of %d bytes took %d bytes of memory", conns, sent, n)
	}
	h := blockio.Hello{ID: 1, RemainingMillis: 1, Client: [16]byte{1}, Limits: blockio.DefaultLimits()}
	for i := range 5 {
		h.Formats = append(h.Formats, blockio.Format{Identity: block.Digest{byte(i + 1)}, ShardBytes: make([]int64, block.MaxShards)})
	}
	if err := h.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "fewer identities or shards") {
		t.Errorf("a hello that is too long: %v", err)
	}
}

// A tenant leaves connections for others. A refusal names the bound, and is counted.
func TestTenantsShareConnections(t *testing.T) {
	a, cert, file := tokenServer(t)
	r := newRig(t, Options{Auth: a, Connections: 8}, 8)
	client := func(token string) *blockio.Client {
		t.Helper()
		c, err := auth.NewClient(auth.ClientOptions{CAFile: cert, TokenFile: file(token)})
		must(t, err)
		return r.client(t, blockio.ClientOptions{Token: c.Token(), Retries: -1, Dial: func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: c.TLS(r.addr)}).DialContext(ctx, "tcp", r.addr)
		}})
	}
	stat := func(c *blockio.Client) error {
		_, err := c.Stat(t.Context())
		return err
	}
	var ofA []*blockio.Client
	var err error
	for err == nil && len(ofA) < 9 {
		c := client(tokenA)
		if err = stat(c); err == nil {
			ofA = append(ofA, c)
		}
	}
	if len(ofA) != 6 || !errors.Is(err, errdefs.ErrBusy) || !strings.Contains(err.Error(), "--max-connections") {
		t.Errorf("a tenant has %d of 8 connections, and then %v", len(ofA), err)
	}
	must(t, stat(client(tokenB)))
	until(t, "the refused connection did not end", func() bool { return r.Stats().Connections == 7 })
	if s := r.Stats(); s.Full != 1 || s.Refused != 1 {
		t.Errorf("statistics %+v", s)
	}
	must(t, ofA[0].Close(t.Context()))
	must(t, ofA[1].Close(t.Context()))
	last := client(tokenA)
	until(t, "ended connections are not free", func() bool { return stat(last) == nil })
}

// Without credentials all connections are those of one tenant.
func TestConnectionsAreBounded(t *testing.T) {
	r := newRig(t, Options{Connections: 2}, 8)
	for range 2 {
		r.raw(t)
	}
	_, err := r.client(t, blockio.ClientOptions{Retries: -1}).Stat(t.Context())
	wantErr(t, "a third connection", err, errdefs.ErrBusy)
}

// exist returns a request about the most keys of a connection.
func exist(r *rig, id uint64, millis uint32) *blockio.Request {
	return &blockio.Request{Op: blockio.OpExist, ID: id, RemainingMillis: millis, Keys: entries(r.formats[0], int(blockio.DefaultLimits().Keys))}
}

// While other connections have the memory for requests, a request waits for it until its time ends.
// Short requests of other connections do not wait.
func TestRequestsWaitForMemory(t *testing.T) {
	r := newRig(t, Options{}, 8)
	if !r.memory.tryTake("other", requestMemory) {
		t.Fatal("the memory for requests is in use")
	}
	late, patient, short := r.raw(t), r.raw(t), r.raw(t)
	_, err := late.Write(frame(t, exist(r, 2, 20)))
	must(t, err)
	_, err = patient.Write(frame(t, exist(r, 2, 60000)))
	must(t, err)
	if got := late.result(t); got.Status != blockio.StatusTimeout || len(got.Presence) > 0 {
		t.Errorf("a request without memory has the result %v of %d keys", got.Status, len(got.Presence))
	}
	short.send(t, &blockio.Request{Op: blockio.OpStat, ID: 2, RemainingMillis: 60000})
	if got := short.result(t); got.Status != blockio.StatusOK {
		t.Errorf("a short request has the result %v", got.Status)
	}
	until(t, "a request does not wait", func() bool { return r.Stats().Waited == 2 })
	if s := r.Stats(); s.TimedOut != 1 || s.FailedEntries != 2048 {
		t.Errorf("statistics %+v", s)
	}
	r.memory.release("other", requestMemory)
	if got := patient.result(t); got.Status != blockio.StatusOK || len(got.Presence) != 2048 {
		t.Errorf("a request with memory has the result %v of %d keys", got.Status, len(got.Presence))
	}
	until(t, "memory is left in use", func() bool { return r.memory.tryTake("other", requestMemory) })
}

// stalledTier has lookups that wait.
type stalledTier struct {
	tier.Tier
	wait chan struct{}
}

func (s stalledTier) Lookup(ctx context.Context, keys []block.Key, states []tier.State) error {
	<-s.wait
	return s.Tier.Lookup(ctx, keys, states)
}

// While a disk hangs, the requests of a connection take bounded memory, also those whose result was
// sent without the disk.
func TestMemoryOfRequestsThatHang(t *testing.T) {
	wait, d := make(chan struct{}), disks["file"](t.TempDir(), nil)
	open := d.Open
	d.Open = func(ctx context.Context, dir string, f block.Format) (tier.Tier, error) {
		inner, err := open(ctx, dir, f)
		return stalledTier{inner, wait}, err
	}
	r := newDiskRig(t, Options{}, 8, d)
	c := r.raw(t)
	const sent = 3 * connectionBytes / (4 * 40 * 2048)
	go func() {
		for i := range uint64(sent) {
			_, _ = c.Write(frame(t, exist(r, 2+i, 50)))
		}
	}()
	for range sent {
		if got := c.result(t); got.Status != blockio.StatusTimeout {
			t.Errorf("a lookup on a hanging disk has the result %v", got.Status)
		}
	}
	r.memory.mu.Lock()
	used := r.memory.used
	r.memory.mu.Unlock()
	if used > connectionBytes || used < connectionBytes/2 {
		t.Errorf("a connection has %d bytes for %d requests, of %d", used, sent, connectionBytes)
	}
	close(wait)
	until(t, "memory is left in use", func() bool {
		r.memory.mu.Lock()
		defer r.memory.mu.Unlock()
		return r.memory.used == 0
	})
}

// A client that reads no results of its control requests slows itself down, and gets them all.
func TestControlRequestsWithoutReads(t *testing.T) {
	r := newRig(t, Options{}, 8)
	c := r.raw(t)
	const sent = 100_000
	go func() {
		for i := range uint64(sent) {
			if _, err := c.Write(frame(t, &blockio.Request{Op: blockio.OpKeepAlive, ID: 2 + i, RemainingMillis: 60000})); err != nil {
				t.Errorf("keep-alive %d: %v", i, err)
				return
			}
		}
	}()
	time.Sleep(300 * time.Millisecond)
	for i := range uint64(sent) {
		if got := c.result(t); got.ID != 2+i {
			t.Fatalf("result of request %d, want %d", got.ID, 2+i)
		}
	}
}

// The memory that is kept for further requests is bounded.
func TestEndedRequestsKeepLittleMemory(t *testing.T) {
	c := &conn{s: new(Server)}
	c.s.o.Host, _ = blockhost.New(blockhost.Options{CapacityBytes: 1 << 20})
	for range 200 {
		a := &answer{request: blockio.Request{Op: blockio.OpStore, Entries: make([]blockio.Entry, 256)}}
		c.s.inFlight.Add(1)
		c.finish(a)
	}
	if n := len(c.ended); n == 0 || c.kept > keptBytes || n*256*88 > keptBytes {
		t.Errorf("%d requests with %d bytes are kept", n, c.kept)
	}
	for len(c.ended) > 0 {
		c.newAnswer()
	}
	if c.kept != 0 {
		t.Errorf("no requests with %d bytes are kept", c.kept)
	}
}

// A hello of another version has a result, whose version is the answer.
func TestHelloOfAnotherVersion(t *testing.T) {
	r := newRig(t, Options{}, 8)
	nc, err := r.dial(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	w, in := wire.NewFrameWriter(nc), wire.NewFrameReader(nc, 1<<10, 0)
	body := make([]byte, 40)
	body[0], body[1] = blockio.Version+1, byte(blockio.OpHello)
	must(t, errors.Join(w.Append(body), w.Flush()))
	b, _, err := in.Next()
	must(t, err)
	var got blockio.HelloResult
	must(t, got.Decode(b))
	if got.Status != blockio.StatusMismatch {
		t.Errorf("the result is %v", got.Status)
	}
}

// Several tenants that take all they can leave a part for another one.
func TestShares(t *testing.T) {
	s := newShares(100, true)
	for range 200 {
		s.tryTake("a", 1)
	}
	for range 200 {
		s.tryTake("b", 1)
	}
	if a, b := s.of["a"], s.of["b"]; a != 75 || b < 10 || s.used != a+b || !s.tryTake("c", 1) {
		t.Errorf("two tenants have %d and %d of 100", a, b)
	}
	s.release("a", 75)
	if s.of["a"] != 0 || !s.tryTake("a", 50) {
		t.Errorf("shares after a release: %v", s.of)
	}
	one := newShares(100, false)
	if !one.tryTake("a", 60) || !one.tryTake("a", 40) || one.tryTake("a", 1) {
		t.Errorf("shares of a single tenant: %v", one.of)
	}
}
