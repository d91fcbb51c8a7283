package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/wire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}

// until waits until ok returns true, and fails with what after the test's patience.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
	}
}

// rig is a server with memory for some images of three identities.
type rig struct {
	*Server
	host    *blockhost.Host
	addr    string
	formats []block.Format
}

func newRig(t *testing.T, o Options, images int64) *rig {
	t.Helper()
	return newDiskRig(t, o, images, nil)
}

func newDiskRig(t *testing.T, o Options, images int64, disk *blockhost.Disk) *rig {
	t.Helper()
	r := new(rig)
	for i, shards := range [][]int64{{9000, 4096, 20000}, {4096}, {100, 100000}} {
		l, err := block.NewLayout(shards)
		must(t, err)
		r.formats = append(r.formats, block.Format{Identity: block.Digest{byte(i + 1), 7}, Layout: l})
	}
	var err error
	r.host, err = blockhost.New(blockhost.Options{CapacityBytes: images * r.formats[0].Layout.ImageBytes(), Disk: disk})
	must(t, err)
	o.Host = r.host
	if o.Auth == nil {
		o.Auth, err = auth.NewServer(auth.ServerOptions{})
		must(t, err)
	}
	r.Server, err = New(o)
	must(t, err)
	addr, err := r.Listen(t.Context(), "127.0.0.1:0")
	must(t, err)
	r.addr = addr.String()
	t.Cleanup(func() { r.close(t) })
	return r
}

func (r *rig) close(t *testing.T) {
	t.Helper()
	must(t, r.Close(context.Background()))
	must(t, r.host.Close(context.Background())) // fails if a block is in use
}

func (r *rig) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", r.addr)
}

func (r *rig) client(t *testing.T, o blockio.ClientOptions) *blockio.Client {
	t.Helper()
	if o.Dial == nil {
		o.Dial = r.dial
	}
	o.Timeout = min(testkit.Patience(), 5*time.Minute)
	for _, f := range r.formats {
		o.Formats = append(o.Formats, blockio.Format{Identity: f.Identity, ShardBytes: f.Layout.ShardSizes()})
	}
	c, err := blockio.NewClient(o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close(context.Background())) })
	return c
}

func key(n int) block.Key { return block.Key{byte(n), byte(n >> 8), 1} }

func entries(f block.Format, n int) (all []blockio.KeyEntry) {
	for i := range n {
		all = append(all, blockio.KeyEntry{Key: key(i), Identity: blockio.IdentityHash(f.Identity)})
	}
	return all
}

// image returns the sealed image of block n and its pieces of at most most bytes.
func image(t *testing.T, f block.Format, n int, most int64) (mem.Extent, []blockio.Piece) {
	t.Helper()
	b, err := hostmem.Alloc(f.Layout.ImageBytes())
	must(t, err)
	t.Cleanup(func() { must(t, hostmem.Free(b)) })
	for i := range f.Layout.Shards() {
		shard := b[f.Layout.ShardOff(i):][:f.Layout.ShardBytes(i)]
		for j := range shard {
			shard[j] = byte(j) ^ byte(j>>8) ^ byte(n*7+i)
		}
	}
	must(t, f.Seal(b, key(n)))
	r, err := hostmem.Region(b)
	must(t, err)
	m := mem.Extent{Region: r, Len: f.Layout.ImageBytes()}
	return m, blockio.Split(nil, key(n), f.Identity, f.Layout, m, most)
}

func store(t *testing.T, c *blockio.Client, pieces []blockio.Piece) error {
	t.Helper()
	errs := make([]error, len(pieces))
	c.Store(t.Context(), pieces, errs)
	return errors.Join(errs...)
}

func TestBlocksOfThreeIdentities(t *testing.T) {
	r := newRig(t, Options{}, 64)
	for _, most := range []int64{4096, 10000, 1 << 20} {
		c := r.client(t, blockio.ClientOptions{BatchEntries: 3})
		for _, f := range r.formats {
			m, pieces := image(t, f, int(most), most)
			want := bytes.Clone(m.Bytes())
			slices.Reverse(pieces) // any order is allowed
			must(t, store(t, c, pieces))
			must(t, store(t, c, pieces)) // the block exists already
			clear(m.Bytes())
			errs := make([]error, len(pieces))
			c.Retrieve(t.Context(), pieces, errs)
			must(t, errors.Join(errs...))
			if !bytes.Equal(m.Bytes(), want) {
				t.Errorf("%s: the bytes differ", f.Identity)
			}
		}
	}
	stat, err := r.client(t, blockio.ClientOptions{}).Stat(t.Context())
	must(t, err)
	if stat.Blocks != 9 || stat.Stores != 9 {
		t.Errorf("figures %+v", stat)
	}
}

