package store_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
)

// errorLog records every error that a store reports, from tasks and hooks.
type errorLog struct {
	mu   sync.Mutex
	errs []error
}

func (l *errorLog) add(errs ...error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, errs...)
}

func (l *errorLog) hooks() store.Hooks {
	return store.Hooks{
		Corrupt:        func(_ string, _ block.Key, err error) { l.add(err) },
		LeftOut:        func(_ string, _ block.Key, err error) { l.add(err) },
		BatchFailed:    func(_ string, err error) { l.add(err) },
		StreamReopened: func(_ string, err error) { l.add(err) },
		Fallback:       func(_ string, _ block.Key, err error) { l.add(err) },
	}
}

// TestEveryFaultIsReported makes operation N of each kind fail, for N = 0, 1, 2 and so on until no
// operation is left. Each time the store must report the fault, return no wrong byte, keep durable
// blocks, and continue to work.
func TestEveryFaultIsReported(t *testing.T) {
	t.Parallel()
	for _, layer := range []struct {
		name string
		ops  []string
	}{
		{"device", []string{sim.OpWork, sim.OpCallLaunch, sim.OpRecord, sim.OpOpen}},
		{"summing device", []string{sim.OpLaunch, sim.OpRecord, sim.OpOpen}},
		{"file", []string{faulty.OpLookup, faulty.OpRetain, faulty.OpGet, faulty.OpPut}},
		{"direct", []string{sim.OpLaunch, sim.OpFileRegister, sim.OpFileRead, sim.OpFileWrite}},
		{"direct below a cache", []string{sim.OpLaunch, sim.OpFileRead}},
		{"direct by queues", []string{sim.OpFileEnqueue, sim.OpFileRead, sim.OpFileWrite}},
		{"cache", []string{faulty.OpLookup, faulty.OpRetain, faulty.OpOpen, faulty.OpReserve, faulty.OpPublish}},
	} {
		for _, op := range layer.ops {
			for _, action := range []string{"fail", "partial", "corrupt"} {
				// For these operations the injected wrong byte is detected only if the copy
				// computes checksums. Direct dumps are verified later.
				if action == "corrupt" && op != sim.OpFileRead && (op != sim.OpLaunch || layer.name == "direct") {
					continue
				}
				// Only operations that move bytes can be cut short. A short Open or Retain is an
				// ordinary miss.
				if action == "partial" && !slices.Contains([]string{sim.OpWork, faulty.OpGet, faulty.OpPut, faulty.OpReserve, sim.OpFileRead, sim.OpFileWrite}, op) {
					continue
				}
				t.Run(layer.name+"/"+op+"/"+action, func(t *testing.T) {
					t.Parallel()
					n := 0
					for failNth(t, layer.name, op, action, n) {
						if n++; n > 300 {
							t.Fatal("the number of operations has no limit")
						}
					}
					if n == 0 {
						t.Fatal("the script does not use the operation")
					}
				})
			}
		}
	}
}

