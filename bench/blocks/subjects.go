package blocks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/bench/sockets"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// Names of subjects.
const (
	Memory  = "memory"     // copies from the server's memory
	Sockets = sockets.Name // plain sockets that pipeline the same frames
	TCP     = "tcp"        // client of a block server, one piece per call
	Batch   = "batch"      // client of a block server, depth pieces per call
	RDMA    = "rdma"       // client of a block server that writes to pinned memory, one piece per call
	Device  = "device"     // the same with device memory
)

// spareBytes is memory of the server for its size classes, in addition to twice the length of the
// images.
const spareBytes = 64 << 20

// rig has the blocks of a point and the resources of the subjects.
type rig struct {
	depth    int
	format   block.Format
	host     *blockhost.Host
	space    *blockhost.Space
	server   *server.Server
	client   *blockio.Client
	sockets  *sockets.Sockets
	memory   []byte
	slots    []mem.Extent // one piece each
	remote   *remote      // nil: without RDMA
	subjects []rounds.Subject
}

// open allocates memory, starts the server and connects the clients. f is nil without RDMA.
func open(ctx context.Context, bytes int64, depth int, f *Fabric) (_ *rig, err error) {
	r := &rig{depth: depth}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare retrieves of %d bytes: %w", bytes, err), r.close(ctx))
		}
	}()
	l, err := block.NewLayout([]int64{bytes})
	if err != nil {
		return nil, err
	}
	r.format = block.Format{Identity: block.Digest{1}, Layout: l}
	if r.memory, err = hostmem.Alloc(int64(depth) * l.ImageBytes()); err != nil {
		return nil, err
	}
	region, err := hostmem.Region(r.memory)
	if err != nil {
		return nil, err
	}
	for i := range int64(depth) {
		r.slots = append(r.slots, mem.Extent{Region: region, Off: i * l.ImageBytes(), Len: bytes})
	}
	if err = r.serve(ctx); err == nil {
		err = r.fill(ctx)
	}
	if err != nil {
		return nil, err
	}
	piece := r.memory[l.ShardOff(0):][:bytes]
	if r.sockets, err = openSockets(ctx, piece, depth); err != nil {
		return nil, err
	}
	r.subjects = []rounds.Subject{&pool{r, xxh3.Hash(piece)}, r.sockets, &tcp{r}}
	if depth > 1 {
		r.subjects = append(r.subjects, &batch{r})
	}
	if f == nil {
		return r, nil
	}
	if r.remote, err = openRemote(ctx, r, f); err != nil {
		return nil, err
	}
	more, err := r.remote.subjects()
	if err != nil {
		return nil, err
	}
	r.subjects = append(r.subjects, more...)
	return r, nil
}

// serve starts the server and its client.
func (r *rig) serve(ctx context.Context) (err error) {
	l := r.format.Layout
	if r.host, err = blockhost.New(blockhost.Options{CapacityBytes: spareBytes + 2*int64(r.depth)*l.ImageBytes()}); err != nil {
		return err
	}
	a, err := auth.NewServer(auth.ServerOptions{})
	if err != nil {
		return err
	}
	if r.space, err = r.host.Space(ctx, auth.DefaultTenant, r.format); err != nil {
		return err
	}
	if r.server, err = server.New(server.Options{Host: r.host, Auth: a}); err != nil {
		return err
	}
	addr, err := r.server.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.client, err = blockio.NewClient(blockio.ClientOptions{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		},
		Formats: []blockio.Format{{Identity: r.format.Identity, ShardBytes: l.ShardSizes()}},
		Retries: -1,
	})
	return err
}

// fill stores a block for each slot. All blocks have the same random contents.
func (r *rig) fill(ctx context.Context) error {
	l := r.format.Layout
	image := mem.Extent{Region: r.slots[0].Region, Len: l.ImageBytes()}
	if _, err := rand.NewChaCha8([32]byte{1}).Read(image.Bytes()[l.ShardOff(0):][:l.ShardBytes(0)]); err != nil {
		return err
	}
	for i := range r.depth {
		if err := r.format.Seal(image.Bytes(), key(i)); err != nil {
			return err
		}
		pieces := blockio.Split(nil, key(i), r.format.Identity, l, image, 1<<20)
		errs := make([]error, len(pieces))
		r.client.Store(ctx, pieces, errs)
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func key(i int) block.Key { return block.Key{1, byte(i), byte(i >> 8)} }

// pool copies pieces from the server's memory.
type pool struct {
	*rig
	sum uint64
}

func (*pool) Name() string { return Memory }

func (p *pool) Run(d time.Duration, t *rounds.Times) error {
	off := p.format.Layout.ShardOff(0)
	return rounds.Parallel(p.depth, d, t, func(i int, _ bool) error {
		b, err := p.space.Get(key(i))
		if err != nil {
			return err
		}
		slot := p.slots[i].Bytes()
		copy(slot, b.Bytes()[off:])
		b.Release()
		if xxh3.Hash(slot) != p.sum {
			return fmt.Errorf("block %d has other bytes: %w", i, errdefs.ErrCorrupt)
		}
		return nil
	})
}

// tcp retrieves one piece per call.
type tcp struct{ *rig }

func (*tcp) Name() string { return TCP }

func (c *tcp) Run(d time.Duration, t *rounds.Times) error {
	pieces, errs := c.pieces(), make([]error, c.depth)
	return rounds.Parallel(c.depth, d, t, func(i int, _ bool) error {
		c.client.Retrieve(context.Background(), pieces[i:i+1], errs[i:i+1])
		return errs[i]
	})
}

// pieces returns the piece of each slot.
func (r *rig) pieces() []blockio.Piece {
	all := make([]blockio.Piece, r.depth)
	for i := range all {
		all[i] = blockio.Piece{
			Key: key(i), Identity: blockio.IdentityHash(r.format.Identity), Offset: uint64(r.format.Layout.ShardOff(0)), EndShard: 1, Mem: r.slots[i],
		}
	}
	return all
}

// batch retrieves the pieces of all slots in one call.
type batch struct{ *rig }

func (*batch) Name() string { return Batch }

func (b *batch) Run(d time.Duration, t *rounds.Times) error {
	pieces, errs := b.pieces(), make([]error, b.depth)
	end := time.Now().Add(d)
	for last := time.Now(); last.Before(end); {
		b.client.Retrieve(context.Background(), pieces, errs)
		if err := errors.Join(errs...); err != nil {
			return err
		}
		now := time.Now()
		for range pieces {
			t.Add(now.Sub(last))
		}
		last = now
	}
	return nil
}

// check compares the slots with the server's block after a run over TCP.
func (r *rig) check() error {
	return r.same(func(i int) ([]byte, error) { return r.slots[i].Bytes(), nil })
}

// close releases everything that open has created.
func (r *rig) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var errs []error
	if r.remote != nil {
		errs = append(errs, r.remote.close(ctx))
	}
	if r.sockets != nil {
		errs = append(errs, r.sockets.Close())
	}
	if r.client != nil {
		errs = append(errs, r.client.Close(ctx))
	}
	if r.server != nil {
		errs = append(errs, r.server.Close(ctx))
	}
	if r.host != nil {
		errs = append(errs, r.host.Close(context.Background()))
	}
	if r.memory != nil {
		errs = append(errs, hostmem.Free(r.memory))
	}
	return errors.Join(errs...)
}