func TestIncompleteAndDamagedBlocksAreNotFound(t *testing.T) {
	r := newRig(t, Options{}, 8)
	f := r.formats[0]
	c := r.client(t, blockio.ClientOptions{})
	m, pieces := image(t, f, 1, 4096)
	must(t, store(t, c, pieces[1:]))
	errs := make([]error, 1)
	c.Retrieve(t.Context(), pieces[1:2], errs)
	wantErr(t, "a block without its first piece", errs[0], errdefs.ErrNotFound)
	m.Bytes()[f.Layout.ShardOff(0)] ^= 1
	must(t, store(t, c, pieces[1:])) // sent again, with a flipped bit
	wantErr(t, "the last piece of a damaged image", store(t, c, pieces[:1]), errdefs.ErrCorrupt)
	m.Bytes()[f.Layout.ShardOff(0)] ^= 1
	must(t, store(t, c, pieces))
	m.Bytes()[f.Layout.ShardOff(0)] ^= 1
	wantErr(t, "a block with other bytes", store(t, c, pieces), errdefs.ErrExists)
	wrong := pieces[0]
	wrong.EndShard = 2
	wantErr(t, "shards that the bytes do not touch", store(t, c, []blockio.Piece{wrong}), errdefs.ErrInvalid)
}

func TestMemoryForHalfOfTheBlocks(t *testing.T) {
	r := newRig(t, Options{}, 10)
	c := r.client(t, blockio.ClientOptions{})
	for i := range 20 {
		for _, f := range r.formats {
			_, pieces := image(t, f, i, 1<<20)
			must(t, store(t, c, pieces))
		}
	}
	stat, err := c.Stat(t.Context())
	must(t, err)
	if stat.Bytes > stat.CapacityBytes || stat.Evictions == 0 || stat.Stores != 60 {
		t.Errorf("figures %+v", stat)
	}
	present := make([]blockio.Presence, 20)
	must(t, c.Exist(t.Context(), entries(r.formats[0], 20), present))
	if present[0].Present || !present[19].Present {
		t.Errorf("the coldest block stays, or the last one was evicted: %v", present)
	}
}

func TestLeasesKeepBlocksAndEndWithTheConnection(t *testing.T) {
	r := newRig(t, Options{}, 8)
	f, ctx := r.formats[0], t.Context()
	c, other := r.client(t, blockio.ClientOptions{}), r.client(t, blockio.ClientOptions{})
	for i := range 2 {
		_, pieces := image(t, f, i, 1<<20)
		must(t, store(t, c, pieces))
	}
	l, err := c.Lease(ctx, entries(f, 3), time.Hour)
	must(t, err)
	if l.Keys() != 2 {
		t.Fatalf("%d keys are leased", l.Keys())
	}
	for i := 10; i < 30; i++ {
		_, pieces := image(t, f, i, 1<<20)
		must(t, store(t, other, pieces))
	}
	present := make([]blockio.Presence, 2)
	must(t, other.Exist(ctx, entries(f, 2), present))
	if !present[0].Present || !present[1].Present {
		t.Error("a leased block was evicted")
	}
	errs := make([]error, 1)
	other.Delete(ctx, entries(f, 1), errs)
	wantErr(t, "delete a leased block", errs[0], blockio.ErrLeased)
	must(t, c.Close(ctx))
	until(t, "the leases of a closed connection did not end", func() bool {
		stat, err := other.Stat(ctx)
		must(t, err)
		return stat.Leased == 0
	})
	other.Delete(ctx, entries(f, 1), errs)
	must(t, errs[0])
	short, err := other.Lease(ctx, entries(f, 2)[1:], time.Millisecond)
	must(t, err)
	until(t, "a lease did not expire", func() bool { return errors.Is(short.Renew(ctx, time.Millisecond), errdefs.ErrExpired) })
	wantErr(t, "flush to memory", other.Flush(ctx), errdefs.ErrNotSupported)
}

// raw is a connection on which the test sends its own frames.
type raw struct {
	net.Conn
	w *wire.FrameWriter
	r *wire.FrameReader
}

