package capi_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/capi"
)

// A wait ends at its timeout, and can be repeated.
func TestWaitsEndWithTheirTimeouts(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	keys := p.keys(1, 2)
	dump, err := lib.Dump(p.engine, p.cache, keys, upTo(2), capi.Layerwise, nil)
	p.must(err)
	results := make([]capi.Result, 2)
	for _, what := range []int32{capi.Done, capi.SourceFree, capi.Published} {
		want(t, "a look", lib.Wait(dump, what, 0), capi.Pending)
		want(t, "a wait", lib.Wait(dump, what, 20), capi.Pending)
	}
	want(t, "results", lib.Results(dump, results), capi.Pending)
	want(t, "closing its cache", lib.CloseCache(p.cache, 20), capi.Pending)
	for layer := range uint32(layers) {
		p.must(lib.SubmitLayer(dump, layer, nil))
	}
	want(t, "a layer again", lib.SubmitLayer(dump, 0, nil), capi.Exists)
	p.must(lib.Wait(dump, capi.SourceFree, patience))
	p.must(lib.Wait(dump, capi.Published, patience))
	p.must(lib.Wait(dump, capi.Done, patience))
	p.must(lib.Wait(dump, capi.Done, 0))
	p.must(lib.Results(dump, results))
	_, err = lib.Load(p.engine, 0, p.cache, keys, upTo(2), 0, nil)
	want(t, "a load of a cache that closes", err, capi.Closed)
}

// Arguments that do not fit together are refused.
func TestWrongArgumentsAreInvalid(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	other := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	keys := p.keys(1, 2)
	p.dump(keys)
	load, err := lib.Load(p.engine, 0, p.cache, keys, upTo(2), 0, nil)
	p.must(err)
	bad := func(what string, err error) {
		t.Helper()
		want(t, what, err, capi.Invalid)
	}
	bad("free source of a load", lib.Wait(load, capi.SourceFree, 0))
	bad("a layer that there is not", lib.Wait(load, layers, 0))
	bad("something else", lib.Wait(load, -4, 0))
	bad("a layer to a load", lib.SubmitLayer(load, 0, nil))
	bad("too little room", lib.Results(load, make([]capi.Result, 1)))
	bad("a stream without host_streams", lib.StreamWait(p.engine, 0, load, capi.Done))
	bad("another engine's load", lib.StreamWait(other.engine, 0, load, capi.Done))
	_, err = lib.Load(p.engine, 0, other.cache, keys, upTo(2), 0, nil)
	bad("another engine's cache", err)
	_, err = lib.Load(p.engine, 0, p.cache, keys, upTo(2), 16, nil)
	bad("a flag", err)
	_, err = lib.Load(p.engine, 0, p.cache, keys, upTo(2), capi.Promote|capi.Bypass, nil)
	bad("all blocks and none", err)
	_, err = lib.Load(p.engine, load, p.cache, keys, upTo(2), 0, nil)
	bad("a task as a lease", err)
	_, err = lib.Load(p.engine, 0, p.cache, keys, upTo(2), capi.Awaited, nil)
	bad("awaited without host_streams", err)
	_, err = lib.Dump(p.engine, p.cache, keys, upTo(2), capi.Awaited, nil)
	bad("an awaited dump", err)
	_, err = lib.Dump(p.engine, p.cache, keys, upTo(1), 0, nil)
	bad("a page for two blocks", err)
	_, err = lib.Load(p.engine, 0, p.cache, keys, []uint32{0, pages}, 0, nil)
	bad("a page beyond the end", err)
	bad("half a hash", lib.Keys(p.engine, 0, make([]byte, 33), 32, keys))
	bad("a page group", lib.Keys(p.engine, 1, make([]byte, 64), 32, keys))
	bad("no page group's memory", func() error { _, err := lib.RegisterCache(p.engine, nil); return err }())
	p.must(lib.Wait(load, capi.Done, patience))
}

