package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

var nicGeometry = block.Geometry{Model: "test", Layers: 3, KVHeads: 2, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}

// softConfig returns the configuration of an engine that must use software NICs.
func softConfig(t *testing.T) kvlane.Config {
	t.Helper()
	layout, err := nicGeometry.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return kvlane.Config{
		Model:  nicGeometry,
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
		RDMA:   gdr.Config{Provider: gdr.Soft},
		Store:  kvlane.StoreConfig{CacheBytes: 4 * layout.ImageBytes(), Dirs: []string{t.TempDir()}, GDR: kvlane.GDRRequire},
	}
}

// replayOn replays requests whose blocks do not all fit into the cache. It returns the report and
// fails the test if a byte was wrong.
func replayOn(t *testing.T, e *kvlane.Engine, memory replay.Memory, layerwise bool) *replay.Report {
	t.Helper()
	var trace strings.Builder
	for _, ids := range []string{"1,2,3", "4,5,6", "1,2,3,7", "4,5,6,8", "1,2,3,7", "9", "9"} {
		fmt.Fprintf(&trace, `{"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[%s]}`+"\n", ids)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(trace.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := replay.Run(t.Context(), replay.Config{
		Device: e.Device(), Store: e.Store(), Memory: memory, Geometry: nicGeometry, Identity: e.Identity(), Trace: path, Layerwise: layerwise,
	})
	if err != nil {
		t.Fatal(err)
	}
	// 11 hits, minus blocks that were requested just before their dump completed.
	if r.PrefixHits > 11 || r.PrefixHits < 8 || r.DumpedBlocks != 9 || r.Mismatches+r.LoadErrors+r.DumpErrors != 0 {
		t.Errorf("%d hits, %d blocks dumped, %d mismatches, failures: %v", r.PrefixHits, r.DumpedBlocks, r.Mismatches, r.ErrorSamples)
	}
	if len(r.Paths) < 2 {
		t.Errorf("paths: %+v", r.Paths)
	}
	return r
}

// Loads and dumps use NICs in both tiers, and every byte is right: over one NIC, and striped over
// two with two queue pairs each.
func TestRequiredNICsCarryLoadsAndDumps(t *testing.T) {
	gid := 1
	for name, rdma := range map[string]gdr.Config{
		"defaults": {},
		"two NICs": {NICs: []string{"soft1", "soft0"}, Port: 1, GIDIndex: &gid, MTU: 1024, QueuePairs: 2},
		"as many":  {Count: 2},
		"on use":   {RegisterOnUse: true},
	} {
		for _, layerwise := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/layerwise=%t", name, layerwise), func(t *testing.T) {
				c := softConfig(t)
				c.RDMA = rdma
				c.RDMA.Provider = gdr.Soft
				e := openEngine(t, c)
				if nics := e.NICs(); len(nics) != max(len(rdma.NICs), rdma.Count, 1) || nics[0].Reason == "" {
					t.Errorf("NICs: %+v", nics)
				}
				memory := replay.Memory(e)
				if rdma.RegisterOnUse {
					memory = unannounced{e}
				}
				r := replayOn(t, e, memory, layerwise)
				for _, p := range r.Paths {
					if p.Path != stream.PathNICSoft.String() {
						t.Errorf("%s by %s", p.Direction, p.Path)
					}
				}
				if r.HitsByTier["file"] == 0 || r.HitsByTier["cache"] == 0 {
					t.Errorf("hits by tier %v: want some from each", r.HitsByTier)
				}
			})
		}
	}
}

// unannounced is an engine that registers no memory ahead of use.
type unannounced struct{ *kvlane.Engine }

func (unannounced) Register(...*mem.Region) error { return nil }

// One configuration serves engines of several devices, and each uses its own NICs.
func TestNICsByDevice(t *testing.T) {
	for index, want := range []string{"soft1", "soft0"} {
		c := softConfig(t)
		c.Device.Sim.Index = index
		c.RDMA.NICsByDevice = [][]string{{"soft1"}, {"soft0", "soft1"}}
		e := openEngine(t, c)
		nics := e.NICs()
		if len(nics) != index+1 || nics[0].Name != want || !strings.Contains(nics[0].Reason, "as configured") {
			t.Errorf("device %d: NICs %+v", index, nics)
		}
	}
}

