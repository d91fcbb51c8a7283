package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

const cachePages = 6

// cacheMemory describes a KV cache of testConfig's model at addr. The planes follow each other; if
// interleaved, each page holds all planes and is followed by a gap.
func cacheMemory(c kvlane.Config, addr mem.DevAddr, interleaved bool) kvlane.CacheMemory {
	n := c.Model.PlaneBytes()
	planes := c.Model.Layers * c.Model.PlanesPerLayer()
	m := kvlane.CacheMemory{Pages: cachePages, PageBytes: n}
	step := cachePages * n
	if interleaved {
		step, m.Stride = n, int64(planes)*n+64
	}
	for p := range planes {
		m.Planes = append(m.Planes, addr+mem.DevAddr(p)*mem.DevAddr(step))
	}
	return m
}

// inHeads splits each plane into two adjacent ones, with pages of half the length.
func inHeads(m kvlane.CacheMemory) kvlane.CacheMemory {
	out := kvlane.CacheMemory{Pages: m.Pages, PageBytes: m.PageBytes / 2}
	for _, a := range m.Planes {
		out.Planes = append(out.Planes, a, a+mem.DevAddr(int64(m.Pages)*out.PageBytes))
	}
	return out
}

// A block that is dumped from one page can be loaded into another, for each layout of the planes,
// whole and layer by layer.
func TestCacheCarriesBlocksHoweverPlanesLie(t *testing.T) {
	for name, interleaved := range map[string]bool{"planes": false, "interleaved": true, "heads": false} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			e := openEngine(t, c)
			planes := int64(c.Model.Layers * c.Model.PlanesPerLayer())
			dev := newMirror(t, e, planes*cachePages*(c.Model.PlaneBytes()+64))
			m := cacheMemory(c, dev.kv.Dev(), interleaved)
			if name == "heads" {
				m = inHeads(m)
			}
			cache, err := e.RegisterCache(m)
			if err != nil {
				t.Fatal(err)
			}
			// page returns the bytes of page i, plane by plane.
			page := func(all []byte, i int64) []byte {
				var b []byte
				for _, a := range m.Planes {
					off := int64(a-m.Planes[0]) + i*max(m.Stride, m.PageBytes)
					b = append(b, all[off:off+m.PageBytes]...)
				}
				return b
			}
			before, key := dev.read(t), e.Key([]byte("a"))
			dump, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: key, Page: 4}}, kvlane.DumpOptions{Layerwise: true})
			if err != nil {
				t.Fatal(err)
			}
			for layer := range c.Model.Layers {
				if err := dump.SubmitShard(t.Context(), layer); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(dump.SourceFree(t.Context()), dump.Durable(t.Context())); err != nil {
				t.Fatal(err)
			}
			if hits, err := e.Lookup(t.Context(), []kvlane.Key{key}); err != nil || len(hits) != 1 || hits[0].Tier == "" {
				t.Errorf("lookup: %+v, %v", hits, err)
			}
			if task, err := e.Prefetch(t.Context(), []kvlane.Key{key}); err != nil || task.Wait(t.Context()) != nil {
				t.Errorf("prefetch: %v", err)
			}
			lease, err := e.LeasePrefix(t.Context(), []kvlane.Key{key}, time.Minute)
			if err != nil || lease.Len() != 1 {
				t.Fatal(err)
			}
			defer lease.Release()
			for to, layerwise := range map[uint32]bool{0: false, 5: true} {
				load, err := e.Load(t.Context(), lease, cache, []kvlane.Ref{{Key: key, Page: to}}, kvlane.LoadOptions{Layerwise: layerwise})
				if err == nil {
					err = load.Wait(t.Context())
				}
				if err != nil {
					t.Errorf("load to page %d: %v", to, err)
				}
			}
			after := dev.read(t)
			for i, from := range []int64{4, 1, 2, 3, 4, 4} {
				if !bytes.Equal(page(after, int64(i)), page(before, from)) {
					t.Errorf("page %d differs from page %d before the dump", i, from)
				}
			}
			if err := cache.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// mirror is a KV cache on the device with a copy in host memory.
type mirror struct {
	e        *kvlane.Engine
	kv, host *mem.Region
}

func newMirror(t *testing.T, e *kvlane.Engine, n int64) *mirror {
	t.Helper()
	kv, err := e.Device().Alloc(n, device.AllocOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := e.Device().AllocHost(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Device().Free(kv), e.Device().Free(host)); err != nil {
			t.Error(err)
		}
	})
	for i := range host.Bytes() {
		host.Bytes()[i] = byte(device.Mix64(uint64(i)))
	}
	m := &mirror{e, kv, host}
	m.copy(t, kv, host)
	return m
}

