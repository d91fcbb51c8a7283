package acceptance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/device/storage"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	streamfile "github.com/kvlane/kvlane/stream/file"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// directConfig returns the configuration of an engine with blocks of whole leaves in file tiers.
func directConfig(t *testing.T, pipeline string) kvlane.Config {
	t.Helper()
	c := testConfig(t)
	c.Model.Layers, c.Model.KVHeads, c.Model.HeadSize = 3, 4, 128 // planes of 16 KiB
	layout, err := c.Model.Layout()
	if err != nil {
		t.Fatal(err)
	}
	c.Store.Pipeline, c.Store.CacheBytes = pipeline, 16*layout.ImageBytes()
	if strings.Contains(pipeline, "log") {
		c.Store.LogDir = t.TempDir()
	}
	if !strings.Contains(pipeline, "file") {
		c.Store.Dirs = nil
	}
	c.Device.Sim.Storage = sim.StorageModel{Aligned: true} // with GPUDirect Storage
	return c
}

// A replay is exact with every value of the Direct setting, over every list of file tiers, whole
// and layerwise.
func TestReplayIsExactWithDirectStorage(t *testing.T) {
	limit := 24
	pipelines := []string{"file", "log", "cache|file|log", "cache|file", "cache|log", "file|log"}
	modes := []kvlane.Direct{kvlane.DirectOff, kvlane.DirectAlways, kvlane.DirectRequire, kvlane.DirectAuto}
	if testing.Short() {
		limit = 12
	}
	if testkit.Race { // the others run the same goroutines
		limit, pipelines, modes = 12, pipelines[:3], modes[:3]
	}
	for _, pipeline := range pipelines {
		for _, direct := range modes {
			for _, layerwise := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/layerwise=%t", pipeline, direct, layerwise), func(t *testing.T) {
					t.Parallel()
					c := directConfig(t, pipeline)
					c.Store.Direct, c.Store.DirectQueues = direct, 2
					if direct == kvlane.DirectAlways {
						c.Device.Sim.Storage.Compat = "asked for"
					}
					if strings.HasPrefix(pipeline, "cache") { // the second engine finds all blocks in files and none in its cache
						first := openEngine(t, c)
						replayExactly(t, first, c, limit, layerwise)
						if err := first.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					e := openEngine(t, c)
					replayExactly(t, e, c, limit, layerwise)
					st, on := e.Store().Stats(), direct != kvlane.DirectOff
					if (st.Direct > 0) != on || st.DirectFailed != 0 || e.Direct().On != on {
						t.Errorf("%d blocks were read directly, %d attempts failed; %+v", st.Direct, st.DirectFailed, e.Direct())
					}
					if gds := e.Direct().Mode.Direct; gds != (on && direct != kvlane.DirectAlways) {
						t.Errorf("mode %+v", e.Direct().Mode)
					}
					dev, _ := e.Device().(*sim.Device)
					x := e.Direct().Stats
					trials := int64(strings.Count(pipeline, "file")+strings.Count(pipeline, "log")) * 2 * 4096 // one in each directory
					if f := dev.StorageFigures(); f.Misaligned != 0 || on && f.Bytes != x.Bytes+trials || x.Bytes != (x.Reads+x.Writes)*c.Model.PlaneBytes()*6+x.Writes*block.AlignBytes {
						t.Errorf("%+v, want %+v", f, x)
					}
					if dumps := on && (pipeline == "file" || pipeline == "log"); x.Reads < st.Direct || (x.Writes > 0) != dumps || (st.DirectDumped > 0) != dumps {
						t.Errorf("%+v; %d blocks were read directly and %d written", x, st.Direct, st.DirectDumped)
					}
				})
			}
		}
	}
}

