package share_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// TestRequirement4NothingIsLeftOpen checks that successful and failed imports of every kind leave
// no file and no mapping.
func TestRequirement4NothingIsLeftOpen(t *testing.T) {
	n := 10_000
	if testing.Short() || testkit.Race {
		n = 500
	}
	faults := fault.New(1, fault.Every(sim.OpImport, 3).Fail(errdefs.ErrNoMemory))
	exporter, dev := simDevice(t, sim.Options{}), simDevice(t, sim.Options{Index: 1, Faults: faults})
	s := serve(t, share.Options{})
	e, _ := exported(t, s, exporter, 4096)
	h, err := share.AllocHost(exporter, 4096)
	must(t, err)
	eh, err := s.Export(h, h.Region())
	must(t, err)
	in := importer(t, dev)
	for _, d := range []share.Descriptor{e.Descriptor(), eh.Descriptor()} { // warm up
		if i, err := in.Import(t.Context(), d); err == nil {
			must(t, i.Close())
		}
	}
	until(t, "imports stay", func() bool { return s.Stats().Importers == 0 })
	files, maps := descriptors(t), mappings(t)
	failed, wrong := 0, e.Descriptor()
	wrong.Offset, wrong.Length = 1, 4095
	for k := range n {
		d := e.Descriptor()
		switch k % 4 {
		case 1:
			d = eh.Descriptor()
		case 2:
			d = wrong
		}
		i, err := in.Import(t.Context(), d)
		if err != nil {
			failed++
			continue
		}
		must(t, i.Close())
	}
	until(t, "imports stay", func() bool { return s.Stats().Importers == 0 })
	until(t, "files or mappings are left", func() bool { return descriptors(t) <= files && mappings(t) <= maps })
	if failed < n/4 || failed == n {
		t.Errorf("%d of %d imports failed", failed, n)
	}
	must(t, errors.Join(eh.Close(t.Context()), h.Close()))
}

// TestRequirement5Unwinds checks that an import that fails at any step leaves no resource, and that
// the next import succeeds. Package device/cuda tests each call of the driver.
func TestRequirement5Unwinds(t *testing.T) {
	exporter := simDevice(t, sim.Options{})
	s := serve(t, share.Options{})
	e, _ := exported(t, s, exporter, 4096)
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	eh, err := s.Export(h, h.Region())
	must(t, err)
	for op, d := range map[string]share.Descriptor{sim.OpImport: e.Descriptor(), sim.OpRegister: eh.Descriptor()} {
		dev := simDevice(t, sim.Options{Index: 1, Faults: fault.New(1, fault.Nth(op, 0).Fail(errdefs.ErrNoMemory), fault.Nth(sim.OpFree, 0).Fail(errdefs.ErrBusy))})
		in := importer(t, dev)
		before := mappings(t)
		if _, err := in.Import(t.Context(), d); !errors.Is(err, errdefs.ErrNoMemory) {
			t.Errorf("%s: %v", op, err)
		}
		if n := mappings(t); n != before {
			t.Errorf("%s: %d mappings are left", op, n-before)
		}
		i := take(t, in, d)
		if err := i.Close(); !errors.Is(err, errdefs.ErrBusy) {
			t.Errorf("%s: close while the device does not free: %v", op, err)
		}
		must(t, i.Close())
	}
	must(t, errors.Join(eh.Close(t.Context()), h.Close()))
}

// TestRequirement6Exports checks that Export refuses memory that cannot be exported. A sub-region
// keeps its offset in the allocation, and its export can be withdrawn separately.
func TestRequirement6Exports(t *testing.T) {
	dev, s := simDevice(t, sim.Options{}), serve(t, share.Options{})
	plain, err := dev.Alloc(4096, device.AllocOptions{})
	must(t, err)
	pinned, err := dev.AllocHost(4096)
	must(t, err)
	for r, want := range map[*mem.Region]error{plain: errdefs.ErrNotSupported, pinned: errdefs.ErrInvalid, nil: errdefs.ErrInvalid} {
		if _, err := s.Export(dev, r); !errors.Is(err, want) {
			t.Errorf("export of %s: %v, want %v", r, err, want)
		}
	}
	must(t, errors.Join(dev.Free(plain), dev.Free(pinned)))

	whole, r := exported(t, s, dev, 10_000)
	inner, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindDevice, Len: 1000, Dev: r.Dev() + 5000})
	must(t, err)
	part, err := s.Export(dev, inner)
	must(t, err)
	d := part.Descriptor()
	if d.Offset != 5000 || d.Length != 1000 || d.Bytes != 10_000 || d.Identity == whole.Descriptor().Identity {
		t.Errorf("%+v", d)
	}
	in := importer(t, simDevice(t, sim.Options{Index: 1}))
	far := simDevice(t, sim.Options{Index: 2})
	all, some := take(t, importer(t, far), whole.Descriptor()), take(t, in, d)
	must(t, fill(dev, r, 1))
	must(t, fill(dev, inner, 2))
	if some.Region().Len() != 1000 {
		t.Errorf("%s", some.Region())
	}
	must(t, part.Close(t.Context()))
	if err := some.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("check of withdrawn memory: %v", err)
	}
	must(t, all.Region().Origin().Check())
	must(t, errors.Join(some.Close(), all.Close()))
}

