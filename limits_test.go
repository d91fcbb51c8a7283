package kvlane_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/tier/file"
)

// Every number of the configuration has a limit, so that no absurd number causes an allocation. The
// exceptions are listed.
func TestDefectEveryNumberOfTheConfigHasABound(t *testing.T) {
	unbounded := map[string]string{
		"Config.Device.Index":                      "no such device",
		"Config.Device.Sim.Index":                  "a name",
		"Config.Device.Sim.MemoryBytes":            "used only by allocations",
		"Config.Device.Sim.HostRegisterLimitBytes": "a bound itself",
		"Config.Device.Sim.HostRegisterMaxBytes":   "a bound itself",
		"Config.Device.Sim.LatencyPerOp":           "a time",
		"Config.Device.Sim.Storage.MaxFiles":       "a bound itself",
		"Config.Device.Sim.Storage.MaxBufferBytes": "a bound itself",
		"Config.Device.Sim.QuarantineBytes":        "taken as memory is freed",
		"Config.Stream.Policy.MaxCTAs":             "a bound itself",
		"Config.Stream.Budget.Interval":            "a time",
		"Config.Stream.Budget.MinChunkBytes":       "the stream's staging bounds it",
		"Config.Stream.Budget.MaxChunkBytes":       "the stream's staging bounds it",
		"Config.Store.FileBytes":                   "a bound itself",
		"Config.Store.LeaseMax":                    "a time",
		"Config.Store.WaitMax":                     "a time",
	}
	c := testConfig(t)
	c.Store.Dirs = []string{t.TempDir()}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() { //nolint:exhaustive // the kinds that contain numbers
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					walk(path+"."+v.Type().Field(i).Name, v.Field(i))
				}
			}
		case reflect.Int, reflect.Int64:
			if !v.CanSet() {
				return
			}
			seen++
			was := v.Int()
			v.SetInt(math.MaxInt64)
			err := c.Validate()
			if _, free := unbounded[path]; free != (err == nil) {
				t.Errorf("%s = %d: %v", path, int64(math.MaxInt64), err)
			}
			v.SetInt(was)
		}
	}
	walk("Config", reflect.ValueOf(&c).Elem())
	if seen < 20 {
		t.Errorf("%d numbers were found: the test does not test", seen)
	}
	gid := math.MaxInt64
	c.RDMA.GIDIndex = &gid
	if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("GID index: %v", err)
	}
}

// A path that no load or dump can use is refused by Open, not by each load or dump.
func TestDefectPathThatNoLoadCanTakeIsRefused(t *testing.T) {
	for _, p := range stream.Paths() {
		c := testConfig(t)
		c.Stream.Path = p
		switch p.MovedBy() {
		case stream.MovedByDevice:
			if err := c.Validate(); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		default:
			if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), "copy-engine, kernel") {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
}

// Faults of the file tier's options are found when the configuration is validated, before anything
// is opened.
func TestDefectFileTierIsValidatedWithTheConfig(t *testing.T) {
	dir := t.TempDir()
	for name, change := range map[string]func(*kvlane.StoreConfig){
		"a bound of less than a block": func(s *kvlane.StoreConfig) { s.Dirs, s.FileBytes = []string{dir}, 1 },
		"a directory twice":            func(s *kvlane.StoreConfig) { s.Dirs = []string{dir, dir + "/"} },
		"a directory without a name":   func(s *kvlane.StoreConfig) { s.Dirs = []string{""} },
		"a bound without a directory":  func(s *kvlane.StoreConfig) { s.Dirs, s.FileBytes = nil, 1<<30 },
		"a shared bound of no files":   func(s *kvlane.StoreConfig) { s.Dirs, s.SharedBound = nil, true },
		"a shared bound at the root":   func(s *kvlane.StoreConfig) { s.Dirs, s.SharedBound = []string{"/"}, true },
		"a policy without a directory": func(s *kvlane.StoreConfig) { s.Dirs, s.Fsync = nil, file.FsyncFile },
		"a policy that there is not":   func(s *kvlane.StoreConfig) { s.Dirs, s.Fsync = []string{dir}, 7 },
		"a verify policy that is not":  func(s *kvlane.StoreConfig) { s.Verify = 9 },
		"a lease of less than no time": func(s *kvlane.StoreConfig) { s.LeaseMax = -1 },
		"a wait of less than no time":  func(s *kvlane.StoreConfig) { s.WaitMax = -1 },
		"fewer readers than none":      func(s *kvlane.StoreConfig) { s.Readers = -1 },
		"more tasks than there may be": func(s *kvlane.StoreConfig) { s.Tasks = store.MaxTasks + 1 },
	} {
		c := testConfig(t)
		change(&c.Store)
		if err := c.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
