package acceptance_test

import (
	"bytes"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// Asked for it, an engine reads a block that is in a tier below alone by the stream of files, which counts that.
func TestTiersAreReadByAStream(t *testing.T) {
	for _, tier := range []string{store.TierFile, store.TierLog} {
		t.Run(tier, func(t *testing.T) {
			const pages = 4
			c := testConfig(t)
			c.Model.KVHeads, c.Model.HeadSize = 8, 128 // 128 KiB a block
			c.Store.Pipeline, c.Store.CacheBytes, c.Store.StreamFiles = tier, 0, true
			if dir := c.Store.Dirs[0]; tier == store.TierLog {
				c.Store.Dirs, c.Store.LogDir = nil, dir
			}
			e := openEngine(t, c)
			page := c.Model.PlaneBytes()
			kv := newMirror(t, e, 4*pages*page)
			m := kvlane.CacheMemory{Pages: pages, PageBytes: page}
			for plane := range mem.DevAddr(4) {
				m.Planes = append(m.Planes, kv.kv.Dev()+plane*mem.DevAddr(pages*page))
			}
			cache, err := e.RegisterCache(m)
			if err != nil {
				t.Fatal(err)
			}
			want := kv.read(t)
			key := e.Key([]byte("a block"))
			d, err := e.Dump(t.Context(), cache, []kvlane.Ref{{Key: key, Page: 1}}, kvlane.DumpOptions{})
			if err == nil {
				err = d.Durable(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			l, err := e.Load(t.Context(), nil, cache, []kvlane.Ref{{Key: key, Page: 2}}, kvlane.LoadOptions{})
			if err == nil {
				err = l.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			got := kv.read(t)
			for plane := range int64(4) {
				from := plane * pages * page
				if !bytes.Equal(got[from+2*page:from+3*page], want[from+page:from+2*page]) {
					t.Errorf("plane %d of the page is not the block's", plane)
				}
			}
			var read int64
			for _, n := range e.FileStats().Bytes {
				read += n
			}
			if block := 4 * page; read < block {
				t.Errorf("the stream of files has read %d bytes, and the block has %d", read, block)
			}
			if err := cache.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
