package capi_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/capi"
)

// Blocks that are dumped are found by a later engine and can be loaded to other pages.
func TestBlocksOutliveTheirEngine(t *testing.T) {
	dir, lib := t.TempDir(), capi.New()
	first := start(t, lib, configuration(t, dir, nil), pages)
	for i := range first.host.Bytes() {
		first.host.Bytes()[i] = byte(i*7 + i>>8)
	}
	first.move(first.kv, first.host)
	wrote := bytes.Clone(first.host.Bytes())
	keys := first.keys(1, 4)
	first.dump(keys)
	first.close()

	p := start(t, lib, configuration(t, dir, nil), pages)
	there := make([]uint8, 5)
	p.must(p.lib.Lookup(p.engine, append(slices.Clone(keys), kvlane.Key{1}), there, 0))
	if !bytes.Equal(there, []uint8{capi.InFiles, capi.InFiles, capi.InFiles, capi.InFiles, 0}) {
		t.Errorf("lookup: %v", there)
	}
	prefetch, err := p.lib.Prefetch(p.engine, keys[:2])
	p.must(err)
	p.must(p.lib.Wait(prefetch, capi.Done, patience))
	lease, n, err := p.lib.Lease(p.engine, append(slices.Clone(keys), kvlane.Key{1}), 0, patience)
	p.must(err)
	if n != 4 {
		t.Fatalf("leased %d blocks", n)
	}
	p.must(p.lib.Lookup(p.engine, append(slices.Clone(keys), kvlane.Key{1}), there, 0))
	if !bytes.Equal(there, []uint8{capi.InMemory, capi.InMemory, capi.InFiles, capi.InFiles, 0}) {
		t.Errorf("lookup after a prefetch of two: %v", there)
	}
	p.must(p.lib.ReportComputed(p.engine, 1000, 0.5))
	p.must(p.lib.ReportDelay(p.engine, 0))
	if worth, err := p.lib.Worth(lease, 64, 0); err != nil || worth != n {
		t.Errorf("%d blocks are worth loading: %v", worth, err)
	}
	task, err := p.lib.Load(p.engine, lease, p.cache, keys, []uint32{9, 8, 7, 6}, capi.Layerwise, nil)
	p.must(err)
	p.must(p.lib.Wait(task, 0, patience))
	p.must(p.lib.Wait(task, layers-1, patience))
	p.must(p.lib.Wait(task, capi.Done, -1))
	if s, err := p.lib.LoadSeconds(task); err != nil || s <= 0 || s > 60 {
		t.Errorf("the load has taken %v s: %v", s, err)
	}
	if s, err := p.lib.LoadSeconds(prefetch); err != nil || s != 0 {
		t.Errorf("the prefetch, which is no load, has taken %v s: %v", s, err)
	}
	p.must(p.lib.Release(lease))
	p.move(p.host, p.kv)
	for plane := range planes {
		for i := range 4 {
			from, to := (plane*pages+i)*pageBytes, (plane*pages+9-i)*pageBytes
			if !bytes.Equal(p.host.Bytes()[to:to+pageBytes], wrote[from:from+pageBytes]) {
				t.Errorf("block %d, plane %d: wrong bytes", i, plane)
			}
		}
	}
}

// A handle has one type, and is invalid after it was freed.
func TestHandlesAreNeverUsedTwice(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	lease, n, err := lib.Lease(p.engine, p.keys(1, 2), 5, 0)
	p.must(err)
	if n != 0 {
		t.Errorf("leased %d blocks of an empty prefix", n)
	}
	task, err := lib.Prefetch(p.engine, nil)
	p.must(err)
	want(t, "a task as a lease", lib.Release(task), capi.Invalid)
	want(t, "an engine as a cache", lib.CloseCache(p.engine, 0), capi.Invalid)
	want(t, "a lease as an engine", lib.Close(lease, 0), capi.Invalid)
	want(t, "nothing", lib.Free(0), capi.Invalid)
	p.must(lib.Release(lease))
	want(t, "a lease again", lib.Release(lease), capi.Expired)
	_, err = lib.Load(p.engine, lease, p.cache, nil, nil, 0, nil)
	if want(t, "a released lease", err, capi.Expired); !strings.Contains(err.Error(), "released") || strings.Contains(err.Error(), "expired") {
		t.Errorf("a released lease: %v", err)
	}
	want(t, "a lease that was never given", lib.Release(lease+1000), capi.Invalid)
	p.must(lib.Free(task))
	want(t, "a task again", lib.Free(task), capi.Invalid)
	want(t, "a freed task", lib.Wait(task, capi.Done, 0), capi.Invalid)
	want(t, "a freed task", lib.Cancel(task), capi.Invalid)
	want(t, "a freed task", lib.Results(task, nil), capi.Invalid)
	second, err := lib.Prefetch(p.engine, nil)
	p.must(err)
	if second <= task {
		t.Errorf("handle %d follows %d", second, task)
	}
	if _, _, err = lib.Lease(p.engine, nil, -1, 0); err == nil {
		t.Error("a lease of less than no time")
	}
	p.close()
	want(t, "a task of a closed engine", lib.Free(second), capi.Invalid)
	want(t, "a closed engine", lib.Close(p.engine, 0), capi.Closed)
	want(t, "a closed cache", lib.CloseCache(p.cache, 0), capi.Closed)
	want(t, "a closed engine's lookup", lib.Lookup(p.engine, nil, nil, 0), capi.Closed)
	if n := lib.Live(); n != 0 {
		t.Errorf("%d handles are left", n)
	}
}