// replayExactly replays the start of the trace. It fails the test if a byte is wrong, a load fails
// or no block is found.
func replayExactly(t *testing.T, e *kvlane.Engine, c kvlane.Config, limit int, layerwise bool) {
	t.Helper()
	rep, err := replay.Run(t.Context(), replay.Config{
		Device: e.Device(), Store: e.Store(), Memory: e, Geometry: c.Model, Identity: e.Identity(),
		Trace: "../../replay/testdata/mooncake-conversation.jsonl.gz", Limit: limit, Layerwise: layerwise, Concurrency: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Mismatches != 0 || rep.LoadErrors != 0 || rep.PrefixHits == 0 || !rep.Complete {
		t.Errorf("%d wrong bytes, %d load errors, %d hits, complete %t", rep.Mismatches, rep.LoadErrors, rep.PrefixHits, rep.Complete)
	}
}

// If direct storage is not available, "require" fails and other values use pinned memory. Both
// report the reason.
func TestDirectStorageThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(c *kvlane.Config)
		always bool // DirectAlways can use it
		why    string
	}{
		{"compatibility mode", func(c *kvlane.Config) { c.Device.Sim.Storage.Compat = "no module" }, true, "no module"},
		{"no library", func(c *kvlane.Config) { c.Device.Sim.Storage.Missing = true }, false, "libcufile is not simulated"},
		{"the simulated device", func(c *kvlane.Config) { c.Device.Sim.Storage = sim.StorageModel{} }, true, "has no GPU Direct Storage"},
		{"the host device", func(c *kvlane.Config) { c.Device = kvlane.DeviceConfig{Driver: kvlane.Host} }, false, "the device cannot read files"},
		{"verify", func(c *kvlane.Config) { c.Store.Verify = store.VerifyAlways }, false, "verify is always"},
		{"path", func(c *kvlane.Config) { c.Stream.Path = stream.PathStaged }, false, "path staged is forced"},
		{"geometry", func(c *kvlane.Config) { c.Model.HeadSize = 40 }, false, "whole leaves"},
		{"memory", func(c *kvlane.Config) { c.Device.Sim.MemoryBytes = 1 << 20; c.Store.DirectBytes = 2 << 20 }, false, "pool of"},
	} {
		for _, direct := range []kvlane.Direct{kvlane.DirectAuto, kvlane.DirectAlways, kvlane.DirectRequire} {
			cfg := directConfig(t, "file")
			cfg.Store.Direct = direct
			c.change(&cfg)
			if direct == kvlane.DirectRequire {
				if e, err := kvlane.Open(t.Context(), cfg); !errors.Is(err, errdefs.ErrNotSupported) && !errors.Is(err, errdefs.ErrNoMemory) || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%s, require: %v", c.name, err)
					if err == nil {
						_ = e.Close(t.Context())
					}
				}
				continue
			}
			e := openEngine(t, cfg)
			on := c.always && direct == kvlane.DirectAlways
			if st := e.Direct(); st.On != on || st.Mode.Direct || !strings.Contains(st.Mode.Reason, c.why) || !strings.Contains(strings.Join(e.Notes(), "\n"), c.why) {
				t.Errorf("%s, %s: %+v; notes: %q", c.name, direct, st, e.Notes())
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storeDirectProfile measures files in dir on a simulated device with the given storage model, and
// stores a profile. In the profile cuFile reads at ratio times the rate of pinned memory.
func storeDirectProfile(t *testing.T, dir string, model sim.StorageModel, ratio float64) (profiles string) {
	t.Helper()
	profiles = t.TempDir()
	dev, err := sim.Open(sim.Options{Storage: model})
	must(t, err)
	st, err := dev.OpenStorage(device.StorageOptions{})
	must(t, err)
	copies, err := streamcopy.Open(dev, streamcopy.Options{})
	must(t, err)
	c, err := profile.CalibrateFiles(t.Context(), dir, profile.FileOptions{Dir: profiles, Measure: streamfile.MeasureOptions{
		Budget: 10 * time.Millisecond,
		Stream: streamfile.Options{Device: dev, Copy: copies, CuFile: streamfile.CuFileOptions{Storage: st}},
	}})
	must(t, errors.Join(err, copies.Close(t.Context()), st.Close(), dev.Close()))
	if got, err := c.CompareDirect(4 << 10); err != nil || got.Direct <= 0 || got.Pinned <= 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	text, err := os.ReadFile(c.File)
	must(t, err)
	var doc map[string]any
	must(t, json.Unmarshal(text, &doc))
	points, _ := doc["points"].([]any)
	for _, p := range points {
		p, _ := p.(map[string]any)
		if p["gbps"], p["bytes"] = 2.0, 64<<10; p["path"] == "cufile" {
			p["gbps"] = 2 * ratio
		}
	}
	text, err = json.Marshal(doc)
	must(t, errors.Join(err, os.WriteFile(c.File, text, 0o600)))
	return profiles
}

// "auto" follows a stored measurement. Without one it uses GPUDirect Storage only. In all other
// cases it does not load the library.
func TestDirectStorageFollowsMeasurements(t *testing.T) {
	compat, gds := sim.StorageModel{Aligned: true, Compat: "no module"}, sim.StorageModel{Aligned: true}
	missing := sim.StorageModel{Compat: "no module", Missing: true}
	for _, c := range []struct {
		name  string
		model sim.StorageModel
		ratio float64 // ratio in the stored profile; 0: no profile
		on    bool
		why   string
	}{
		{"compatibility mode, faster", compat, 1.21, true, "no module; measured: cuFile reads 2.42 GB/s, pinned memory 2.00 GB/s"},
		{"compatibility mode, hardly faster", compat, 1.19, false, "measured: cuFile reads 2.38 GB/s, pinned memory 2.00 GB/s"},
		{"compatibility mode, not measured", compat, 0, false, "no module"},
		{"GPU Direct Storage, hardly faster", gds, 1.19, false, "measured: cuFile reads 2.38 GB/s"},
		{"GPU Direct Storage, not measured", gds, 0, true, "simulated"},
		{"no library, faster", missing, 1.21, false, "libcufile is not simulated"},
		{"no library, hardly faster", missing, 1.19, false, "measured: cuFile reads 2.38 GB/s"},
		{"no library, not measured", missing, 0, false, "no module"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := directConfig(t, "file")
			cfg.Store.Direct, cfg.Device.Sim.Storage, cfg.Stream.ProfileDir = kvlane.DirectAuto, c.model, t.TempDir()
			if c.ratio > 0 {
				model := c.model
				model.Missing = false // for the measurement
				cfg.Stream.ProfileDir = storeDirectProfile(t, t.TempDir(), model, c.ratio)
			}
			e := openEngine(t, cfg)
			if st := e.Direct(); st.On != c.on || !strings.Contains(st.Mode.Reason, c.why) || !strings.Contains(strings.Join(e.Notes(), "\n"), c.why) {
				t.Errorf("%+v; notes: %q", st, e.Notes())
			}
			if !c.on {
				return
			}
			rep, err := replay.Run(t.Context(), replay.Config{
				Device: e.Device(), Store: e.Store(), Memory: e, Geometry: cfg.Model, Identity: e.Identity(),
				Trace: "../../replay/testdata/mooncake-conversation.jsonl.gz", Limit: 6, Concurrency: 4,
			})
			if st := e.Store().Stats(); err != nil || rep.Mismatches != 0 || rep.LoadErrors != 0 || st.Direct == 0 || st.DirectFailed != 0 {
				t.Errorf("%+v, %v; %d blocks were read directly, %d attempts failed", rep, err, st.Direct, st.DirectFailed)
			}
		})
	}
}

// A profile that cannot be read is reported and ignored.
func TestDamagedMeasurementOfDirectStorage(t *testing.T) {
	cfg := directConfig(t, "file")
	cfg.Store.Direct = kvlane.DirectAuto
	cfg.Stream.ProfileDir = storeDirectProfile(t, t.TempDir(), cfg.Device.Sim.Storage, 0.5)
	names, err := filepath.Glob(filepath.Join(cfg.Stream.ProfileDir, "files-*.json"))
	must(t, err)
	if len(names) != 1 {
		t.Fatalf("profiles %v", names)
	}
	must(t, os.WriteFile(names[0], []byte("{"), 0o600))
	e := openEngine(t, cfg)
	if st := e.Direct(); !st.On || !strings.Contains(strings.Join(e.Notes(), "\n"), names[0]) {
		t.Errorf("%+v; notes: %q", st, e.Notes())
	}
}

func TestDirectSettingsThatContradict(t *testing.T) {
	for name, change := range map[string]func(c *kvlane.Config){
		"with gdr require":  func(c *kvlane.Config) { c.Store.GDR = kvlane.GDRRequire },
		"without files":     func(c *kvlane.Config) { c.Store.Pipeline, c.Store.Dirs = "cache", nil },
		"unknown":           func(c *kvlane.Config) { c.Store.Direct = "sometimes" },
		"negative memory":   func(c *kvlane.Config) { c.Store.DirectBytes = -1 },
		"negative queues":   func(c *kvlane.Config) { c.Store.DirectQueues = -1 },
		"countless queues":  func(c *kvlane.Config) { c.Store.DirectQueues = 1 << 20 },
		"more than any GPU": func(c *kvlane.Config) { c.Store.DirectBytes = 1 << 60 },
	} {
		c := directConfig(t, "file")
		c.Store.Direct = kvlane.DirectRequire
		change(&c)
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "direct") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The command doctor and the value require use the same words for what is missing.
func TestDoctorUsesTheWordsOfRequire(t *testing.T) {
	noRecord := errors.New("the disk has no record")
	for name, change := range map[string]func(c *kvlane.Config){
		"compatibility mode": func(c *kvlane.Config) { c.Device.Sim.Storage.Compat = "the module is not loaded" },
		"no library":         func(c *kvlane.Config) { c.Device.Sim.Storage.Missing = true },
		"no access":          func(c *kvlane.Config) { c.Device = kvlane.DeviceConfig{Driver: kvlane.Host} },
		"a refused file": func(c *kvlane.Config) {
			c.Device.Sim.Faults = fault.New(1, fault.Nth(sim.OpFileRegister, 0).Fail(noRecord), fault.Nth(sim.OpFileRegister, 1).Fail(noRecord))
		},
	} {
		cfg := directConfig(t, "file")
		change(&cfg)
		cfg.Store.Direct = kvlane.DirectOff
		e := openEngine(t, cfg)
		p := doctor.ProbeStorage(t.Context(), e.Device(), cfg.Store.Dirs)
		var reason string
		switch {
		case p.Err != nil:
			reason = p.Err.Error()
		case p.Dirs[0].Err != nil:
			reason = strings.ReplaceAll(p.Dirs[0].Err.Error(), "fault 0 in file-register 0", "fault 1 in file-register 1")
		case !p.Dirs[0].Mode.Direct:
			reason = p.Dirs[0].Mode.Reason
		}
		must(t, e.Close(t.Context()))
		cfg.Store.Direct = kvlane.DirectRequire
		if e, err := kvlane.Open(t.Context(), cfg); err == nil || reason == "" || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: doctor reports %q, and require %v", name, reason, err)
			if err == nil {
				_ = e.Close(t.Context())
			}
		}
	}
}

// With streams of the program, auto uses pinned memory and reports the reason. The other values use cuFile.
func TestDirectStorageWithHostStreams(t *testing.T) {
	for _, direct := range []kvlane.Direct{kvlane.DirectAuto, kvlane.DirectAlways, kvlane.DirectRequire} {
		cfg := directConfig(t, "file")
		cfg.HostStreams, cfg.Store.Direct = true, direct
		e := openEngine(t, cfg)
		const why = "host_streams is set, and auto does not use cuFile"
		if st := e.Direct(); st.On != (direct != kvlane.DirectAuto) || !st.On && !strings.Contains(strings.Join(e.Notes(), "\n"), why) {
			t.Errorf("%s: %+v; notes %q", direct, st, e.Notes())
		}
	}
}

// A process that was killed while it tried direct storage left a file for which later ones refused the directory.
func TestDefectTrialOfDirectStorageIsForeign(t *testing.T) {
	for _, pipeline := range []string{"file", "log"} {
		cfg := directConfig(t, pipeline)
		cfg.Store.Direct = kvlane.DirectRequire
		dir := cfg.Store.LogDir
		if pipeline == "file" {
			dir = cfg.Store.Dirs[0]
		}
		must(t, os.MkdirAll(dir, 0o700))
		must(t, os.WriteFile(filepath.Join(dir, storage.TrialPrefix+"1"), nil, 0o600))
		for range 2 { // the second time the directory has blocks
			e := openEngine(t, cfg)
			replayExactly(t, e, cfg, 30, false)
			must(t, e.Close(t.Context()))
		}
		var clean bool
		if pipeline == "file" {
			r, err := file.Verify(t.Context(), dir, nil)
			must(t, err)
			clean = r.Clean()
		} else {
			r, err := log.Verify(t.Context(), dir, nil)
			must(t, err)
			clean = r.Clean()
		}
		if !clean {
			t.Errorf("%s: the directory is not clean", pipeline)
		}
	}
}