func (r *rig) raw(t *testing.T) *raw {
	t.Helper()
	nc, err := r.dial(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	c := &raw{nc, wire.NewFrameWriter(nc), wire.NewFrameReader(nc, 1<<20, 1<<30)}
	h := blockio.Hello{ID: 1, RemainingMillis: 1000, Client: [16]byte{1}, Limits: blockio.DefaultLimits()}
	for _, f := range r.formats {
		h.Formats = append(h.Formats, blockio.Format{Identity: f.Identity, ShardBytes: f.Layout.ShardSizes()})
	}
	b, err := h.Append(nil)
	must(t, err)
	must(t, errors.Join(c.w.Append(b), c.w.Flush()))
	_, _, err = c.r.Next()
	must(t, err)
	return c
}

func (c *raw) send(t *testing.T, q *blockio.Request, data ...[]byte) {
	t.Helper()
	l, p := blockio.DefaultLimits(), blockio.Packer{}
	b, err := p.Request(nil, q, &l)
	must(t, err)
	must(t, errors.Join(c.w.Append(b, data...), c.w.Flush()))
}

func TestHostileClientsAreRefused(t *testing.T) {
	l := blockio.DefaultLimits()
	l.Credits = 1
	r := newRig(t, Options{Limits: l}, 8)
	id := blockio.IdentityHash(r.formats[0].Identity)
	get := blockio.Request{Op: blockio.OpRetrieve, ID: 2, RemainingMillis: 1000, Addressed: true, Entries: []blockio.Entry{{Key: key(1), Identity: id, Length: 8, Addr: 4096}}}
	for what, attack := range map[string]func(c *raw){
		"addresses": func(c *raw) { c.send(t, &get) },
		"a store with less data": func(c *raw) {
			c.send(t, &blockio.Request{Op: blockio.OpStore, ID: 2, RemainingMillis: 1, Entries: []blockio.Entry{{Key: key(1), Identity: id, Length: 8}}}, []byte("1234"))
		},
		"a second hello": func(c *raw) {
			h := blockio.Hello{ID: 1, RemainingMillis: 1000, Client: [16]byte{1}, Limits: l}
			b, err := h.Append(nil)
			must(t, err)
			must(t, errors.Join(c.w.Append(b), c.w.Flush()))
		},
	} {
		c, before := r.raw(t), r.Server.Stats().Refused
		attack(c)
		if _, _, err := c.r.Next(); !errors.Is(err, io.EOF) && !errors.As(err, new(net.Error)) {
			t.Errorf("%s: the connection has %v, want its end", what, err)
		}
		until(t, what+" was not counted", func() bool { return r.Server.Stats().Refused > before })
	}
}

// If a client disconnects during a store, the server releases the block.
func TestClientThatEndsInAStoreLeavesNothingInUse(t *testing.T) {
	r := newRig(t, Options{}, 8) // its host can be closed only if no block is in use
	f := r.formats[0]
	c := r.raw(t)
	q := blockio.Request{Op: blockio.OpStore, ID: 2, RemainingMillis: 1000, Entries: []blockio.Entry{{Key: key(1), Identity: blockio.IdentityHash(f.Identity), Length: 4096}}}
	l, p := blockio.DefaultLimits(), blockio.Packer{}
	body, err := p.Request(nil, &q, &l)
	must(t, err)
	var frame bytes.Buffer
	w := wire.NewFrameWriter(&frame)
	must(t, errors.Join(w.Append(body, make([]byte, 4096)), w.Flush()))
	_, err = c.Write(frame.Bytes()[:frame.Len()-100])
	must(t, err)
	must(t, c.Close())
	until(t, "the connection did not end", func() bool { return r.Server.Stats().Connections == 0 })
	_, pieces := image(t, f, 2, 1<<20)
	must(t, store(t, r.client(t, blockio.ClientOptions{}), pieces))
}

func TestCancelledRetrieveSendsNoData(t *testing.T) {
	r := newRig(t, Options{}, 8)
	_, pieces := image(t, r.formats[0], 1, 1<<20)
	must(t, store(t, r.client(t, blockio.ClientOptions{}), pieces))
	a := &answer{request: blockio.Request{Op: blockio.OpRetrieve, ID: 5, RemainingMillis: 1000, Entries: []blockio.Entry{{
		Key: key(1), Identity: blockio.IdentityHash(r.formats[0].Identity), Length: 4096, EndShard: 0,
	}}}, deadline: time.Now().Add(time.Hour)}
	space, err := r.host.Space(t.Context(), auth.DefaultTenant, r.formats[0])
	must(t, err)
	c := &conn{s: r.Server, spaces: map[uint64]*blockhost.Space{a.request.Entries[0].Identity: space}, progress: map[uint64]*answer{}, credits: 1}
	must(t, c.begin(a, 0))
	wantErr(t, "a request without a credit", c.begin(&answer{request: blockio.Request{Op: blockio.OpStat, ID: 6}}, 0), errdefs.ErrInvalid)
	wantErr(t, "an id in use", c.begin(&answer{request: blockio.Request{Op: blockio.OpKeepAlive, ID: 5}}, 0), errdefs.ErrInvalid)
	_, err = c.handle(a)
	must(t, err)
	stop := &answer{request: blockio.Request{Op: blockio.OpCancel, ID: 7, IDs: []uint64{5}}}
	_, err = c.handle(stop)
	must(t, err)
	if data := c.prepare(a, time.Now(), nil); len(data) > 0 || a.result.Status != blockio.StatusCanceled || stop.result.Status != blockio.StatusOK {
		t.Errorf("%d pieces of a cancelled retrieve are sent, with %v", len(data), a.result.Status)
	}
	c.finish(a)
	_, err = c.handle(stop)
	must(t, err)
	if stop.result.Status != blockio.StatusNotFound {
		t.Errorf("the cancellation of an ended request: %v", stop.result.Status)
	}
}

func TestAddressesNeedCredentials(t *testing.T) {
	a, err := auth.NewServer(auth.ServerOptions{})
	must(t, err)
	h, err := blockhost.New(blockhost.Options{CapacityBytes: 1 << 20})
	must(t, err)
	s, err := New(Options{Host: h, Auth: a})
	must(t, err)
	if _, err := s.Listen(t.Context(), "0.0.0.0:0"); err == nil {
		t.Error("a server without credentials listens on all addresses")
	}
	must(t, errors.Join(s.Close(t.Context()), h.Close(context.Background())))
	_, err = s.Listen(t.Context(), "127.0.0.1:0")
	wantErr(t, "listen after Close", err, errdefs.ErrClosed)
}