// The results report the outcome of each block, and the wait returns the first error.
func TestResultsAreOfEachBlock(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	keys := p.keys(1, 3)
	p.dump(keys[:1])
	load, err := lib.Load(p.engine, 0, p.cache, keys, upTo(3), capi.Layerwise, nil)
	p.must(err)
	want(t, "a load of missing blocks", lib.Wait(load, capi.Done, patience), capi.NotFound)
	want(t, "a layer of it", lib.Wait(load, 1, patience), capi.NotFound)
	if text := capi.Text(lib.Wait(load, capi.Done, 0)); len(text) > 300 {
		t.Errorf("the words of a thousand blocks: %s", text)
	}
	for i, r := range p.done(load, 3) {
		if found := i == 0; (r.Status == capi.OK) != found || r.Status != capi.OK && r.Status != capi.NotFound || r.Undefined != 0 {
			t.Errorf("block %d: %+v", i, r)
		}
	}
}

// A tier whose directory is missing is left out of a dump, and reported with the reason.
func TestLeftOutTiersAreJSON(t *testing.T) {
	lib, files, logs := capi.New(), t.TempDir(), t.TempDir()
	p := start(t, lib, configuration(t, "", map[string]any{"store": map[string]any{"cache_bytes": 4 << 20, "dirs": []string{files}, "log_dir": logs}}), pages)
	var got []struct {
		Tier   string
		Blocks int
		Cause  string
	}
	dump := func(first int64) {
		t.Helper()
		h, err := lib.Dump(p.engine, p.cache, p.keys(first, 2), upTo(2), 0, nil)
		p.must(err)
		p.must(lib.Wait(h, capi.Done, patience))
		text, err := lib.LeftOut(h)
		p.must(err)
		p.must(json.Unmarshal(text, &got))
		if got == nil {
			t.Errorf("%s is no array", text)
		}
	}
	if dump(1); len(got) != 0 {
		t.Errorf("without a fault: %+v", got)
	}
	p.must(os.RemoveAll(files))
	p.must(os.WriteFile(files, nil, 0o600))
	if dump(10); len(got) != 1 || got[0].Tier != "file" || got[0].Blocks != 2 || got[0].Cause == "" {
		t.Errorf("without the directory: %+v", got)
	}
	load, err := lib.Load(p.engine, 0, p.cache, p.keys(1, 1), upTo(1), 0, nil)
	p.must(err)
	_, err = lib.LeftOut(load)
	want(t, "tiers left out of a load", err, capi.Invalid)
	p.must(lib.Wait(load, capi.Done, patience))
	p.must(os.Remove(files))
}

// A task above the limit is refused at once instead of waiting.
func TestTooManyTasksAreBusy(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	var running []capi.Handle
	for {
		h, err := lib.Dump(p.engine, p.cache, p.keys(int64(1000*len(running)), 1), upTo(1), capi.Layerwise, nil)
		if err != nil {
			want(t, "one too many", err, capi.Busy)
			break
		}
		running = append(running, h)
	}
	if len(running) != 256 {
		t.Errorf("%d tasks are under way", len(running))
	}
	for _, h := range running {
		p.must(lib.Cancel(h))
	}
	for _, h := range running {
		want(t, "a canceled dump", lib.Wait(h, capi.Done, patience), capi.Canceled)
		p.must(lib.Free(h))
	}
	p.dump(p.keys(1, 1))
}

