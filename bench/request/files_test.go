package request

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// Raw reads read the shards of the blocks, and report missing files.
func TestRawReadsAreOfTheBlocks(t *testing.T) {
	for _, pipeline := range []string{"file", "log"} {
		o := tiny()
		o.Work, o.Dir = []Work{Load}, t.TempDir()
		o.Engine.Store.Pipeline, o.Engine.Store.Direct = pipeline, kvlane.DirectAlways
		o.Engine.Device.Sim.Storage = sim.StorageModel{Aligned: true}
		o = o.withDefaults()
		geometry, err := GeometryByName(o.Geometries[0])
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRig(t.Context(), &o, geometry, 3)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.close(); err != nil {
				t.Error(err)
			}
		}()
		g := group{rig: r, blocks: 3, requests: 1}
		l := g.fileLane(Place{Work: Load, Hits: InPageCache, By: Raw})[0]
		clear(r.host.Bytes())
		if err := l.run(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		layout := r.blocks[0].Layout
		read := r.host.Bytes()[:3*layout.DataBytes()]
		var stored [][]byte
		for _, key := range r.loads.keys {
			image := tiertest.Buffer(t, layout.ImageBytes())
			if err := r.engine.Tiers()[1].Get(t.Context(), key, image); err != nil {
				t.Fatal(err)
			}
			stored = append(stored, image.Bytes()[layout.HeaderBytes():])
		}
		if pipeline == "log" { // a segment also contains headers
			if !slices.ContainsFunc(stored, func(b []byte) bool { return bytes.Contains(read, b[:layout.ShardBytes(0)]) }) {
				t.Error("no block of the log was read")
			}
			continue
		}
		if !bytes.Equal(read, bytes.Join(stored, nil)) {
			t.Error("the bytes read differ from those of the blocks")
		}
		if err := os.Remove(l.parts[2].name); err != nil {
			t.Fatal(err)
		}
		if err := l.run(t.Context(), time.Now()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after a file was removed: %v", err)
		}
	}
}
