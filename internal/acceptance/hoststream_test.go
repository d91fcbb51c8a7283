package acceptance_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/stream"
)

// dumpAfterWork dumps pages that a blocked stream will compute later. Another stream of the program
// then reads the block from another page.
func dumpAfterWork(t *testing.T, change func(*kvlane.Config), onDevice bool) {
	w := newHostWorld(t, change)
	p, reader := w.program(), w.program()
	for i, layerwise := range []bool{false, true} {
		name := string(rune('a' + i))
		w.shut()
		p.block()
		for range 3 { // with no effect
			if _, err := p.st.Recorded(); err != nil {
				t.Fatal(err)
			}
		}
		dump := w.dump(p, name, 1, layerwise)
		ctx, cancel := context.WithTimeout(t.Context(), hostGlance)
		if err := dump.SourceFree(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the dump did not wait for the program: %v", err)
		}
		cancel()
		if slots := onDevice || layerwise; slots {
			w.untilFilling(name)
		} else if w.filling(name) {
			t.Error("the dump holds slots while it waits on the host")
		}
		w.open()
		w.must(errors.Join(dump.SourceFree(w.ctx()), dump.Durable(w.ctx())))
		task, read := w.load(reader, name, 2, layerwise)
		for layer, e := range read {
			w.passed(e)
			w.must(task.WaitShard(ended(), layer))
			w.checkRead(2, layer, byte(0x50+layer))
		}
	}
}

// ended returns a canceled context.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestDumpComesAfterRecordedWork(t *testing.T) {
	for _, path := range stream.Paths(stream.MovedByDevice) {
		t.Run(path.String(), func(t *testing.T) {
			dumpAfterWork(t, func(c *kvlane.Config) { c.Stream.Path = path }, true)
		})
	}
	t.Run("planned", func(t *testing.T) { dumpAfterWork(t, nil, true) })
}

// loadAfterWork loads a page that a blocked stream will still write. Another stream of the program
// waits for the layers.
func loadAfterWork(t *testing.T, change func(*kvlane.Config)) {
	w := newHostWorld(t, change)
	p, reader := w.program(), w.program()
	w.must(w.dump(p, "a", 1, false).Durable(w.ctx()))
	for _, layerwise := range []bool{false, true} {
		w.shut()
		p.block()
		for layer := range w.layers {
			p.compute(2, layer, 0x11)
		}
		work, err := p.st.Recorded()
		w.must(err)
		task, read := w.load(reader, "a", 2, layerwise, work)
		w.waits("the load came before the program was done", read[0])
		w.open()
		for layer, e := range read {
			w.passed(e)
			w.must(task.WaitShard(ended(), layer))
			w.checkRead(2, layer, byte(0x50+layer))
		}
	}
}

func TestLoadComesAfterRecordedWork(t *testing.T)     { loadAfterWork(t, nil) }
func TestLoadComesAfterRecordedWorkCUDA(t *testing.T) { loadAfterWork(t, onCUDA(t)) }

func TestDumpComesAfterRecordedWorkCUDA(t *testing.T) { dumpAfterWork(t, onCUDA(t), true) }

// halfway starts a layerwise dump without submitting a layer, and a load of its block that a stream
// waits for.
func halfway(w *hostWorld, p *program, layerwise bool) (dump *kvlane.DumpTask, load *kvlane.LoadTask, read []device.Event) {
	w.t.Helper()
	for layer := range w.layers {
		p.compute(1, layer, byte(0x50+layer))
	}
	w.passed(p.point())
	dump, err := w.e.Dump(w.ctx(), w.cache, w.refs("a", 1), kvlane.DumpOptions{Layerwise: true})
	w.must(err)
	w.untilFilling("a") // otherwise the load is a miss
	load, read = w.load(p, "a", 2, layerwise)
	w.waits("nothing has come", read[0])
	return dump, load, read
}

func streamWaitsForLoad(t *testing.T, change func(*kvlane.Config)) {
	for _, layerwise := range []bool{false, true} {
		w := newHostWorld(t, change)
		p := w.program()
		dump, load, read := halfway(w, p, layerwise)
		for layer := range w.layers {
			w.must(dump.SubmitShard(w.ctx(), layer))
		}
		for layer, e := range read {
			w.passed(e)
			w.must(load.WaitShard(ended(), layer))
			w.checkRead(2, layer, byte(0x50+layer))
		}
		w.must(p.st.WaitLoad(load))
		w.passed(p.point())
		w.must(load.Wait(w.ctx()))
	}
}