// Dumps wait for earlier work of a program's stream, and a stream waits for a load. No host thread
// waits.
func TestStreamsOfTheProgram(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), map[string]any{"host_streams": true}), pages)
	q, err := p.e.Device().OpenQueue(device.QueueOptions{})
	p.must(err)
	defer q.Close(context.Background())
	native, ok := q.(interface{ Handle() uintptr })
	if !ok {
		t.Fatal("a queue without a handle")
	}
	stream := uint64(native.Handle())
	keys := p.keys(1, 2)
	dump, err := lib.Dump(p.engine, p.cache, keys, upTo(2), 0, &stream)
	p.must(err)
	p.must(lib.Wait(dump, capi.Done, patience))
	layered, err := lib.Dump(p.engine, p.cache, p.keys(2, 1), upTo(1), capi.Layerwise, nil)
	p.must(err)
	for layer := range uint32(layers) {
		p.must(lib.SubmitLayer(layered, layer, &stream))
	}
	p.must(lib.Wait(layered, capi.Done, patience))
	load, err := lib.Load(p.engine, 0, p.cache, keys, upTo(2), capi.Layerwise|capi.Awaited, &stream)
	p.must(err)
	p.must(lib.StreamWait(p.engine, stream, load, 0))
	p.must(lib.StreamWait(p.engine, stream, load, capi.Done))
	want(t, "a dump that is waited for", lib.StreamWait(p.engine, stream, dump, capi.Done), capi.Invalid)
	want(t, "a layer that there is not", lib.StreamWait(p.engine, stream, load, layers), capi.Invalid)
	p.must(lib.Wait(load, capi.Done, patience))
	nobody := stream + 12345
	_, err = lib.Dump(p.engine, p.cache, keys, upTo(2), 0, &nobody)
	want(t, "a dump behind a stream of nobody", err, capi.Invalid)
	_, err = lib.Load(p.engine, 0, p.cache, keys, upTo(2), 0, &nobody)
	want(t, "a load behind a stream of nobody", err, capi.Invalid)
}

// BenchmarkLease measures a lease of a prefix through the library.
func BenchmarkLease(b *testing.B) {
	p, keys := benchmark(b)
	b.ReportAllocs()
	for b.Loop() {
		lease, n, err := p.lib.Lease(p.engine, keys, 0, 0)
		if err != nil || n != len(keys) {
			b.Fatal(n, err)
		}
		p.must(p.lib.Release(lease))
	}
}

// BenchmarkLoad measures the start of a load through the library, without the load itself.
func BenchmarkLoad(b *testing.B) {
	p, keys := benchmark(b)
	at := upTo(len(keys))
	lease, _, err := p.lib.Lease(p.engine, keys, 0, 0)
	p.must(err)
	b.ReportAllocs()
	for b.Loop() {
		task, err := p.lib.Load(p.engine, lease, p.cache, keys, at, 0, nil)
		b.StopTimer()
		p.must(err)
		p.must(p.lib.Wait(task, capi.Done, patience))
		p.must(p.lib.Free(task))
		b.StartTimer()
	}
	p.must(p.lib.Release(lease))
}

func benchmark(b *testing.B) (*program, []kvlane.Key) {
	b.Helper()
	const n = 1000
	p := start(b, capi.New(), configuration(b, b.TempDir(), map[string]any{
		"store": map[string]any{"cache_bytes": 256 << 20, "pipeline": "cache", "lease_max_ms": 600_000},
	}), n)
	keys := p.keys(1, n)
	p.dump(keys)
	return p, keys
}

// The first call of Events begins the recording. Then it returns the changes, at most as many as fit.
func TestEvents(t *testing.T) {
	lib := capi.New()
	p := start(t, lib, configuration(t, t.TempDir(), nil), pages)
	var events [3]capi.Event
	n, err := lib.Events(p.engine, events[:])
	p.must(err)
	if n != 1 || events[0].Change != uint8(kvlane.EventLost) {
		t.Errorf("the first events are %v", events[:n])
	}
	keys := p.keys(1, 1)
	p.dump(keys)
	_, err = lib.Drop(p.engine, keys)
	p.must(err)
	var all []capi.Event
	for range 4 {
		n, err = lib.Events(p.engine, events[:2])
		p.must(err)
		all = append(all, events[:n]...)
	}
	stored, removed := uint8(kvlane.EventStored), uint8(kvlane.EventRemoved)
	if want := []capi.Event{{stored, 0, keys[0]}, {stored, 1, keys[0]}, {removed, 0, keys[0]}}; !slices.Equal(all, want) {
		t.Errorf("%v, want %v", all, want)
	}
	_, err = lib.Events(p.cache, events[:])
	want(t, "events of a cache", err, capi.Invalid)
}
