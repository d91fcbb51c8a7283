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

// Types of packages transfer and transfer/handover.
type (
	// PagePair is a page of the local KV cache and the remote page to which it is copied.
	PagePair = transfer.PagePair
	// Handover is the transfer of a request's KV to another process.
	Handover = handover.Request
	// HandoverEvent reports progress or failure of a received request.
	HandoverEvent = handover.Event
	// TransferStats are the statistics of a Transfer.
	TransferStats = transfer.Stats
)

// TransferConfig configures an engine's transfers. The zero value reaches processes of this host.
type TransferConfig struct {
	// Listen is the HOST:PORT on which this engine accepts connections. There is no authentication:
	// every process that can connect may read and write offered memory. Default 127.0.0.1:0.
	Listen string
	// Advertise is the address to which other processes connect. Default: the address of Listen.
	Advertise string
	// Metadata is the URL of a metadata server, http://HOST:PORT/metadata, which maps names of
	// caches to processes. If it is empty, a cache is named "HOST:PORT/NAME" by the address of its
	// process.
	Metadata string
	// Timeout bounds the transfer of a layer, including the wait for its dependencies. Default:
	// transfer.DefaultTimeout.
	Timeout time.Duration
	// SocketDir is the directory of the socket for sharing memory with processes of this host.
	// Default: share.DefaultDir(). If the default cannot be used, memory is not shared;
	// Transfer.Notes has the reason.
	SocketDir string
}

// Transfer transfers KV between the engine's caches and those of other processes. It uses NVLink
// between GPUs of one host that can share memory, else RDMA if both engines have NICs
// (StoreConfig.GDR), else TCP. All methods are safe for concurrent use.
type Transfer struct {
	e        *Engine
	engine   *transfer.Engine
	receiver *handover.Receiver
	closers  unwind.Stack

	registerMu sync.Mutex // held while caches are registered with NICs
	// local holds the regions that were passed to the NICs, including refused ones; guarded by
	// registerMu.
	local map[*mem.Region]bool

	mu     sync.Mutex
	uses   map[*Cache]*inuse.Use // guarded by mu
	closed bool                  // caches cannot be used any more; guarded by mu
	notes  []string              // guarded by mu
}

// OpenTransfer opens transfers of the engine's caches. The caller closes the Transfer before the
// caches. If the configuration names or requires NICs, Offer and Connect return an error for memory
// that the NICs refuse. Otherwise that memory is transferred over sockets, and Transfer.Notes has
// the reason.
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
	if err := t.useNICs(&o); err != nil {
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
		t.note("memory of the %s device cannot be shared with other processes: KV is transferred over NICs or sockets", e.dev.Info().Driver)
	}
	if t.engine, err = transfer.Open(o); err != nil {
		return nil, err
	}
	t.closers.Add("transfer engine", t.engine.Close)
	t.receiver = handover.NewReceiver(t.engine, 0)
	return t, nil
}

// startSharing starts a server that exports the engine's memory to processes of this host. If it
// cannot start in the default directory, for example because another user owns it, startSharing
// returns nil and Transfer.Notes has the reason.
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
		t.note("memory is not shared with processes of this host, KV is transferred over NICs or sockets: %v", err)
		return nil, nil
	}
	return nil, err
}

