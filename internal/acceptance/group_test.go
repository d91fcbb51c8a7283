package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

const hybridPages = 12

// hybridConfig returns the configuration of a model of six layers: two with full attention, two
// with a sliding window and half the heads, and two with Mamba state.
func hybridConfig(t *testing.T) kvlane.Config {
	t.Helper()
	attention := block.Geometry{Model: "test", KVHeads: 2, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	sliding, state := attention, attention
	sliding.KVHeads = 1
	state.State, state.KVHeads, state.HeadSize = true, 1, 1024
	return kvlane.Config{
		Groups: []kvlane.Group{
			{Name: "full", Layers: []int{0, 3}, Geometry: attention},
			{Name: "sliding", Layers: []int{1, 4}, Geometry: sliding},
			{Name: "mamba", Layers: []int{2, 5}, Geometry: state},
		},
		Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
		Store:  kvlane.StoreConfig{CacheBytes: 16 << 15, Dirs: []string{t.TempDir()}},
	}
}

// hybridMemory puts all groups into the same memory, as engines with a single pool of page numbers
// do. Layer n of each group starts at the same address, and pages have the stride of the longest
// group.
func hybridMemory(c *kvlane.Config, addr mem.DevAddr) []kvlane.CacheMemory {
	const stride = 2048 // bytes of a page: keys and values of a layer, or its state
	var all []kvlane.CacheMemory
	for _, g := range c.Groups {
		n := g.Geometry.PlaneBytes()
		m := kvlane.CacheMemory{Pages: hybridPages, PageBytes: n, Stride: stride}
		for i := range g.Layers {
			for p := range g.Geometry.PlanesPerLayer() {
				m.Planes = append(m.Planes, addr+mem.DevAddr(i*stride*hybridPages)+mem.DevAddr(int64(p)*n))
			}
		}
		all = append(all, m)
	}
	return all
}

// hybridPage returns the bytes of a page in all planes of a group.
func hybridPage(all []byte, addr mem.DevAddr, m *kvlane.CacheMemory, page uint32) []byte {
	var b []byte
	for _, a := range m.Planes {
		off := int64(a-addr) + int64(page)*m.Stride
		b = append(b, all[off:off+m.PageBytes]...)
	}
	return b
}

func groupKey(t *testing.T, e *kvlane.Engine, group int, hash string) kvlane.Key {
	t.Helper()
	key, err := e.GroupKey(group, []byte(hash))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// One dump stores blocks of all page groups, and one load copies them to other pages. The blocks
// come from the cache, and from files in an engine that is opened later. Both work whole and layer
// by layer.
func TestPageGroupsShareMemoryAndTasks(t *testing.T) {
	c := hybridConfig(t)
	w := &hybridWorld{c: &c}
	t.Run("dumped and loaded", func(t *testing.T) {
		w.open(t)
		w.dump(t)
		w.load(t)
	})
	t.Run("loaded from files", func(t *testing.T) {
		w.open(t)
		w.load(t)
	})
}

// hybridWorld is an engine of page groups with two blocks in each group.
type hybridWorld struct {
	c      *kvlane.Config
	e      *kvlane.Engine
	dev    *mirror
	memory []kvlane.CacheMemory
	cache  *kvlane.Cache
	keys   []kvlane.Key // two of each group
	dumped [][]byte     // contents of the blocks
}

func (w *hybridWorld) open(t *testing.T) {
	t.Helper()
	w.e = openEngine(t, *w.c)
	w.dev = newMirror(t, w.e, 2*2048*hybridPages)
	w.memory = hybridMemory(w.c, w.dev.kv.Dev())
	var err error
	if w.cache, err = w.e.RegisterCache(w.memory...); err != nil {
		t.Fatal(err)
	}
	w.keys = nil
	for g := range w.c.Groups {
		w.keys = append(w.keys, groupKey(t, w.e, g, "a"), groupKey(t, w.e, g, "b"))
	}
	t.Cleanup(func() {
		if err := w.cache.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// page returns the content of a page of the group of w.keys[i].
func (w *hybridWorld) page(all []byte, i int, page uint32) []byte {
	return hybridPage(all, w.dev.kv.Dev(), &w.memory[i/2], page)
}

func (w *hybridWorld) dump(t *testing.T) {
	t.Helper()
	var refs []kvlane.Ref
	before := w.dev.read(t)
	for i, key := range w.keys {
		refs = append(refs, kvlane.Ref{Key: key, Page: uint32(i)})
		w.dumped = append(w.dumped, w.page(before, i, uint32(i)))
	}
	dump, err := w.e.Dump(t.Context(), w.cache, refs, kvlane.DumpOptions{Layerwise: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range []int{3, 0, 1, 2, 5, 4} {
		if err := dump.SubmitShard(t.Context(), layer); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(dump.SourceFree(t.Context()), dump.Durable(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func (w *hybridWorld) load(t *testing.T) {
	t.Helper()
	lease, err := w.e.LeasePrefix(t.Context(), w.keys, time.Minute)
	if err != nil || lease.Len() != len(w.keys) {
		t.Fatalf("leased %d of %d, %v", lease.Len(), len(w.keys), err)
	}
	defer lease.Release()
	for round, layerwise := range []bool{true, false} {
		var refs []kvlane.Ref
		for i, key := range w.keys {
			refs = append(refs, kvlane.Ref{Key: key, Page: uint32(hybridPages - 1 - (i+round)%len(w.keys))})
		}
		load, err := w.e.Load(t.Context(), lease, w.cache, refs, kvlane.LoadOptions{Layerwise: layerwise})
		if err != nil {
			t.Fatal(err)
		}
		for layer := range 6 {
			if err := load.WaitShard(t.Context(), layer); err != nil {
				t.Fatal(err)
			}
		}
		if err := load.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := w.dev.read(t)
		for i, ref := range refs {
			if !bytes.Equal(w.page(after, i, ref.Page), w.dumped[i]) {
				t.Errorf("layerwise %v: page %d does not hold block %d", layerwise, ref.Page, i)
			}
		}
	}
}

// Two groups may share memory. A load that names the same page for both would mix two blocks, so it
// is refused.
func TestDefectPageOfTwoGroups(t *testing.T) {
	c := hybridConfig(t)
	e := openEngine(t, c)
	memory := hybridMemory(&c, newMirror(t, e, 2*2048*hybridPages).kv.Dev())
	cache, err := e.RegisterCache(memory...)
	if err != nil {
		t.Fatal(err)
	}
	refs := []kvlane.Ref{{Key: groupKey(t, e, 0, "a"), Page: 1}, {Key: groupKey(t, e, 2, "a"), Page: 1}}
	if _, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "given twice") {
		t.Errorf("load: %v", err)
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// The same tokens have a different key in each group. A stored block is no hit for the key of
// another group, and a key of no group is refused.
func TestDefectKeyOfAnotherGroupHits(t *testing.T) {
	c := hybridConfig(t)
	e := openEngine(t, c)
	memory := hybridMemory(&c, newMirror(t, e, 2*2048*hybridPages).kv.Dev())
	cache, err := e.RegisterCache(memory...)
	if err != nil {
		t.Fatal(err)
	}
	if e.Key([]byte("a")) != groupKey(t, e, 0, "a") {
		t.Error("Key is not the first group's")
	}
	dump, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: groupKey(t, e, 1, "a"), Page: 3}}, kvlane.DumpOptions{})
	if err != nil || dump.Durable(t.Context()) != nil {
		t.Fatal(err)
	}
	keys := []kvlane.Key{groupKey(t, e, 0, "a"), groupKey(t, e, 1, "a"), groupKey(t, e, 2, "a")}
	hits, err := e.Lookup(t.Context(), keys)
	if err != nil || hits[0].Tier != "" || hits[1].Tier == "" || hits[2].Tier != "" {
		t.Errorf("lookup: %+v, %v", hits, err)
	}
	for _, group := range []int{-1, 3} {
		if _, err := e.GroupKey(group, []byte("a")); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("key of group %d: %v", group, err)
		}
	}
	refs := []kvlane.Ref{{Key: e.Identity().Key([]byte("a")), Page: 3}}
	refs[0].Key[31] ^= 1 // the key has the tag of no group
	if _, err := e.Load(t.Context(), nil, cache, refs, kvlane.LoadOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("load of a key of no group: %v", err)
	}
	if _, err := e.Dump(t.Context(), cache, refs, kvlane.DumpOptions{}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("dump of a key of no group: %v", err)
	}
	if err := cache.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestGroupsAreChecked(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*kvlane.Config)
		want   []string
	}{
		"a model beside them": {func(c *kvlane.Config) { c.Model = c.Groups[0].Geometry }, []string{"in addition to a model"}},
		"no name":             {func(c *kvlane.Config) { c.Groups[1].Name = "" }, []string{"page group 1", "no name"}},
		"no layers":           {func(c *kvlane.Config) { c.Groups[1].Layers = nil }, []string{"page group 1", "no layers"}},
		"a layer missing":     {func(c *kvlane.Config) { c.Groups[2].Layers = []int{2, 6} }, []string{"layer 6", "a layer is missing"}},
		"a layer twice":       {func(c *kvlane.Config) { c.Groups[2].Layers = []int{2, 3} }, []string{"layer 3 is in the page groups 0 and 2"}},
		"not ascending":       {func(c *kvlane.Config) { c.Groups[0].Layers = []int{3, 0} }, []string{"layer 0 comes after layer 3"}},
		"other layers": {func(c *kvlane.Config) {
			c.Groups[0].Geometry.Layers = 3
		}, []string{"2 layers, and its blocks have 3 shards"}},
		"several": {func(c *kvlane.Config) {
			c.Groups[0].Geometry.HeadSize, c.Groups[2].Geometry.MLA = 0, true
		}, []string{`page group 0 ("full")`, "head size", `page group 2 ("mamba")`, "latents or a state"}},
		"the group's identity": {func(c *kvlane.Config) {
			g := &c.Groups[0]
			g.Geometry.Layers = 2
			layout, _ := g.Geometry.Layout()
			id := g.Geometry.Identity("", "")
			id.Group, id.Layers = "x", "0"
			g.Geometry, g.Blocks = block.Geometry{}, &kvlane.Blocks{Identity: id, Layout: layout}
		}, []string{"names page group"}},
		"cache": {func(c *kvlane.Config) { c.Store.CacheBytes = 2 * 9000 }, []string{"does not hold 2 blocks"}},
	} {
		c := hybridConfig(t)
		tt.change(&c)
		err := c.Validate()
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
	c := hybridConfig(t)
	e := openEngine(t, c)
	memory := hybridMemory(&c, 1<<32)
	memory[1].Planes, memory[2].Pages = memory[1].Planes[1:], 0
	for _, m := range [][]kvlane.CacheMemory{memory, memory[:2], nil} {
		_, err := e.RegisterCache(m...)
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%d memories: %v", len(m), err)
		}
		if len(m) == 3 && (!strings.Contains(err.Error(), `("sliding")`) || !strings.Contains(err.Error(), `("mamba")`)) {
			t.Errorf("%q does not name both groups", err)
		}
	}
}

// A directory belongs to one set of groups, in any order.
func TestDirectoryIsOfOneSetOfGroups(t *testing.T) {
	c := hybridConfig(t)
	if err := openEngine(t, c).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := c
	second.Groups = slices.Clone(c.Groups)
	slices.Reverse(second.Groups)
	if err := openEngine(t, second).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*kvlane.Config)
		want   []string
	}{
		"fewer": {func(c *kvlane.Config) {
			c.Groups = c.Groups[:2]
			c.Groups[0].Layers, c.Groups[1].Layers = []int{0, 2}, []int{1, 3}
		}, []string{`page group "mamba"`, "was not given"}},
		"one": {func(c *kvlane.Config) {
			c.Model, c.Groups = c.Groups[0].Geometry, nil
			c.Model.Layers = 2
		}, []string{"is not of them", `page group "full"`}},
		"other": {func(c *kvlane.Config) { c.Groups[2].Geometry.HeadSize = 512 }, []string{`page group "mamba"`, "is not of them", "was not given"}},
	} {
		other := c
		other.Groups = slices.Clone(c.Groups)
		tt.change(&other)
		e, err := openConfig(t, other)
		if err == nil {
			err = errors.Join(errors.New("it opened"), e.Close(t.Context()))
		}
		if !errors.Is(err, errdefs.ErrMismatch) {
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
