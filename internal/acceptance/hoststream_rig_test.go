package acceptance_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/tier"
)

const hostGlance = 20 * time.Millisecond

var hostPatience = testkit.Patience()

// hostWorld is an engine with a KV cache that a host program uses on its own streams.
type hostWorld struct {
	t      *testing.T
	e      *kvlane.Engine
	layers int
	mirror *mirror
	memory kvlane.CacheMemory
	cache  *kvlane.Cache
	word   *mem.Region // the streams wait until it is set
	out    *mem.Region // pages as the streams have read them
}

func newHostWorld(t *testing.T, change func(*kvlane.Config)) *hostWorld {
	t.Helper()
	c := testConfig(t)
	c.HostStreams = true
	if change != nil {
		change(&c)
	}
	w := &hostWorld{t: t, e: openEngine(t, c), layers: c.Model.Layers}
	w.mirror = newMirror(t, w.e, int64(c.Model.Layers*c.Model.PlanesPerLayer())*cachePages*c.Model.PlaneBytes())
	w.memory = cacheMemory(c, w.mirror.kv.Dev(), false)
	var err error
	w.cache, err = w.e.RegisterCache(w.memory)
	w.must(err)
	w.word, err = w.e.Device().AllocHost(64)
	w.must(err)
	w.out, err = w.e.Device().AllocHost(w.mirror.kv.Len())
	w.must(err)
	t.Cleanup(func() {
		w.must(w.cache.Close(context.Background()))
		w.must(errors.Join(w.e.Device().Free(w.word), w.e.Device().Free(w.out)))
	})
	return w
}

// onCUDA returns a function that configures the CUDA device. Without a GPU it skips the test.
func onCUDA(t *testing.T) func(*kvlane.Config) {
	t.Helper()
	if _, err := cuda.Load(); errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "cuda", err.Error())
	}
	return func(c *kvlane.Config) {
		c.Device.Driver = kvlane.CUDA
		c.Stream.Calibration = profile.Never
	}
}

func (w *hostWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *hostWorld) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hostPatience)
	w.t.Cleanup(cancel)
	return ctx
}

// program is a stream of the host program, implemented by a queue.
type program struct {
	w     *hostWorld
	queue device.Queue
	raw   device.HostStream // used by block
	st    *kvlane.HostStream
}

func (w *hostWorld) program() *program {
	w.t.Helper()
	q, err := w.e.Device().OpenQueue(device.QueueOptions{})
	w.must(err)
	w.t.Cleanup(func() { w.open(); w.must(q.Close(w.ctx())) })
	p := &program{w: w, queue: q}
	p.adopt()
	return p
}

// adopt adopts the queue as a host stream in the engine and in the device.
func (p *program) adopt() {
	p.w.t.Helper()
	q, ok := p.queue.(interface{ Handle() uintptr })
	if !ok {
		p.w.t.Fatalf("%T has no handle", p.queue)
	}
	var err error
	p.raw, err = p.w.adopter().AdoptStream(q.Handle())
	p.w.must(err)
	p.st, err = p.w.e.AdoptStream(q.Handle())
	p.w.must(err)
}

func (w *hostWorld) adopter() device.StreamAdopter {
	w.t.Helper()
	a, ok := w.e.Device().(device.StreamAdopter)
	if !ok {
		w.t.Fatalf("%T adopts no streams", w.e.Device())
	}
	return a
}

// block delays all work that the program enqueues after it until open is called.
func (p *program) block() {
	p.w.t.Helper()
	p.w.must(p.raw.WaitValue(mem.Extent{Region: p.w.word, Len: 8}, 1))
}

func (w *hostWorld) open() { hostmem.StoreUint64(w.word.Bytes(), 1) }
func (w *hostWorld) shut() { hostmem.StoreUint64(w.word.Bytes(), 0) }

// parts returns the extents of a layer of a page, plane by plane, in memory r with the layout of
// the KV cache.
func (w *hostWorld) parts(r *mem.Region, page, layer int) []mem.Extent {
	perLayer := len(w.memory.Planes) / w.layers
	var parts []mem.Extent
	for _, a := range w.memory.Planes[layer*perLayer : (layer+1)*perLayer] {
		parts = append(parts, mem.Extent{Region: r, Off: int64(a-w.memory.Planes[0]) + int64(page)*w.memory.PageBytes, Len: w.memory.PageBytes})
	}
	return parts
}