// useNICs sets the NICs in o, or adds a note with the reason why there are none.
func (t *Transfer) useNICs(o *transfer.Options) (err error) {
	c := &t.e.cfg
	auto := c.Store.GDR == GDRAuto
	switch {
	case auto && t.e.nics == nil:
		t.note("the engine uses no NICs, KV is transferred over sockets: Engine.Notes has the reason")
		return nil
	case t.e.nics == nil: // none configured
		return nil
	case c.RDMA.Provider == gdr.Soft:
		t.note("NICs in software reach no other process: KV is transferred over sockets")
		return nil
	}
	o.NICsOptional = auto && !c.RDMA.Named()
	if o.NICs, err = t.e.nics.Transfers(); err != nil && o.NICsOptional {
		t.note("KV is transferred over sockets: %v", err)
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

// Notes returns the transfers that fall back to sockets, with the reasons.
func (t *Transfer) Notes() []string {
	s := t.engine.Stats()
	t.mu.Lock()
	defer t.mu.Unlock()
	notes := slices.Clone(t.notes)
	if s.Refusal != nil {
		notes = append(notes, fmt.Sprintf("NICs rejected memory %d times, it is transferred over sockets; the last error: %v", s.Refusals, s.Refusal))
	}
	return notes
}

// Address returns the HOST:PORT to which other processes connect.
func (t *Transfer) Address() string { return t.engine.Address() }

// Stats returns the statistics of the transfers.
func (t *Transfer) Stats() TransferStats { return t.engine.Stats() }

// use calls f and keeps c open until the transfers are closed. If f fails and does not report that
// parts of the cache are left in use, c is released at once.
func (t *Transfer) use(c *Cache, f func() (left bool, err error)) error {
	u, err := c.begin(t.e)
	if err != nil {
		return err
	}
	left, err := f()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && !left || t.closed || t.uses[c] != nil {
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
	t.uses, t.closed = nil, true
	return nil
}

// layoutID returns a hash of the KV identities and of the layout of the layers in the regions. Both
// sides of a transfer must have the same.
func (c *Cache) layoutID() string {
	h := sha256.New()
	for _, f := range c.engine.groups.formats {
		_, _ = fmt.Fprintf(h, "%x\n", f.Identity) // a hash accepts all writes
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

// Offer lets other processes transfer KV into c under a name. c stays in use until the Transfer is
// closed. Offer returns ErrExists if the name is in use.
func (t *Transfer) Offer(ctx context.Context, name string, c *Cache) error {
	if err := t.use(c, func() (bool, error) { return t.offer(ctx, name, c) }); err != nil {
		return fmt.Errorf("offer KV cache %q: %w", name, err)
	}
	return nil
}

// offer implements Offer. left reports whether other processes can still access part of the cache
// after an error.
func (t *Transfer) offer(ctx context.Context, name string, c *Cache) (left bool, err error) {
	s, err := t.engine.Publish(ctx, name)
	if err != nil {
		return false, err
	}
	for i, r := range c.regions {
		o := transfer.RegisterOptions{Name: fmt.Sprintf("%s %d", c.layoutID(), i)}
		o.Source, _ = t.e.dev.(device.Sharer)
		_, err := s.Register(ctx, r, o)
		if errors.Is(err, errdefs.ErrNotSupported) && o.Source != nil {
			t.note("KV cache %q is not shared with processes of this host, and is transferred over NICs or sockets: %v", name, err)
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

// Receive waits for the next event of a request from another process: one layer has arrived in its
// pages, in any order, all layers have arrived, or the request has failed and its pages are
// undefined.
func (t *Transfer) Receive(ctx context.Context) (HandoverEvent, error) {
	return t.receiver.Receive(ctx)
}

// Receiver is the KV cache of another process, to which requests are transferred.
type Receiver struct {
	sender *handover.Sender
	remote *transfer.Remote
}

// Connect finds the KV cache that another process offers under a name, to transfer requests from c
// to it. Without a metadata server the name is "HOST:PORT/NAME". c stays in use until the Transfer
// is closed. Connect returns ErrNotFound if there is no such cache, ErrLost if its process has
// ended, and ErrMismatch if the cache belongs to another model or has another layout.
func (t *Transfer) Connect(ctx context.Context, name string, c *Cache) (r *Receiver, err error) {
	if err := t.use(c, func() (left bool, err error) {
		r, left, err = t.connect(ctx, name, c)
		return left, err
	}); err != nil {
		return nil, fmt.Errorf("connect to KV cache %q: %w", name, err)
	}
	return r, nil
}

// connect implements Connect. left reports whether NICs can still access part of the cache after an
// error.
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
		t.note("KV cache %q is transferred over sockets: it could not be mapped (%v), and RDMA failed (%v)", name, shared, rdma)
	}
	s, err := handover.NewSender(t.engine, remote, handover.Options{Layers: layers, Groups: t.e.groups.ofLayers()})
	if err != nil {
		return nil, true, errors.Join(err, remote.Close())
	}
	return &Receiver{s, remote}, false, nil
}

// registerLocal registers a cache with the NICs, if any. The registration lasts until the Transfer
// is closed.
func (t *Transfer) registerLocal(c *Cache) error {
	t.registerMu.Lock()
	defer t.registerMu.Unlock()
	for _, r := range c.regions {
		if t.local[r] { // by an earlier Connect
			continue
		}
		if err := t.engine.RegisterLocal(r); err != nil {
			return err
		}
		t.local[r] = true
	}
	return nil
}

// layers returns the planes of each layer, with their offsets in the offered buffers.
func (c *Cache) layers(offered []transfer.Buffer) ([][]transfer.PagePlane, error) {
	plan, at := c.layoutID(), make([]int64, len(c.regions))
	for i := range c.regions {
		k := slices.IndexFunc(offered, func(b transfer.Buffer) bool { return b.Name == fmt.Sprintf("%s %d", plan, i) })
		if k < 0 || len(offered) != len(c.regions) {
			return nil, fmt.Errorf("it has another model or another layout of planes: %w", errdefs.ErrMismatch)
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

// Begin starts the transfer of a request, identified by id. pairs has the pages of the request for
// each page group, in the order of Config.Groups; a group may have none. Call Handover.Layer for
// each layer, in any order, after the work that computes it, and then Handover.Finish. pairs must
// not change until Finish has returned.
func (r *Receiver) Begin(id []byte, pairs ...[]PagePair) (*Handover, error) {
	return r.sender.Begin(id, pairs...)
}

// Close closes the connection to the other process's cache. It returns ErrBusy while a request is
// not finished, and may be called again. Transfer.Close closes all receivers.
func (r *Receiver) Close() error {
	if n := r.sender.Requests(); n > 0 {
		return fmt.Errorf("close a receiver: %d requests are not finished: %w", n, errdefs.ErrBusy)
	}
	return r.remote.Close()
}

// Close closes the transfers and releases the caches. It waits for copies of other processes until
// ctx ends. The error then names these processes, and Close may be called again. A second Close
// after success returns nil.
func (t *Transfer) Close(ctx context.Context) error {
	if err := t.closers.Close(ctx); err != nil {
		return fmt.Errorf("close transfers: %w", err)
	}
	return nil
}
