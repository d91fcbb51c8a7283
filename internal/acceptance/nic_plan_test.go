package acceptance_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// autoConfig returns the configuration of an engine whose planner may use software NICs.
func autoConfig(t *testing.T) kvlane.Config {
	t.Helper()
	c := softConfig(t)
	c.Store.GDR, c.Stream.ProfileDir = kvlane.GDRAuto, t.TempDir()
	c.RDMA.Provider = softUnderAuto
	return c
}

// measured returns the profile of c's device and NICs, and makes later engines of c use only stored
// profiles.
func measured(t *testing.T, c *kvlane.Config) plan.Profile {
	t.Helper()
	e := openEngine(t, *c)
	of := c.RDMA
	if of.Provider == softUnderAuto {
		of.Provider = gdr.Soft
	}
	nics, err := gdr.Open(e.Device(), of, func() (stream.Stream, error) { return e.OpenStream() })
	if err != nil {
		t.Fatal(err)
	}
	p, notes, err := profile.Find(t.Context(), e.Device(), nics, c.Stream.Calibration, c.Stream.ProfileDir)
	if err := errors.Join(err, nics.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if p.Key.NIC == "" || len(e.NICs()) == 0 {
		t.Fatalf("profile of %s; notes: %q, %q", p.Key, notes, e.Notes())
	}
	c.Stream.Calibration = profile.Never
	return p
}

// storeProfile stores p with times of NICs for loads and dumps that are the given factors of the
// times of the other paths: of the shortest ones for factors below 1, otherwise of the longest. The
// times of NICs themselves may have any factor if they were measured on a busy machine.
func storeProfile(t *testing.T, c *kvlane.Config, p plan.Profile, loads, dumps float64) {
	t.Helper()
	isNIC := func(m plan.Model) bool { return m.Path == stream.PathNIC || m.Path == stream.PathNICSoft }
	models := 0
	p.Models = slices.Clone(p.Models)
	for i := range p.Models {
		m := &p.Models[i]
		if !isNIC(*m) {
			continue
		}
		models++
		factor := map[plan.Direction]float64{plan.H2D: loads, plan.D2H: dumps}[m.Dir]
		m.Lead, m.Times = 0, make([]float64, len(m.Times))
		for k := range m.Times {
			var others []float64
			for _, o := range p.Models {
				if o.Dir == m.Dir && !isNIC(o) {
					others = append(others, o.Times[k])
				}
			}
			if m.Times[k] = factor * slices.Max(others); factor < 1 {
				m.Times[k] = factor * slices.Min(others)
			}
		}
	}
	if models != 4 {
		t.Fatalf("%d models of NICs in the profile", models)
	}
	if err := (plan.Cache{Dir: c.Stream.ProfileDir}).Store(p); err != nil {
		t.Fatal(err)
	}
}

// byNIC replays a trace and returns the bytes of loads and of dumps on NICs, and of other paths.
func byNIC(t *testing.T, c kvlane.Config, layerwise bool) (loads, dumps, others int64) {
	t.Helper()
	e := openEngine(t, c)
	if len(e.NICs()) == 0 || len(e.Notes()) != 0 {
		t.Errorf("NICs %+v, notes %q", e.NICs(), e.Notes())
	}
	for _, p := range replayOn(t, e, e, layerwise).Paths {
		switch {
		case !strings.HasPrefix(p.Path, "nic"):
			others += p.Bytes
		case p.Direction == "load":
			loads += p.Bytes
		default:
			dumps += p.Bytes
		}
	}
	return loads, dumps, others
}

// TestAutoPlansByNIC checks that the planner compares the times of NICs with those of the device's
// paths and uses the fastest path for loads and for dumps. Every byte must be right.
func TestAutoPlansByNIC(t *testing.T) {
	plansByNIC(t, autoConfig(t))
}

// plansByNIC makes NICs appear fast or slow to engines of c.
func plansByNIC(t *testing.T, c kvlane.Config) {
	t.Helper()
	const never, always = 1e2, 1e-3
	p := measured(t, &c)
	for _, factors := range [][2]float64{{always, never}, {never, always}, {never, never}} {
		storeProfile(t, &c, p, factors[0], factors[1])
		for _, layerwise := range []bool{false, true} {
			c.Store.Dirs = []string{t.TempDir()}
			loads, dumps, others := byNIC(t, c, layerwise)
			if loads > 0 != (factors[0] == always) || dumps > 0 != (factors[1] == always) || others == 0 {
				t.Errorf("NICs take %v times as long for loads and dumps: %d bytes loaded, %d dumped by them, %d by others", factors, loads, dumps, others)
			}
		}
	}
}

// TestAutoWithoutFigures checks that the engine closes NICs without a profile and reports that.
func TestAutoWithoutFigures(t *testing.T) {
	c := autoConfig(t)
	c.Stream.Calibration = profile.Never
	w := newWorld(t, c)
	if notes := strings.Join(w.e.Notes(), "\n"); !strings.Contains(notes, "copies do not use a NIC: load profile") || w.e.NICs() != nil {
		t.Errorf("NICs %+v, notes %q", w.e.NICs(), notes)
	}
	if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1)); err != nil {
		t.Error(err)
	}
}

