package acceptance_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
)

func flushesLoads(t *testing.T, c kvlane.Config) {
	t.Helper()
	for _, needed := range []bool{false, true} {
		plan := fault.New(1)
		c.Store.Dirs = []string{t.TempDir()}
		c.Device.Sim = sim.Options{Faults: plan, RemoteWritesNeedFlush: needed}
		w := newWorld(t, c)
		if err := w.dump(t, 0, 0); err != nil || plan.Seen(sim.OpFlush) != 0 {
			t.Errorf("dump: %v, %d flushes", err, plan.Seen(sim.OpFlush))
		}
		if err := w.load(t, 0, 1); err != nil || plan.Seen(sim.OpFlush) > 0 != needed {
			t.Errorf("load, flush needed %v: %v, %d flushes", needed, err, plan.Seen(sim.OpFlush))
		}
		plan.Add(fault.After(sim.OpFlush, 0).Fail(nil))
		if err := w.load(t, 0, 1); errors.Is(err, fault.ErrInjected) != needed {
			t.Errorf("load whose flush fails, needed %v: %v", needed, err)
		}
		plan.Clear()
		w.close(t)
	}
}

// A dump over NICs waits for its dependencies on the host and reads nothing before they are done.
func TestNICsDumpWaits(t *testing.T) { dumpWaits(t, softConfig(t)) }

func dumpWaits(t *testing.T, c kvlane.Config) {
	t.Helper()
	w := newWorld(t, c)
	dependency := stream.NewTicket(1, nil)
	before := w.e.NICStats()[0].Requests
	task, err := w.e.Store().Dump(t.Context(), w.pages, []store.Ref{{Key: w.key(0), Page: 0}}, store.DumpOptions{After: []mem.Dependency{dependency}})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if n := w.e.NICStats()[0].Requests; n != before {
		t.Errorf("%d requests before the dependency is done", n-before)
	}
	for i := range w.host.Bytes() {
		w.host.Bytes()[i] ^= 0xff
	}
	w.copy(t, w.kv, w.host)
	dependency.Resolve(stream.Completion{}, nil)
	if err := errors.Join(task.Durable(t.Context()), w.load(t, 0, 1)); err != nil {
		t.Fatal(err)
	}
	if got := w.page(t, 1); !bytes.Equal(got, w.page(t, 0)) || len(got) == 0 {
		t.Error("the dump contains the old content of the page")
	}
}