// Copies of unregistered memory are refused, and succeed after it is registered.
func TestUnregisteredMemoryIsRefused(t *testing.T) {
	w := newWorld(t, softConfig(t))
	if err := w.e.Unregister(t.Context(), w.kv); err != nil {
		t.Fatal(err)
	}
	if err := w.dump(t, 0, 0); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("dump = %v, want ErrInvalid", err)
	}
	if err := w.e.Register(w.kv); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1)); err != nil {
		t.Error(err)
	}
}

// RegisterCache registers the KV cache with NICs by the addresses of its planes, and Close
// unregisters it.
func TestNICsReachARegisteredCache(t *testing.T) {
	w := newWorld(t, softConfig(t))
	n := nicGeometry.PlaneBytes()
	m := kvlane.CacheMemory{Pages: 2, PageBytes: n}
	for p := range nicGeometry.Layers * nicGeometry.PlanesPerLayer() {
		m.Planes = append(m.Planes, w.kv.Dev()+mem.DevAddr(p)*2*mem.DevAddr(n))
	}
	if _, err := w.e.RegisterCache(m); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("registered a second time: %v", err)
	}
	if err := w.e.Unregister(t.Context(), w.kv); err != nil {
		t.Fatal(err)
	}
	cache, err := w.e.RegisterCache(m)
	if err != nil {
		t.Fatal(err)
	}
	dump, err := w.e.Dump(t.Context(), cache, []kvlane.Ref{{Key: w.key(0), Page: 0}}, kvlane.DumpOptions{})
	if err == nil {
		err = dump.Durable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	load, err := w.e.Load(t.Context(), nil, cache, []kvlane.Ref{{Key: w.key(0), Page: 1}}, kvlane.LoadOptions{})
	if err == nil {
		err = load.Wait(t.Context())
	}
	if err != nil || !bytes.Equal(w.page(t, 0), w.page(t, 1)) {
		t.Errorf("load: %v", err)
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.load(t, 0, 1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("load = %v after the cache is closed, want ErrInvalid", err)
	}
}

// If NICs are required but not available, Open returns an error that names the missing part and
// leaves nothing open.
func TestRequireIsNeverAFallback(t *testing.T) {
	for name, c := range map[string]struct {
		rdma gdr.Config
		want []string
	}{
		"no such NIC in software": {gdr.Config{Provider: gdr.Soft, NICs: []string{"soft3"}}, []string{`"soft3"`, "soft0"}},
		"none for this device":    {gdr.Config{Provider: gdr.Soft, NICsByDevice: [][]string{{}, {"soft0"}}}, []string{"GPU 0", "has no name"}},
		"no list for any device":  {gdr.Config{Provider: gdr.Soft, NICsByDevice: [][]string{}}, []string{"has no name"}},
		"no such port":            {gdr.Config{Provider: gdr.Soft, Port: 7}, []string{"port 7"}},
		// Without a library or a device, the error reports that.
		"no such NIC": {gdr.Config{NICs: []string{"no-such-nic"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := softConfig(t)
			cfg.RDMA = c.rdma
			_, err := kvlane.Open(t.Context(), cfg)
			if !errors.Is(err, errdefs.ErrNotFound) && !errors.Is(err, errdefs.ErrNotSupported) && !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("Open = %v", err)
			}
			for _, want := range append(c.want, "gdr requires a NIC: ") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %q: %v", want, err)
				}
			}
		})
	}
}

func TestAutoContinuesWithoutANICAndReportsIt(t *testing.T) {
	for name, c := range map[string]struct {
		rdma gdr.Config
		want string
	}{
		"software":    {gdr.Config{Provider: gdr.Soft, NICs: []string{"soft0"}}, "never uses a NIC in software"},
		"no such NIC": {gdr.Config{NICs: []string{"no-such-nic"}}, "copies do not use a NIC: "},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := softConfig(t)
			cfg.RDMA, cfg.Store.GDR = c.rdma, kvlane.GDRAuto
			e := openEngine(t, cfg)
			if !slices.ContainsFunc(e.Notes(), func(n string) bool { return strings.Contains(n, c.want) }) {
				t.Errorf("notes %q do not contain %q", e.Notes(), c.want)
			}
			for _, p := range replayOn(t, e, e, false).Paths {
				if strings.HasPrefix(p.Path, "nic") {
					t.Errorf("%s by %s", p.Direction, p.Path)
				}
			}
			if e.NICs() != nil {
				t.Errorf("NICs: %+v", e.NICs())
			}
		})
	}
}