// compute enqueues a write of a layer of a page.
func (p *program) compute(page, layer int, v byte) {
	p.w.t.Helper()
	for _, e := range p.w.parts(p.w.mirror.kv, page, layer) {
		p.w.must(p.queue.Fill(e, v))
	}
}

// read enqueues a read of a layer of a page.
func (p *program) read(page, layer int) {
	p.w.t.Helper()
	to := p.w.parts(p.w.out, page, layer)
	for i, e := range p.w.parts(p.w.mirror.kv, page, layer) {
		p.w.must(p.queue.Copy(to[i], e))
	}
}

// point returns an event after all work enqueued so far.
func (p *program) point() device.Event {
	p.w.t.Helper()
	e, err := p.queue.Record()
	p.w.must(err)
	return e
}

// passed waits for event e.
func (w *hostWorld) passed(e device.Event) {
	w.t.Helper()
	defer e.Close()
	w.must(e.Wait(w.ctx()))
}

// waits checks that event e does not occur yet.
func (w *hostWorld) waits(what string, e device.Event) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hostGlance)
	defer cancel()
	if err := e.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("%s: the program did not wait: %v", what, err)
	}
}

// checkRead checks the bytes of a layer of a page that the program has read.
func (w *hostWorld) checkRead(page, layer int, v byte) {
	w.t.Helper()
	for _, e := range w.parts(w.out, page, layer) {
		if got := e.Bytes(); bytes.Count(got, []byte{v}) != len(got) {
			w.t.Errorf("layer %d of page %d holds %#x, want %#x", layer, page, got[0], v)
			return
		}
	}
}

func (w *hostWorld) refs(name string, page uint32) []kvlane.Ref {
	return []kvlane.Ref{{Key: w.e.Key([]byte(name)), Page: page}}
}

// filling reports whether the dump named name holds slots of the cache.
func (w *hostWorld) filling(name string) bool {
	hits, err := w.e.Lookup(w.ctx(), []kvlane.Key{w.refs(name, 0)[0].Key})
	w.must(err)
	return hits[0].State == tier.Filling
}

// untilFilling waits until the dump named name holds slots of the cache.
func (w *hostWorld) untilFilling(name string) {
	w.t.Helper()
	for deadline := time.Now().Add(hostPatience); !w.filling(name); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("the dump acquires no slot")
		}
	}
}

// dump starts a dump of a page, layerwise or whole, that depends on the program's work.
func (w *hostWorld) dump(p *program, name string, page uint32, layerwise bool) *kvlane.DumpTask {
	w.t.Helper()
	o := kvlane.DumpOptions{Layerwise: layerwise}
	var after []mem.Dependency
	for layer := range w.layers {
		p.compute(int(page), layer, byte(0x50+layer))
		if layerwise || layer == w.layers-1 {
			d, err := p.st.Recorded()
			w.must(err)
			after = append(after, d)
		}
	}
	if !layerwise {
		o.After = after
	}
	task, err := w.e.Dump(w.ctx(), w.cache, w.refs(name, page), o)
	w.must(err)
	for layer := 0; layerwise && layer < w.layers; layer++ {
		w.must(task.SubmitShard(w.ctx(), layer, after[layer]))
	}
	return task
}

// load loads a page after the given dependencies. The program waits for each layer and reads it.
func (w *hostWorld) load(p *program, name string, page uint32, layerwise bool, after ...mem.Dependency) (task *kvlane.LoadTask, read []device.Event) {
	w.t.Helper()
	task, err := w.e.Load(w.ctx(), nil, w.cache, w.refs(name, page), kvlane.LoadOptions{Layerwise: layerwise, Awaited: true, After: after})
	w.must(err)
	for layer := range w.layers {
		w.must(p.st.WaitShard(task, layer))
		p.read(int(page), layer)
		read = append(read, p.point())
	}
	return task, read
}