func TestStreamWaitsForLoad(t *testing.T)     { streamWaitsForLoad(t, nil) }
func TestStreamWaitsForLoadCUDA(t *testing.T) { streamWaitsForLoad(t, onCUDA(t)) }

// If a load fails, is canceled or the store is closed, the streams that wait for it continue, and
// the load's result reports that.
func TestStreamContinuesAfterAnyResultOfTheLoad(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(w *hostWorld, dump *kvlane.DumpTask, load *kvlane.LoadTask) error
		want error
	}{
		"failure": {func(_ *hostWorld, dump *kvlane.DumpTask, _ *kvlane.LoadTask) error { dump.Cancel(); return nil }, errdefs.ErrNotFound},
		"cancel":  {func(_ *hostWorld, _ *kvlane.DumpTask, load *kvlane.LoadTask) error { load.Cancel(); return nil }, errdefs.ErrCanceled},
		"close":   {func(w *hostWorld, _ *kvlane.DumpTask, _ *kvlane.LoadTask) error { return w.e.Store().Close(w.ctx()) }, errdefs.ErrClosed},
	} {
		for _, layerwise := range []bool{false, true} {
			w := newHostWorld(t, nil)
			p := w.program()
			dump, load, read := halfway(w, p, layerwise)
			w.must(end.by(w, dump, load))
			for layer, e := range read {
				w.passed(e)
				if err := load.WaitShard(ended(), layer); !errors.Is(err, end.want) {
					t.Errorf("%s: layer %d: %v", name, layer, err)
				}
			}
			dump.Cancel()
			if n := w.e.Store().Stats().LoadsExpired; n != 0 {
				t.Errorf("%s: %d loads are counted as expired", name, n)
			}
		}
	}
}

// A stream waits for a load only for a limited time and then reads the pages as they are. All
// blocks of that load must fail, even if they arrive later, and so must later waits for its layers.
func TestStreamThatDidNotWaitForTheLoadIsReported(t *testing.T) {
	w := newHostWorld(t, func(c *kvlane.Config) { c.Store.WaitMax = 300 * time.Millisecond })
	p, reader := w.program(), w.program()
	w.must(w.dump(p, "a", 1, false).Durable(w.ctx()))
	for i, layerwise := range []bool{false, true} {
		w.shut()
		p.block()
		work, err := p.st.Recorded()
		w.must(err)
		load, read := w.load(reader, "a", 2, layerwise, work)
		for _, e := range read {
			w.passed(e)
		}
		if n := w.e.Store().Stats().LoadsExpired; n != int64(i+1) {
			t.Errorf("layerwise %v: the stream continued, and %d loads have expired", layerwise, n)
		}
		w.open()
		if err := load.Wait(w.ctx()); !errors.Is(err, errdefs.ErrExpired) {
			t.Errorf("layerwise %v: the load: %v", layerwise, err)
		}
		for layer := range w.layers {
			if err := load.WaitShard(w.ctx(), layer); !errors.Is(err, errdefs.ErrExpired) {
				t.Errorf("layerwise %v: layer %d: %v", layerwise, layer, err)
			}
		}
	}
}