func TestEngineWithNICsUnwindsAndForgetsNothing(t *testing.T) {
	// TestMain would detect a leak.
	c := softConfig(t)
	c.Device.Sim = sim.Options{HostRegisterLimitBytes: 4096}
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNoMemory) {
		t.Errorf("Open = %v, want ErrNoMemory", err)
	}
	e, err := kvlane.Open(t.Context(), softConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Device().Alloc(1<<16, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Register(r); err != nil {
		t.Fatal(err)
	}
	if err := e.Register(r); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("second Register returned %v, want ErrExists", err)
	}
	for range 2 {
		if err := e.Unregister(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	if err := e.Register(r); err != nil { // never unregistered
		t.Error(err)
	}
	if err := e.Device().Free(r); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// NICStats covers the store's streams and registered memory, also after the engine is closed.
func TestNICStats(t *testing.T) {
	w := newWorld(t, softConfig(t))
	if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1)); err != nil {
		t.Fatal(err)
	}
	s := w.e.NICStats()
	if len(s) != 1 || s[0].Name != "soft0" || s[0].Requests == 0 || s[0].Bytes < 2*nicGeometry.PlaneBytes() || s[0].QueuePairs != 2 || s[0].Failed+s[0].Broken != 0 {
		t.Errorf("figures %+v", s)
	}
	live := make(map[string]int64)
	for _, r := range s[0].Registrations {
		live[r.Method] = r.Live
	}
	if live["host"] == 0 || live["dma-buf"] != 0 || live["peer-memory"] != 1 {
		t.Errorf("registrations %+v", s[0].Registrations)
	}
	w.close(t)
	for _, r := range w.e.NICStats()[0].Registrations {
		if r.Live != 0 || r.Bytes != 0 {
			t.Errorf("after Close: %+v", r)
		}
	}
}

// If a copy fails, the NIC's stream breaks and the store opens another one that works. TestMain
// would detect a leak.
func TestBrokenNICStreamIsOpenedAgain(t *testing.T) {
	hits := 0
	for n := 0; ; n++ {
		plan := fault.New(1)
		c := softConfig(t)
		c.Stream.Path = stream.PathCopyEngine // path of the software NIC's own copies
		c.Device.Sim.Faults = plan
		w := newWorld(t, c)
		plan.Add(fault.Nth(sim.OpBatch, int(plan.Seen(sim.OpBatch))+n))
		dumpErr := w.dump(t, 0, 0)
		loadErr := dumpErr
		if dumpErr == nil {
			loadErr = w.load(t, 0, 1)
		}
		injected := plan.Injected()
		if failed := loadErr != nil; failed && injected == 0 {
			t.Fatalf("copy %d: %v, and no fault was injected", n, loadErr)
		}
		plan.Clear()
		if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1)); err != nil {
			t.Fatalf("copy %d: after the last fault: %v", n, err)
		}
		if got := w.page(t, 1); !bytes.Equal(got, w.page(t, 0)) || len(got) == 0 {
			t.Fatalf("copy %d: the page that was loaded is another", n)
		}
		if injected == 0 {
			break
		}
		hits++
		if st := w.e.Store().Stats(); st.StreamsReopened == 0 {
			t.Errorf("copy %d failed and no stream was opened again: dump %v, load %v", n, dumpErr, loadErr)
		}
		w.close(t)
	}
	if hits < 2 {
		t.Errorf("only %d copies failed: the test looks in the wrong place", hits)
	}
}

// pagesOf describes a KV cache that contains the keys and then the values of each layer, n pages
// each.
func pagesOf(kv *mem.Region, g block.Geometry, layout *block.Layout, n int64) *store.Pages {
	p := &store.Pages{Shards: make([][]mem.Plane, layout.Shards())}
	bytes := g.PlaneBytes()
	for layer := range p.Shards {
		for i := range int64(g.PlanesPerLayer()) {
			plane := int64(layer*g.PlanesPerLayer()) + i
			p.Shards[layer] = append(p.Shards[layer], mem.Plane{
				Region: kv, Base: plane * n * bytes, Stride: bytes, Bytes: bytes,
				SlotOff: layout.ShardOff(layer) + i*bytes,
			})
		}
	}
	return p
}

