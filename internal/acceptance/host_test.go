package acceptance_test

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// ordinary returns a KV cache of c's model in host memory that no device has registered. Each byte
// depends on its place.
func ordinary(t *testing.T, c kvlane.Config) ([]byte, kvlane.CacheMemory) {
	t.Helper()
	b, err := hostmem.Alloc(int64(c.Model.Layers*c.Model.PlanesPerLayer()) * cachePages * c.Model.PlaneBytes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hostmem.Free(b); err != nil {
			t.Error(err)
		}
	})
	for i := range b {
		b[i] = byte(device.Mix64(uint64(i)))
	}
	return b, cacheMemory(c, mem.DevAddr(hostmem.Addr(b)), false)
}

// A KV cache in pinned memory can be dumped and loaded on the simulated GPU, as on a real one.
func TestCacheInPinnedMemory(t *testing.T) {
	c := testConfig(t)
	e := openEngine(t, c)
	plane := cachePages * c.Model.PlaneBytes()
	r, err := e.Device().AllocHost(int64(c.Model.Layers*c.Model.PlanesPerLayer()) * plane)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Device().Free(r); err != nil {
			t.Error(err)
		}
	}()
	for i := range r.Bytes() {
		r.Bytes()[i] = byte(device.Mix64(uint64(i)))
	}
	cache, err := e.RegisterCache(cacheMemory(c, r.Dev(), false))
	if err != nil {
		t.Fatal(err)
	}
	key := e.Key([]byte("a"))
	dump, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: key, Page: 1}}, kvlane.DumpOptions{})
	if err == nil {
		err = dump.Durable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	lease, err := e.LeasePrefix(t.Context(), []kvlane.Key{key}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	load, err := e.Load(t.Context(), lease, cache, []kvlane.Ref{{Key: key, Page: 2}}, kvlane.LoadOptions{})
	if err == nil {
		err = load.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(0); at < r.Len(); at += plane {
		pages := r.Bytes()[at:]
		if n := c.Model.PlaneBytes(); !bytes.Equal(pages[2*n:3*n], pages[n:2*n]) {
			t.Errorf("the plane at byte %d: page 2 differs from page 1", at)
		}
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// The host device accesses a KV cache that the host program allocated, by its address. Blocks that
// one engine dumps can be loaded by the next engine.
func TestHostDeviceCarriesBlocksOfOrdinaryMemory(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver = kvlane.Host
	b, m := ordinary(t, c)
	before := bytes.Clone(b)

	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if info := e.Device().Info(); info.Driver != "host" || len(e.Notes()) != 0 {
		t.Errorf("device %+v, notes %q", info, e.Notes())
	}
	cache, err := e.RegisterCache(m)
	if err != nil {
		t.Fatal(err)
	}
	keys := []kvlane.Key{e.Key([]byte("a")), e.Key([]byte("b")), e.Key([]byte("c"))}
	dump, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: keys[0], Page: 4}, {Key: keys[1], Page: 1}, {Key: keys[2], Page: 5}}, kvlane.DumpOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dump.Durable(t.Context()), cache.Close(t.Context()), e.Close(t.Context())); err != nil {
		t.Fatal(err)
	}

	clear(b)
	e = openEngine(t, c)
	if cache, err = e.RegisterCache(m); err != nil {
		t.Fatal(err)
	}
	lease, err := e.LeasePrefix(t.Context(), keys, time.Minute)
	if err != nil || lease.Len() != len(keys) {
		t.Fatalf("%d blocks, %v", lease.Len(), err)
	}
	defer lease.Release()
	load, err := e.Load(t.Context(), lease, cache, []kvlane.Ref{{Key: keys[0], Page: 0}, {Key: keys[1], Page: 1}, {Key: keys[2], Page: 3}}, kvlane.LoadOptions{})
	if err == nil {
		err = load.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range load.Paths() {
		if c.Path != stream.PathKernel || c.Reason != streamcopy.ReasonOnly {
			t.Errorf("path %s, reason %q; the host device has one path", c.Path, c.Reason)
		}
	}
	plane := len(b) / len(m.Planes)
	for p := range m.Planes {
		for to, from := range map[int]int{0: 4, 1: 1, 3: 5, 2: -1} {
			want := make([]byte, m.PageBytes)
			if from >= 0 {
				copy(want, before[p*plane+from*int(m.PageBytes):])
			}
			if off := p*plane + to*int(m.PageBytes); !bytes.Equal(b[off:off+int(m.PageBytes)], want) {
				t.Errorf("plane %d: page %d differs from page %d before the dump", p, to, from)
			}
		}
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// The host device copies with the CPU on a single path, so it needs no measurement.
func TestHostDeviceChoosesNothing(t *testing.T) {
	c := testConfig(t)
	c.Device.Driver, c.Stream.ProfileDir = kvlane.Host, t.TempDir()
	e := openEngine(t, c)
	if kept, err := os.ReadDir(c.Stream.ProfileDir); err != nil || len(kept)+len(e.Notes()) > 0 {
		t.Errorf("profiles %v, %v, notes %q", kept, err, e.Notes())
	}
	s, err := e.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := ordinary(t, c)
	kv, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: int64(len(b)), Dev: mem.DevAddr(hostmem.Addr(b))})
	if err != nil {
		t.Fatal(err)
	}
	host, err := e.Device().AllocHost(kv.Len())
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(host)}, Src: []mem.Extent{mem.All(kv)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := ticket.Wait(t.Context()); err != nil || ticket.Completion().Path != stream.PathKernel || !bytes.Equal(host.Bytes(), b) {
		t.Errorf("%+v, %v", ticket.Completion(), err)
	}
	if err := errors.Join(s.Close(t.Context()), e.Device().Free(host)); err != nil {
		t.Error(err)
	}
	c.HostStreams = true
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("streams of the host program: %v", err)
	}
	c.HostStreams, c.Device.Index = false, 1
	if _, err := kvlane.Open(t.Context(), c); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("a second host: %v", err)
	}
}