// TestForcedPathLeavesNICsOut checks that a forced path disables NICs, because there is nothing to
// plan.
func TestForcedPathLeavesNICsOut(t *testing.T) {
	c := autoConfig(t)
	c.Stream.Path = stream.PathKernel
	e := openEngine(t, c)
	if notes := strings.Join(e.Notes(), "\n"); !strings.Contains(notes, "path kernel is forced") || e.NICs() != nil {
		t.Errorf("NICs %+v, notes %q", e.NICs(), notes)
	}
}

// TestNICsThatFailUnderAuto fails each operation of the device once, on a NIC or not. After that
// the store's copies must work again. If the NIC failed, they work without it, and the store counts
// and reports that.
func TestNICsThatFailUnderAuto(t *testing.T) {
	stored := autoConfig(t)
	storeProfile(t, &stored, measured(t, &stored), 1e-3, 1e-3)
	hits, givenUp := 0, 0
	for n := 0; ; n++ {
		faults := fault.New(1)
		c := stored
		c.Device.Sim.Faults, c.Store.Dirs = faults, []string{t.TempDir()}
		w := newWorld(t, c)
		faults.Add(fault.Nth(sim.OpWork, int(faults.Seen(sim.OpWork))+n))
		err := w.dump(t, 0, 0)
		if err == nil {
			err = w.load(t, 0, 1)
		}
		injected := faults.Injected()
		if err != nil && injected == 0 {
			t.Fatalf("work %d: %v, and no fault was injected", n, err)
		}
		faults.Clear()
		if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1), w.dump(t, 1, 0), w.load(t, 1, 1)); err != nil {
			t.Fatalf("work %d: after the last fault: %v", n, err)
		}
		if got := w.page(t, 1); !bytes.Equal(got, w.page(t, 0)) || len(got) == 0 {
			t.Fatalf("work %d: the page that was loaded is another", n)
		}
		if injected == 0 {
			break
		}
		hits++
		st := w.e.Store().Stats()
		if st.PathsGivenUp > 0 {
			givenUp++
			if !errors.Is(st.GivenUp, fault.ErrInjected) || !strings.Contains(st.GivenUp.Error(), "nic-soft") {
				t.Errorf("work %d: given up: %v", n, st.GivenUp)
			}
		}
		w.close(t)
	}
	if hits < 2 || givenUp == 0 {
		t.Errorf("%d works failed, and after %d of them the NIC was given up", hits, givenUp)
	}
}

// TestDefectAutoFailsWhereNICsRefuseMemory checks memory that NICs cannot register. With auto it is
// copied without them and a note reports that, and other memory still uses NICs. With require it is
// an error.
func TestDefectAutoFailsWhereNICsRefuseMemory(t *testing.T) {
	const longest = 1 << 47 // limit of software NICs
	for _, c := range []kvlane.Config{autoConfig(t), softConfig(t)} {
		auto := c.Store.GDR == kvlane.GDRAuto
		w := newWorld(t, c)
		n := nicGeometry.PlaneBytes()
		m := kvlane.CacheMemory{Pages: 2, PageBytes: n, Stride: longest}
		for p := range nicGeometry.Layers * nicGeometry.PlanesPerLayer() {
			m.Planes = append(m.Planes, 1<<60+mem.DevAddr(p)*mem.DevAddr(n))
		}
		cache, err := w.e.RegisterCache(m)
		if (err == nil) != auto {
			t.Fatalf("gdr %s: register memory that is too long: %v", c.Store.GDR, err)
		}
		if notes := strings.Join(w.e.Notes(), "\n"); auto && (!strings.Contains(notes, "rejected memory 1 times") || !strings.Contains(notes, "at most")) {
			t.Errorf("notes %q", notes)
		}
		if s := w.e.NICStats(); len(s) == 0 || s[0].RegistrationsFailed != 1 {
			t.Errorf("NICs %+v", s)
		}
		if _, err := w.e.RegisterCache(cacheMemory(c, w.kv.Dev(), false)); !errors.Is(err, errdefs.ErrExists) {
			t.Errorf("gdr %s: memory that is registered: %v", c.Store.GDR, err)
		}
		if err := w.e.Register(nil); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("gdr %s: register no region: %v", c.Store.GDR, err)
		}
		if cache != nil {
			if err := cache.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(w.dump(t, 0, 0), w.load(t, 0, 1)); err != nil {
			t.Error(err)
		}
	}
}