// world is an engine with a KV cache of two pages.
type world struct {
	e     *kvlane.Engine
	kv    *mem.Region
	host  *mem.Region
	pages *store.Pages
	done  bool
}

func newWorld(t *testing.T, c kvlane.Config) *world {
	t.Helper()
	e, err := openConfig(t, c)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{e: e}
	n := int64(nicGeometry.Layers*nicGeometry.PlanesPerLayer()) * 2 * nicGeometry.PlaneBytes()
	if w.kv, err = e.Device().Alloc(n, device.AllocOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.host, err = e.Device().AllocHost(n); err != nil {
		t.Fatal(err)
	}
	if err := e.Register(w.kv); err != nil {
		t.Fatal(err)
	}
	layout, err := nicGeometry.Layout()
	if err != nil {
		t.Fatal(err)
	}
	w.pages = pagesOf(w.kv, nicGeometry, layout, 2)
	for i := range w.host.Bytes() {
		w.host.Bytes()[i] = byte(device.Mix64(uint64(i)))
	}
	w.copy(t, w.kv, w.host)
	t.Cleanup(func() { w.close(t) })
	return w
}

func (w *world) close(t *testing.T) {
	t.Helper()
	if w.done {
		return
	}
	w.done = true
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience())
	defer cancel()
	for _, err := range []error{
		w.e.Unregister(ctx, w.kv), w.e.Device().Free(w.kv), w.e.Device().Free(w.host), w.e.Close(ctx),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

// copy copies a whole region on a separate stream.
func (w *world) copy(t *testing.T, dst, src *mem.Region) {
	t.Helper()
	s, err := w.e.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(dst)}, Src: []mem.Extent{mem.All(src)}})
	if err == nil {
		err = ticket.Wait(t.Context())
	}
	if err := errors.Join(err, s.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
}

// page returns the content of page i, plane by plane.
func (w *world) page(t *testing.T, i int64) []byte {
	t.Helper()
	w.copy(t, w.host, w.kv)
	var all []byte
	n := nicGeometry.PlaneBytes()
	for off := i * n; off < w.host.Len(); off += 2 * n {
		all = append(all, w.host.Bytes()[off:off+n]...)
	}
	return all
}

func (w *world) key(id byte) block.Key { return w.e.Identity().Key([]byte{id}) }

func (w *world) dump(t *testing.T, id byte, page uint32) error {
	t.Helper()
	task, err := w.e.Store().Dump(t.Context(), w.pages, []store.Ref{{Key: w.key(id), Page: page}}, store.DumpOptions{})
	if err != nil {
		return err
	}
	return task.Durable(t.Context())
}

func (w *world) load(t *testing.T, id byte, page uint32) error {
	t.Helper()
	task, err := w.e.Store().Load(t.Context(), nil, w.pages, []store.Ref{{Key: w.key(id), Page: page}}, store.LoadOptions{})
	if err != nil {
		return err
	}
	return task.Wait(t.Context())
}

// If any step of Open fails, everything is closed again. TestMain would detect a leak.
func TestOpenWithNICsUnwindsAfterAnyFailure(t *testing.T) {
	for _, op := range []string{sim.OpAlloc, sim.OpAllocHost, sim.OpFree} {
		for n := 0; ; n++ {
			plan := fault.New(1, fault.Nth(op, n))
			c := softConfig(t)
			c.Device.Sim.Faults = plan
			e, err := kvlane.Open(t.Context(), c)
			opened := plan.Injected() == 0
			if opened {
				if err != nil {
					t.Fatalf("%s %d did not fail, and Open = %v", op, n, err)
				}
				plan.Clear()
				if err := e.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if n == 0 {
					t.Errorf("the opening has no %s", op)
				}
				break
			}
			if !errors.Is(err, fault.ErrInjected) {
				t.Errorf("%s %d failed, and Open = %v", op, n, err)
			}
		}
	}
}