func (m *mirror) copy(t *testing.T, dst, src *mem.Region) {
	t.Helper()
	s, err := m.e.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(dst)}, Src: []mem.Extent{mem.All(src)}})
	if err == nil {
		err = ticket.Wait(t.Context())
	}
	if err := errors.Join(err, s.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// read returns a copy of the device memory.
func (m *mirror) read(t *testing.T) []byte {
	t.Helper()
	m.copy(t, m.host, m.kv)
	return bytes.Clone(m.host.Bytes())
}

// TestDefectCacheClosesUnderATransfer checks that a cache cannot be closed while a dump may read
// its memory.
func TestDefectCacheClosesUnderATransfer(t *testing.T) {
	c := testConfig(t)
	e, other := openEngine(t, c), openEngine(t, testConfig(t))
	cache, err := e.RegisterCache(cacheMemory(c, newMirror(t, e, 1<<20).kv.Dev(), false))
	if err != nil {
		t.Fatal(err)
	}
	refs := []kvlane.Ref{{Key: e.Key([]byte("a")), Page: 1}}
	if _, err := other.Dump(t.Context(), cache, refs, kvlane.DumpOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("dump of another engine's cache: %v", err)
	}
	if _, err := e.Load(t.Context(), nil, nil, refs, kvlane.LoadOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("load without a cache: %v", err)
	}
	for range 200 { // ended tasks are not retained and do not block Close
		if load, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); err != nil || !errors.Is(load.Wait(t.Context()), errdefs.ErrNotFound) {
			t.Fatal(err)
		}
	}
	dependency := stream.NewTicket(1, nil)
	dump, err := e.Dump(t.Context(), cache, refs, kvlane.DumpOptions{After: []mem.Dependency{dependency}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := cache.Close(ctx); !errors.Is(err, errdefs.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close under a dump: %v", err)
	}
	if _, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("load while the cache closes: %v", err)
	}
	dependency.Resolve(stream.Completion{}, nil)
	if err := errors.Join(cache.Close(t.Context()), dump.Durable(t.Context()), cache.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// RegisterCache reports all faults of a description together.
func TestCacheMemoryIsChecked(t *testing.T) {
	c := testConfig(t)
	e := openEngine(t, c)
	for name, tt := range map[string]struct {
		change func(*kvlane.CacheMemory)
		want   []string
	}{
		"no planes":       {func(m *kvlane.CacheMemory) { m.Planes = nil }, []string{"0 planes do not divide"}},
		"a plane missing": {func(m *kvlane.CacheMemory) { m.Planes = m.Planes[1:] }, []string{"3 planes do not divide into the 2 shards"}},
		"another model":   {func(m *kvlane.CacheMemory) { m.PageBytes *= 2 }, []string{"shard 0 of a block has 1024 bytes"}},
		"no pages":        {func(m *kvlane.CacheMemory) { m.Pages = 0 }, []string{"0 pages"}},
		"absurd":          {func(m *kvlane.CacheMemory) { m.Stride = math.MaxInt64 }, []string{"more than an address space"}},
		"stride":          {func(m *kvlane.CacheMemory) { m.Stride = m.PageBytes - 1 }, []string{"do not fit a stride"}},
		"end of space":    {func(m *kvlane.CacheMemory) { m.Planes[1] = math.MaxUint64 - 9 }, []string{"plane 1", "beyond the address space"}},
		"the same twice":  {func(m *kvlane.CacheMemory) { m.Planes[3] = m.Planes[0] }, []string{"planes 0 and 3 overlap"}},
		"half a page":     {func(m *kvlane.CacheMemory) { m.Planes[1] = m.Planes[0] + mem.DevAddr(m.PageBytes)/2 }, []string{"planes 0 and 1 overlap"}},
		"into the next page": {func(m *kvlane.CacheMemory) {
			m.Stride = 2 * m.PageBytes
			m.Planes[1] = m.Planes[0] + mem.DevAddr(m.PageBytes) + 8
		}, []string{"planes 0 and 1 overlap"}},
		"too many pages": {func(m *kvlane.CacheMemory) { m.Pages *= 2 }, []string{"planes 0 and 1 overlap", "check the number of pages"}},
		"several":        {func(m *kvlane.CacheMemory) { m.Planes, m.Pages = append(m.Planes, 0), -1 }, []string{"5 planes", "-1 pages"}},
	} {
		m := cacheMemory(c, 1<<32, false)
		tt.change(&m)
		_, err := e.RegisterCache(m)
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not contain %q", name, err, part)
			}
		}
	}
}

// If PageBytes is omitted, it follows from the geometry.
func TestCacheMemoryWithoutPageBytes(t *testing.T) {
	c := testConfig(t)
	e := openEngine(t, c)
	for _, interleaved := range []bool{false, true} {
		m := cacheMemory(c, 1<<32, interleaved)
		m.PageBytes = 0
		cache, err := e.RegisterCache(m)
		if err == nil {
			err = cache.Close(t.Context())
		}
		if err != nil {
			t.Errorf("interleaved %v: %v", interleaved, err)
		}
	}
}

// Dump, Load, LeasePrefix, Lookup and Prefetch refuse the zero key: it was never set, and all
// blocks with it would be equal.
func TestZeroKeysAreRefused(t *testing.T) {
	c := testConfig(t)
	e := openEngine(t, c)
	cache, err := e.RegisterCache(cacheMemory(c, 1<<32, false))
	if err != nil {
		t.Fatal(err)
	}
	keys := []kvlane.Key{e.Key([]byte("a")), {}}
	refs := []kvlane.Ref{{Key: keys[0], Page: 1}, {Page: 2}}
	for name, call := range map[string]func() error{
		"dump":     func() error { _, err := e.Dump(t.Context(), cache, refs, kvlane.DumpOptions{}); return err },
		"load":     func() error { _, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); return err },
		"lease":    func() error { _, err := e.LeasePrefix(t.Context(), keys, 0); return err },
		"lookup":   func() error { _, err := e.Lookup(t.Context(), keys); return err },
		"prefetch": func() error { _, err := e.Prefetch(t.Context(), keys); return err },
		"drop":     func() error { _, err := e.Drop(t.Context(), keys); return err },
	} {
		if err := call(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "key is zero") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