// Close of the engine ends the waits of streams before it frees the words that they read.
func TestEngineClosesWhileStreamsWait(t *testing.T) {
	c := testConfig(t)
	c.HostStreams = true
	e, err := kvlane.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	w := &hostWorld{t: t, e: e, layers: c.Model.Layers}
	w.word, err = e.Device().AllocHost(64)
	w.must(err)
	kv, err := e.Device().Alloc(1<<20, device.AllocOptions{})
	w.must(err)
	w.mirror, w.memory = &mirror{kv: kv}, cacheMemory(c, kv.Dev(), false)
	w.cache, err = e.RegisterCache(w.memory)
	w.must(err)
	q, err := e.Device().OpenQueue(device.QueueOptions{})
	w.must(err)
	p := &program{w: w, queue: q}
	p.adopt()
	st := p.st
	p.block() // delays the stream's wait
	_, err = st.Recorded()
	w.must(err)
	// The dump is not complete, so the load does not find the block.
	_, err = e.Dump(w.ctx(), w.cache, w.refs("a", 1), kvlane.DumpOptions{Layerwise: true})
	w.must(err)
	load, err := e.Load(w.ctx(), nil, w.cache, w.refs("a", 2), kvlane.LoadOptions{Awaited: true})
	w.must(err)
	w.must(st.WaitLoad(load))
	point := p.point()
	ctx, cancel := context.WithTimeout(t.Context(), 150*hostGlance) // the tasks end within this time
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing while a stream will still look at a word: %v", err)
	}
	if err := load.Wait(ended()); err == nil {
		t.Error("the load succeeded")
	}
	_, errAdopt := e.AdoptStream(0)
	_, errRecord := st.Recorded()
	_, errLoad := e.Load(w.ctx(), nil, w.cache, w.refs("a", 2), kvlane.LoadOptions{Awaited: true})
	for what, err := range map[string]error{"adopt": errAdopt, "record": errRecord, "load": errLoad} {
		if !errors.Is(err, errdefs.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	w.open()
	w.passed(point)
	w.must(q.Close(w.ctx()))
	w.must(w.cache.Close(w.ctx()))
	w.must(errors.Join(e.Device().Free(w.word), e.Device().Free(kv)))
	w.must(e.Close(w.ctx()))
}

// withParked makes streams wait, then loads and dumps, while another stream of the program waits
// for every layer.
func withParked(t *testing.T, change func(*kvlane.Config), most int) {
	w := newHostWorld(t, change)
	p := w.program()
	parked := make([]*program, min(most, w.adopter().WaitLimit()-1))
	for i := range parked {
		parked[i] = w.program()
	}
	ends := make([]device.Event, len(parked))
	for i, other := range parked {
		other.block()
		ends[i] = other.point()
	}
	stuck := time.AfterFunc(hostPatience/2, func() {
		t.Error("a load or dump waits for streams that wait for it")
		w.open()
	})
	for round := range 4 {
		name, layerwise := string(rune('a'+round)), round%2 == 1
		dump := w.dump(p, name, 1, layerwise)
		w.must(dump.Durable(w.ctx()))
		_, read := w.load(p, name, 2, layerwise)
		for layer, e := range read {
			w.passed(e)
			w.checkRead(2, layer, byte(0x50+layer))
		}
	}
	if stuck.Stop() {
		for _, e := range ends {
			w.waits("a parked stream", e)
			break
		}
	}
	w.open()
	for _, e := range ends {
		w.passed(e)
	}
}

// parked configures a simulated device on which allocations block while streams wait.
func parked(more func(*kvlane.Config)) func(*kvlane.Config) {
	return func(c *kvlane.Config) {
		c.Device.Sim = sim.Options{WaitsHoldAllocation: true}
		more(c)
	}
}

func TestLoadsWithParkedStreams(t *testing.T) {
	for _, path := range append(stream.Paths(stream.MovedByDevice), stream.PathNone) {
		t.Run(path.String(), func(t *testing.T) {
			withParked(t, parked(func(c *kvlane.Config) { c.Stream.Path = path }), 32)
		})
	}
}

func TestLoadsWithParkedStreamsCUDA(t *testing.T) {
	change := onCUDA(t)
	for _, path := range append(stream.Paths(stream.MovedByDevice), stream.PathNone) {
		t.Run(path.String(), func(t *testing.T) {
			withParked(t, func(c *kvlane.Config) { change(c); c.Stream.Path = path }, 32)
		})
	}
}

// Open creates the queues of all paths, so that no path allocates later. The store has two streams,
// and each has a queue of its own and a second one for the staged path.
func TestHostStreamsGetAllAhead(t *testing.T) {
	before := leak.Live()["queues"]
	c := testConfig(t)
	c.HostStreams = true
	openEngine(t, c)
	if n := leak.Live()["queues"] - before; n != 2*2 {
		t.Errorf("%d queues are open, want 4", n)
	}
}

func TestHostStreamsAreAskedFor(t *testing.T) {
	w := newHostWorld(t, nil)
	p := w.program()
	task, err := w.e.Load(w.ctx(), nil, w.cache, w.refs("a", 1), kvlane.LoadOptions{})
	w.must(err)
	without := openEngine(t, testConfig(t))
	_, errAdopt := without.AdoptStream(0)
	other, err := without.RegisterCache(cacheMemory(testConfig(t), w.mirror.kv.Dev(), false))
	w.must(err)
	_, errLoad := without.Load(w.ctx(), nil, other, w.refs("a", 1), kvlane.LoadOptions{Awaited: true})
	for what, err := range map[string]error{
		"a load that is not awaited": p.st.WaitLoad(task), "a shard that there is not": p.st.WaitShard(task, w.layers),
		"adopt without Config.HostStreams": errAdopt, "load without Config.HostStreams": errLoad,
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.must(other.Close(w.ctx()))
}
