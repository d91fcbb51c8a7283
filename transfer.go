package kvlane

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/inuse"
	"github.com/kvlane/kvlane/internal/unwind"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/handover"
)

// The nouns of transfers, which packages transfer and transfer/handover describe.
type (
	// PagePair is a page of this process's KV cache, and the one of another's that it is copied to.
	PagePair = transfer.PagePair
	// Handover is a request's KV on its way to another process.
	Handover = handover.Request
	// HandoverEvent is what became of a request here.
	HandoverEvent = handover.Event
	// TransferStats is what a Transfer has done and has.
	TransferStats = transfer.Stats
)

// TransferConfig says how an engine's transfers reach other processes. The zero value reaches those of this host.
type TransferConfig struct {
	// Listen is where others reach this process, as HOST:PORT. Whoever reaches it may read and write what is offered. Default 127.0.0.1:0.
	Listen string
	// Advertise is the address by which they do. Default: that of Listen.
	Advertise string
	// Metadata is a server in which caches are found by their names, http://HOST:PORT/metadata. Empty: they are found at the address of
	// their process, "HOST:PORT/NAME".
	Metadata string
	// Timeout is for how long a layer may take, with the wait for what it comes after. Default: transfer.DefaultTimeout.
	Timeout time.Duration
	// SocketDir has the socket by which processes of this host share memory. Default:
	// share.DefaultDir(). If that cannot be used, memory is not shared; Transfer.Notes has the
	// reason.
	SocketDir string
}

// Transfer hands KV over between the engine's caches and those of other processes, over NVLink where memory of both is the GPUs' of one
// host and shared, else by RDMA where both engines have NICs (StoreConfig.GDR), else over TCP. All methods are safe for concurrent use.
type Transfer struct {
	e        *Engine
	engine   *transfer.Engine
	receiver *handover.Receiver
	closers  unwind.Stack

	registering sync.Mutex // held while caches are registered with NICs
	// local is the memory that NICs were told of, which goes by other paths if they refused it; guarded by registering.
	local map[*mem.Region]bool

	mu    sync.Mutex
	uses  map[*Cache]*inuse.Use // guarded by mu
	ended bool                  // nothing of a cache is used any more; guarded by mu
	notes []string              // guarded by mu
}

// OpenTransfer opens transfers of the engine's caches. Close it before them. Memory that the engine's NICs refuse to register is an error of
// Offer and Connect where NICs were named or are required, and else goes over sockets: Transfer.Notes says why.
func (e *Engine) OpenTransfer(ctx context.Context, c TransferConfig) (_ *Transfer, err error) {
	t := &Transfer{e: e, closers: unwind.New(), uses: make(map[*Cache]*inuse.Use), local: make(map[*mem.Region]bool)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open transfers: %w", errors.Join(err, t.closers.Undo(ctx, unwind.Timeout)))
		}
	}()
	t.closers.AddPlain("caches", t.endUses)
	s, err := e.OpenStream()
	if err != nil {
		return nil, err
	}
	t.closers.Add("stream", s.Close)
	o := transfer.Options{Listen: c.Listen, Advertise: c.Advertise, Timeout: c.Timeout, Device: e.dev, Copy: s}
	if c.Metadata != "" {
		store, err := metadata.NewClient(c.Metadata, 0)
		if err != nil {
			return nil, err
		}
		t.closers.AddPlain("metadata", func() error { store.Close(); return nil })
		o.Store = store
	}
	if err := t.takeNICs(&o); err != nil {
		return nil, err
	}
	if _, ok := e.dev.(device.Sharer); ok {
		if o.Share, err = t.startSharing(ctx, c.SocketDir); err != nil {
			return nil, err
		}
		if o.Importer, err = share.NewImporter(e.dev, share.ImportOptions{}); err != nil {
			return nil, err
		}
		t.closers.AddPlain("importer", o.Importer.Close)
	} else {
		t.note("the memory of the %s device is shared with no process: KV goes over NICs or sockets", e.dev.Info().Driver)
	}
	if t.engine, err = transfer.Open(o); err != nil {
		return nil, err
	}
	t.closers.Add("transfer engine", t.engine.Close)
	t.receiver = handover.NewReceiver(t.engine, 0)
	return t, nil
}

// startSharing starts a server that exports the engine's memory to processes of this host. If it
// does not start in the default directory, which another user may have made, the server is nil and
// Transfer.Notes has the reason.
func (t *Transfer) startSharing(ctx context.Context, dir string) (*share.Server, error) {
	s, err := share.NewServer(share.Options{Dir: dir})
	if err == nil {
		err = s.Start(ctx)
	}
	switch {
	case err == nil:
		t.closers.Add("export server", s.Close)
		return s, nil
	case dir == "" && ctx.Err() == nil:
		t.note("memory is not shared with processes of this host, KV goes over NICs or sockets: %v", err)
		return nil, nil
	}
	return nil, err
}

