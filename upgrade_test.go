package kvlane_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/mem"
)

const upgradeBlocks = 3 // of each page group

// upgradeConfig returns the configuration of the directories in testdata/upgrade.tar.gz: of a tier,
// file or log, and of one or three page groups.
func upgradeConfig(dir, tier, groups string) kvlane.Config {
	attention := kvlane.Geometry{Model: "test", Layers: 2, KVHeads: 2, HeadSize: 16, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	c := kvlane.Config{Revision: "r1", Device: kvlane.DeviceConfig{Driver: kvlane.Host}, Store: kvlane.StoreConfig{CacheBytes: 1 << 20}}
	if c.Model = attention; groups == "several" {
		sliding, state := attention, attention
		sliding.KVHeads = 1
		state.State, state.KVHeads, state.HeadSize = true, 1, 1024
		c.Model = kvlane.Geometry{}
		for i, g := range []kvlane.Group{{Name: "full", Geometry: attention}, {Name: "sliding", Geometry: sliding}, {Name: "mamba", Geometry: state}} {
			g.Geometry.Layers = 0
			g.Layers = []int{i, i + 3}
			c.Groups = append(c.Groups, g)
		}
	}
	if c.Store.Dirs = []string{dir}; tier == "log" {
		c.Store.Dirs, c.Store.LogDir = nil, dir
	}
	return c
}

// An upgradeWorld is an engine with pages for the blocks of each group, one plane after another.
type upgradeWorld struct {
	engine *kvlane.Engine
	cache  *kvlane.Cache
	memory []kvlane.CacheMemory
	kv     *mem.Region
}

func openUpgrade(t *testing.T, c kvlane.Config) *upgradeWorld {
	t.Helper()
	e := openEngine(t, c)
	geometries := []kvlane.Geometry{c.Model}
	if len(c.Groups) > 0 {
		geometries = nil
		for _, g := range c.Groups {
			g.Geometry.Layers = len(g.Layers)
			geometries = append(geometries, g.Geometry)
		}
	}
	w := &upgradeWorld{engine: e}
	kv, err := e.Device().AllocHost(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	w.kv = kv
	at := kv.Dev()
	for i := range geometries {
		m := kvlane.CacheMemory{Pages: upgradeBlocks, PageBytes: geometries[i].PlaneBytes()}
		for range geometries[i].Layers * geometries[i].PlanesPerLayer() {
			m.Planes = append(m.Planes, at)
			at += mem.DevAddr(int64(m.Pages) * m.PageBytes)
		}
		w.memory = append(w.memory, m)
	}
	if w.cache, err = e.RegisterCache(w.memory...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(w.cache.Close(t.Context()), e.Device().Free(kv)); err != nil {
			t.Error(err)
		}
	})
	return w
}

// refs returns the blocks of all groups. A page's number is its block's.
func (w *upgradeWorld) refs(t *testing.T) []kvlane.Ref {
	t.Helper()
	var refs []kvlane.Ref
	for g := range w.memory {
		for n := range uint32(upgradeBlocks) {
			key, err := w.engine.GroupKey(g, fmt.Appendf(nil, "block %d", n))
			if err != nil {
				t.Fatal(err)
			}
			refs = append(refs, kvlane.Ref{Key: key, Page: n})
		}
	}
	return refs
}

// eachPage calls f with the bytes of each page in each plane, and those that it has in the
// directories.
func (w *upgradeWorld) eachPage(f func(page, want []byte)) {
	for g, m := range w.memory {
		for plane, at := range m.Planes {
			for n := range int64(m.Pages) {
				page := w.kv.Bytes()[int64(at-w.kv.Dev())+n*m.PageBytes:][:m.PageBytes]
				want := make([]byte, len(page))
				for i := range want {
					want[i] = byte(i*7 + 31*plane + 101*int(n) + 59*g)
				}
				f(page, want)
			}
		}
	}
}

// Blocks in directories of commit 516102f are found, and have their bytes.
func TestUpgradeFindsOldBlocks(t *testing.T) {
	for _, tier := range []string{"file", "log"} {
		for _, groups := range []string{"one", "several"} {
			t.Run(tier+"/"+groups, func(t *testing.T) {
				dir := t.TempDir()
				unpackUpgrade(t, dir)
				w := openUpgrade(t, upgradeConfig(filepath.Join(dir, tier+"-"+groups), tier, groups))
				refs := w.refs(t)
				keys := make([]kvlane.Key, 0, len(refs))
				for _, r := range refs {
					keys = append(keys, r.Key)
				}
				lease, err := w.engine.LeasePrefix(t.Context(), keys, 10*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer lease.Release()
				load, err := w.engine.Load(t.Context(), lease, w.cache, refs, kvlane.LoadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if err := load.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.eachPage(func(page, want []byte) {
					if !bytes.Equal(page, want) {
						t.Errorf("a page has other bytes: %x, not %x", page[:8], want[:8])
					}
				})
			})
		}
	}
}

// unpackUpgrade unpacks testdata/upgrade.tar.gz.
func unpackUpgrade(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open("testdata/upgrade.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(unzip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if strings.HasSuffix(h.Name, "/") {
			err = os.MkdirAll(name, 0o750)
		} else {
			var b []byte
			if b, err = io.ReadAll(archive); err == nil {
				err = os.WriteFile(name, b, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