// The zero key was never set and names no block.
func TestZeroKeysAreRefused(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	keys := append(p.keys(1, 1), kvlane.Key{})
	_, err := lib.Dump(p.engine, p.cache, keys, []uint32{0, 1}, 0, nil)
	want(t, "dump", err, capi.Invalid)
	_, err = lib.Load(p.engine, 0, p.cache, keys, []uint32{0, 1}, 0, nil)
	want(t, "load", err, capi.Invalid)
	_, _, err = lib.Lease(p.engine, keys, 0, 0)
	want(t, "lease", err, capi.Invalid)
	_, err = lib.Prefetch(p.engine, keys)
	want(t, "prefetch", err, capi.Invalid)
	want(t, "lookup", lib.Lookup(p.engine, keys, make([]uint8, 2), 0), capi.Invalid)
	_, err = lib.Drop(p.engine, keys)
	want(t, "drop", err, capi.Invalid)
	_, err = lib.Remove(p.engine, keys, 0)
	want(t, "remove", err, capi.Invalid)
	want(t, "pin", lib.Pin(p.engine, keys, false, 0), capi.NotFound)
	p.close()
}

// Calls of an engine that is being closed always return a status.
func TestCallsWhileAnEngineCloses(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	keys := p.keys(1, 4)
	p.dump(keys)
	p.must(lib.CloseCache(p.cache, patience))
	p.must(p.e.Device().Free(p.kv))
	p.must(p.e.Device().Free(p.host))
	p.closed = true
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				h, _, err := lib.Lease(p.engine, keys, 0, 0)
				if err == nil {
					_ = lib.Release(h) // the engine may be closed already
				}
				task, err := lib.Prefetch(p.engine, keys)
				if err == nil {
					_ = lib.Wait(task, capi.Done, patience)
					_ = lib.Free(task)
				}
				if s := capi.StatusOf(err); s == capi.Closed {
					return
				} else if s != capi.OK && s != capi.Canceled {
					t.Errorf("prefetch: %v", err)
					return
				}
			}
		})
	}
	p.must(lib.Close(p.engine, patience))
	wg.Wait()
}

func TestFiguresAndNotesAreJSON(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	p.dump(p.keys(1, 2))
	text, err := lib.Stats(p.engine)
	p.must(err)
	var stats struct {
		Store struct {
			Dumped int
			Paths  []struct {
				Path  string
				Busy  float64
				Bytes int64
			} `json:"dump_paths"`
			Tiers   []struct{ Name string }
			GivenUp any `json:"given_up"`
		}
		Plan, Files map[string]any
		NICs        []any
	}
	p.must(json.Unmarshal(text, &stats))
	s := stats.Store
	if s.Dumped != 2 || len(s.Paths) != 1 || s.Paths[0].Path == "" || s.Paths[0].Busy <= 0 || len(s.Tiers) != 2 || s.Tiers[1].Name != "file" || s.GivenUp != nil {
		t.Errorf("figures: %s", text)
	}
	notes, err := lib.Notes(p.engine)
	p.must(err)
	var list []string
	p.must(json.Unmarshal(notes, &list))
	p.must(lib.ReportSlowdown(p.engine, 3))
	want(t, "a slowdown that is no number", lib.ReportSlowdown(p.engine, nan()), capi.Invalid)
	want(t, "a computation in no time", lib.ReportComputed(p.engine, 1, 0), capi.Invalid)
	want(t, "a delay that is negative", lib.ReportDelay(p.engine, -1), capi.Invalid)
	want(t, "a delay of years", lib.ReportDelay(p.engine, 1e9), capi.Invalid)
	want(t, "a computation in a time that is no number", lib.ReportComputed(p.engine, 1, nan()), capi.Invalid)
	want(t, "a computation of no tokens", lib.ReportComputed(p.engine, 0, 1), capi.Invalid)
	_, err = lib.Worth(p.engine, 1, 0)
	want(t, "the worth of an engine", err, capi.Invalid)
	for name, is := range map[string]string{"VerifiedByCPU": "verified_by_cpu", "CTAs": "ctas", "NICs": "nics", "GDRBytes": "gdr_bytes", "Loads": "loads"} {
		if got := capi.Snake(name); got != is {
			t.Errorf("%s is %s, not %s", name, got, is)
		}
	}
}

func nan() float64 { zero := 0.0; return zero / zero }