// takeNICs has transfers go by the engine's NICs, or says why they do not.
func (t *Transfer) takeNICs(o *transfer.Options) (err error) {
	c := &t.e.cfg
	auto := c.Store.GDR == GDRAuto
	switch {
	case auto && t.e.nics == nil:
		t.note("the engine goes without NICs, and KV over sockets: Engine.Notes says why")
		return nil
	case t.e.nics == nil: // nobody asked for them
		return nil
	case c.RDMA.Provider == gdr.Soft:
		t.note("NICs in software reach no other process: KV goes over sockets")
		return nil
	}
	o.NICsOptional = auto && !c.RDMA.Named()
	if o.NICs, err = t.e.nics.Transfers(); err != nil && o.NICsOptional {
		t.note("KV goes over sockets: %v", err)
		err = nil
	}
	return err
}

func (t *Transfer) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := fmt.Sprintf(format, args...); !slices.Contains(t.notes, n) {
		t.notes = append(t.notes, n)
	}
}

// Notes returns what the user should know: what goes over sockets, and why.
func (t *Transfer) Notes() []string {
	s := t.engine.Stats()
	t.mu.Lock()
	defer t.mu.Unlock()
	notes := slices.Clone(t.notes)
	if s.Refusal != nil {
		notes = append(notes, fmt.Sprintf("NICs have refused memory %d times, which goes over sockets: %v", s.Refusals, s.Refusal))
	}
	return notes
}

// Address returns where others reach this process, as HOST:PORT.
func (t *Transfer) Address() string { return t.engine.Address() }

// Stats returns what there was and is.
func (t *Transfer) Stats() TransferStats { return t.engine.Stats() }

// use keeps a cache from being closed before the transfers are, for what f does of it; no longer than f where that fails, and nothing of it is left.
func (t *Transfer) use(c *Cache, f func() (left bool, err error)) error {
	u, err := c.begin(t.e)
	if err != nil {
		return err
	}
	left, err := f()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && !left || t.ended || t.uses[c] != nil {
		u.Started(nil)
	} else {
		t.uses[c] = u
	}
	return err
}

func (t *Transfer) endUses() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range t.uses {
		u.Started(nil)
	}
	t.uses, t.ended = nil, true
	return nil
}

// plan says what both sides have to agree on: whose KV a cache has, and how its layers lie in its regions.
func (c *Cache) plan() string {
	h := sha256.New()
	for _, f := range c.engine.groups.formats {
		_, _ = fmt.Fprintf(h, "%x\n", f.Identity) // a hash takes all
	}
	groups := c.engine.groups.ofLayers()
	for k, planes := range c.pages.Shards {
		for i := range planes {
			pl := &planes[i]
			_, _ = fmt.Fprintln(h, k, groups[k], slices.Index(c.regions, pl.Region), pl.Base, pl.Stride, pl.Bytes)
		}
	}
	return fmt.Sprintf("kv %x", h.Sum(nil)[:16])
}

// Offer lets other processes hand KV over into c, under a name. c stays in use until the Transfer is closed. ErrExists if the name is
// taken.
func (t *Transfer) Offer(ctx context.Context, name string, c *Cache) error {
	if err := t.use(c, func() (bool, error) { return t.offer(ctx, name, c) }); err != nil {
		return fmt.Errorf("offer KV cache %q: %w", name, err)
	}
	return nil
}

// offer says too whether something of the cache is left that others may reach.
func (t *Transfer) offer(ctx context.Context, name string, c *Cache) (left bool, err error) {
	s, err := t.engine.Publish(ctx, name)
	if err != nil {
		return false, err
	}
	for i, r := range c.regions {
		o := transfer.RegisterOptions{Name: fmt.Sprintf("%s %d", c.plan(), i)}
		o.Source, _ = t.e.dev.(device.Sharer)
		_, err := s.Register(ctx, r, o)
		if errors.Is(err, errdefs.ErrNotSupported) && o.Source != nil {
			t.note("KV cache %q is not shared with processes of this host, which reach it over NICs or sockets: %v", name, err)
			o.Source = nil
			_, err = s.Register(ctx, r, o)
		}
		if err != nil {
			gone := s.Close(ctx)
			return gone != nil, errors.Join(err, gone)
		}
	}
	return false, nil
}

// Receive waits for what becomes of requests that others hand over: a layer is in its pages, which now and then is told of after a later one, all
// are, or the request failed, and its pages are undefined.
func (t *Transfer) Receive(ctx context.Context) (HandoverEvent, error) {
	return t.receiver.Receive(ctx)
}