// failNth runs the script with one fault and reports whether the fault was injected.
func failNth(t *testing.T, layer, op, action string, n int) bool {
	t.Helper()
	plan := fault.New(1)
	log := &errorLog{}
	o := rigOptions{slots: 6, dirs: []string{t.TempDir()}, path: stream.PathKernel}
	o.tune = func(c *store.Config) { c.Hooks = log.hooks() }
	clock := clockwork.NewRealClock()
	switch layer {
	case "summing device":
		o.planeBytes = leafy
	case "direct", "direct by queues", "direct below a cache":
		o.planeBytes, o.window = leafy, layer != "direct below a cache"
		o.direct = &directOptions{model: sim.StorageModel{Aligned: true}}
		if layer == "direct by queues" {
			o.direct.queues = 2
		}
	case "file":
		o.wrapFile = func(tr tier.Tier) tier.Tier { return faulty.New(tr, plan, clock) }
	case "cache":
		o.wrapCache = func(tr tier.SlotTier) tier.SlotTier { return faulty.NewSlots(tr, plan, clock) }
	}
	r := newRig(t, o)
	for i := range 4 {
		r.fill(uint32(i), i+1)
		r.poison(uint32(8 + i))
	}
	if strings.HasSuffix(layer, "device") || o.direct != nil {
		plan = r.plan
	}
	rule := fault.Nth(op, int(plan.Seen(op))+n)
	switch action {
	case "partial":
		rule = rule.Partial(nil)
	case "corrupt":
		rule = rule.Corrupt()
	}
	plan.Add(rule)

	durable, loaded := faultScript(r, log)
	injected := plan.Injected()
	plan.Clear()
	short := action == "partial" && (op == sim.OpFileRead || op == sim.OpFileWrite) // the store reports no error for a short transfer
	if short && injected > 0 && r.st.Stats().DirectFailed == 0 {
		t.Fatalf("%s %d: a short transfer was not found", op, n)
	}
	if lost := plan.Unreported(log.errs...); len(lost) > 0 && !short {
		t.Fatalf("%s %d: the fault was swallowed: %v\nreported: %v", op, n, lost, errors.Join(log.errs...))
	}
	if st := r.st.Stats(); action == "corrupt" && injected > 0 && st.BadCopies+st.Mismatches == 0 {
		t.Fatalf("%s %d: a wrong byte was not found", op, n)
	}
	for page, block := range loaded {
		if err := r.checkPage(page, block); err != nil {
			t.Fatalf("%s %d: a load without an error: %v", op, n, err)
		}
	}
	// The store continues to work, and keeps all durable blocks.
	r.mustLoad(durable...)
	r.dump(1, 2, 3, 4)
	r.closeStore()
	r.openStore()
	r.mustLoad(1, 2, 3, 4)
	return injected > 0
}

// faultScript uses all parts of a store. It returns the durable blocks, and the loaded block of
// each page.
func faultScript(r *rig, log *errorLog) (durable []int, loaded map[uint32]int) {
	loaded = map[uint32]int{}
	dump := func(layerwise bool, ns ...int) {
		d, err := r.st.Dump(r.ctx(), r.pages, r.refs(ns[0]-1, ns...), store.DumpOptions{Layerwise: layerwise})
		r.must(err)
		for i := 0; layerwise && i < r.o.shards; i++ {
			log.add(d.SubmitShard(r.ctx(), i))
		}
		log.add(d.Durable(r.ctx()))
		for i, err := range d.Errs() {
			if err == nil {
				durable = append(durable, ns[i])
			}
		}
	}
	dump(false, 1, 2)
	dump(true, 3, 4) // one of the two blocks at a time may wait for layers
	_, err := r.st.Lookup(r.ctx(), r.keys(1, 2, 3, 4))
	log.add(err)
	load := func(first int, layerwise bool, ns ...int) {
		l, err := r.st.LeasePrefix(r.ctx(), r.keys(ns...), 0)
		r.must(err)
		defer l.Release()
		if l.Len() < len(ns) { // a fault shortened the prefix
			l = nil
		}
		task, err := r.st.Load(r.ctx(), l, r.pages, r.refs(first, ns...), store.LoadOptions{Layerwise: layerwise})
		r.must(err)
		for i, err := range r.loaded(task) {
			log.add(err)
			if err == nil {
				loaded[uint32(first+i)] = ns[i]
			}
		}
	}
	load(8, true, durable...)
	r.forgetCached(durable...) // later loads read from files
	p, err := r.st.Prefetch(r.ctx(), r.keys(durable[:len(durable)/2]...))
	r.must(err)
	log.add(p.Wait(r.ctx()))
	load(12, false, durable...)
	return durable, loaded
}

func TestFaultsNameWhatFailed(t *testing.T) {
	t.Parallel()
	plan := fault.New(1, fault.After(faulty.OpGet, 0).Fail(nil))
	r := newRig(t, rigOptions{dirs: []string{t.TempDir()}, wrapFile: func(tr tier.Tier) tier.Tier {
		return faulty.New(tr, plan, clockwork.NewRealClock())
	}})
	r.dump(1)
	r.must(r.cache.Delete(r.ctx(), r.key(1)))
	err := r.load(store.LoadOptions{}, 1)[0]
	for _, want := range []string{fmt.Sprintf("load block %s", r.key(1)), "tier file", "injected fault"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not contain %q: %v", want, err)
		}
	}
}