// TestRequirement7Identity kills an exporter and restarts it with the same socket. Earlier imports
// must be lost, and old descriptors must not be found.
func TestRequirement7Identity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	first, d, _ := startExporter(t, dir, "x.sock", 1<<20)
	first.do("fill 7")
	i := take(t, in, d)
	must(t, check(dev, i.Region(), 7))
	first.kill()
	second, d2, _ := startExporter(t, dir, "x.sock", 1<<20)
	second.do("fill 8")
	if d.Socket != d2.Socket || d.Identity == d2.Identity {
		t.Fatalf("%+v and %+v", d, d2)
	}
	if err := i.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("the exporter was killed: %v", err)
	}
	lost(t, i)
	if err := check(dev, i.Region(), 7); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("a lost region is read: %v", err)
	}
	if _, err := in.Import(t.Context(), d); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("the dead exporter's memory is found: %v", err)
	}
	i2 := take(t, in, d2)
	must(t, check(dev, i2.Region(), 8))
	second.do("withdraw")
	if err := i2.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) || !strings.Contains(err.Error(), "withdrawn") {
		t.Errorf("check of withdrawn memory: %v", err)
	}
	must(t, errors.Join(i.Close(), i2.Close()))
	second.end()
}

// TestRequirement7ForkedExporter checks that a child process that inherits the exporter's
// connections does not keep the export alive.
func TestRequirement7ForkedExporter(t *testing.T) {
	dev := simDevice(t, sim.Options{Index: 1})
	other, d, _ := startExporter(t, filepath.Join(t.TempDir(), "s"), "x.sock", 4096)
	i := take(t, importer(t, dev), d)
	file := filepath.Join(t.TempDir(), "pid")
	other.do("fork " + file)
	b, err := os.ReadFile(file)
	must(t, err)
	child, err := strconv.Atoi(string(b))
	must(t, err)
	t.Cleanup(func() { must(t, unix.Kill(child, unix.SIGKILL)) })
	must(t, i.Region().Origin().Check())
	other.kill()
	if err := i.Region().Origin().Check(); !errors.Is(err, errdefs.ErrLost) {
		t.Fatalf("the exporter was killed, and a child of it has its connections: %v", err)
	}
	lost(t, i)
	must(t, i.Close())
}

// TestRequirement7Cache checks that concurrent imports of one export share one mapping until the
// last import is closed.
func TestRequirement7Cache(t *testing.T) {
	s := serve(t, share.Options{})
	e, _ := exported(t, s, simDevice(t, sim.Options{}), 4096)
	in := importer(t, simDevice(t, sim.Options{Index: 1}))
	var mu sync.Mutex
	var all []*share.Import
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			i, err := in.Import(context.Background(), e.Descriptor())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, i)
		})
	}
	wg.Wait()
	for _, i := range all {
		if i.Region().Dev() != all[0].Region().Dev() {
			t.Error("mapped twice")
		}
	}
	if st := s.Stats(); st.Importers != 1 || st.Imports != 1 {
		t.Errorf("%+v", st)
	}
	for k, i := range all {
		must(t, all[0].Region().Origin().Check())
		if k == 0 {
			if err := in.Close(); !errors.Is(err, errdefs.ErrBusy) {
				t.Errorf("close with imports: %v", err)
			}
		}
		must(t, i.Close())
	}
	until(t, "still imported", func() bool { return e.Importers() == 0 })
	if _, err := in.Import(t.Context(), e.Descriptor()); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("import by a closed importer: %v", err)
	}
}

// TestKilledPeers kills exporters and importers alternately. The other side must detect it, and no
// resource may be left.
func TestKilledPeers(t *testing.T) {
	n := 200
	if testing.Short() || testkit.Race {
		n = 10
	}
	dir := filepath.Join(t.TempDir(), "s")
	dev := simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	s := serve(t, share.Options{Dir: dir})
	own, _ := exported(t, s, simDevice(t, sim.Options{}), 4096)
	line, err := json.Marshal(own.Descriptor())
	must(t, err)
	files, maps := descriptors(t), mappings(t)
	for k := range n / 2 {
		exporter, d, host := startExporter(t, dir, fmt.Sprintf("%d.sock", k), 4096)
		i, ih := take(t, in, d), take(t, in, host)
		exporter.kill()
		for _, each := range []*share.Import{i, ih} {
			lost(t, each)
			if err := each.Region().Origin().Lost(); !errors.Is(err, errdefs.ErrLost) {
				t.Errorf("the exporter was killed: %v", err)
			}
			must(t, each.Close())
		}
		imp := start(t, "import")
		_, err = fmt.Fprintf(imp.in, "%s\n", line)
		must(t, err)
		if got := imp.line(); got != "<nil>" {
			t.Fatal(got)
		}
		imp.kill()
		until(t, "a killed importer is still there", func() bool { return own.Importers() == 0 })
	}
	until(t, "files or mappings are left", func() bool { return descriptors(t) <= files && mappings(t) <= maps })
}