// Receiver is the KV cache of another process that requests are handed over to.
type Receiver struct {
	sender *handover.Sender
	remote *transfer.Remote
}

// Connect finds the KV cache that another process offers, by its name, or "HOST:PORT/NAME" without a metadata server, to hand requests
// over from c to it. c stays in use until the Transfer is closed. ErrNotFound, ErrLost if its process is gone; ErrMismatch if it has the
// KV of another model, or its planes lie otherwise.
func (t *Transfer) Connect(ctx context.Context, name string, c *Cache) (r *Receiver, err error) {
	if err := t.use(c, func() (left bool, err error) {
		r, left, err = t.connect(ctx, name, c)
		return left, err
	}); err != nil {
		return nil, fmt.Errorf("connect to KV cache %q: %w", name, err)
	}
	return r, nil
}

// connect says too whether NICs may have some of the cache.
func (t *Transfer) connect(ctx context.Context, name string, c *Cache) (_ *Receiver, left bool, err error) {
	remote, err := t.engine.OpenSegment(ctx, name)
	if err != nil {
		return nil, false, err
	}
	layers, err := c.layers(remote.Describe().Buffers)
	if err != nil {
		return nil, false, errors.Join(err, remote.Close())
	}
	if err := t.registerLocal(c); err != nil {
		return nil, true, errors.Join(err, remote.Close())
	}
	at := layers[0][0].RemoteBase
	if shared, rdma := remote.Shared(at), remote.RDMA(at); shared != nil && rdma != nil {
		t.note("KV cache %q is reached over sockets: not by its mapping (%v), nor by RDMA (%v)", name, shared, rdma)
	}
	s, err := handover.NewSender(t.engine, remote, handover.Options{Layers: layers, Groups: t.e.groups.ofLayers()})
	if err != nil {
		return nil, true, errors.Join(err, remote.Close())
	}
	return &Receiver{s, remote}, false, nil
}

// registerLocal has NICs reach a cache, if there are any, until the Transfer is closed.
func (t *Transfer) registerLocal(c *Cache) error {
	t.registering.Lock()
	defer t.registering.Unlock()
	for _, r := range c.regions {
		if t.local[r] { // since an earlier Connect
			continue
		}
		if err := t.engine.RegisterLocal(r); err != nil {
			return err
		}
		t.local[r] = true
	}
	return nil
}

// layers returns the planes of each layer, here and in what another process offers.
func (c *Cache) layers(offered []transfer.Buffer) ([][]transfer.PagePlane, error) {
	plan, at := c.plan(), make([]int64, len(c.regions))
	for i := range c.regions {
		k := slices.IndexFunc(offered, func(b transfer.Buffer) bool { return b.Name == fmt.Sprintf("%s %d", plan, i) })
		if k < 0 || len(offered) != len(c.regions) {
			return nil, fmt.Errorf("it is of another model, or its planes lie otherwise: %w", errdefs.ErrMismatch)
		}
		at[i] = offered[k].Offset
	}
	layers := make([][]transfer.PagePlane, len(c.pages.Shards))
	for k, planes := range c.pages.Shards {
		for i := range planes {
			pl := &planes[i]
			layers[k] = append(layers[k], transfer.PagePlane{
				Region: pl.Region, Base: pl.Base, Stride: pl.Stride, Bytes: pl.Bytes,
				RemoteBase: at[slices.Index(c.regions, pl.Region)] + pl.Base, RemoteStride: pl.Stride,
			})
		}
	}
	return layers, nil
}

// Begin begins to hand a request over, of that identifier and those pages, of each page group in the order of Config.Groups: Handover.Layer for
// each layer, in any order, behind what computes it, and Handover.Finish. pairs must not change until that has returned. A group may have no pages.
func (r *Receiver) Begin(id []byte, pairs ...[]PagePair) (*Handover, error) {
	return r.sender.Begin(id, pairs...)
}

// Close lets go of the other process's cache. ErrBusy while a request has begun and not been finished: it may be called again. Transfer.Close does
// it for all.
func (r *Receiver) Close() error {
	if n := r.sender.Requests(); n > 0 {
		return fmt.Errorf("close a receiver: %d requests are not finished: %w", n, errdefs.ErrBusy)
	}
	return r.remote.Close()
}

// Close ends the transfers and lets go of the caches. What other processes still copy is waited for, until ctx ends: the error names
// them, and Close may be called again. A second Close after success returns nil.
func (t *Transfer) Close(ctx context.Context) error {
	if err := t.closers.Close(ctx); err != nil {
		return fmt.Errorf("close transfers: %w", err)
	}
	return nil
}
