package capi_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
)

// The Go and C configuration can open every tier.
func TestEveryTierOpens(t *testing.T) {
	ctx := t.Context()
	for _, row := range settings.DurableTiers() {
		value := any("127.0.0.1:1")
		if row.Place().IsDir() {
			value = filepath.Join(t.TempDir(), row.Name)
		}
		store := map[string]any{"cache_bytes": 4 << 20, "pipeline": "cache|" + row.Name}
		if row.Name == "object" {
			t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
			value, store["object_endpoint"] = "s3://bucket", "http://127.0.0.1:1"
		}
		store[strings.TrimPrefix(row.Place().Key, "store.")] = value
		c, err := capi.ParseConfig(configuration(t, "", map[string]any{"store": store}))
		if err != nil {
			t.Errorf("%v: %v", store, err)
			continue
		}
		e, err := kvlane.Open(ctx, c)
		if err != nil {
			t.Errorf("%v: %v", store, err)
			continue
		}
		if tiers := e.Tiers(); len(tiers) != 2 || tiers[1].Name() != row.Name {
			t.Errorf("%v: %d tiers are open", store, len(tiers))
		}
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// Every key of the configuration sets the right field.
func TestConfigurationReachesTheEngine(t *testing.T) {
	got, err := capi.ParseConfig([]byte(`{
		"model": {"name": "m", "dtype": "float16", "layers": 4, "kv_heads": 8, "head_size": 64, "block_tokens": 16, "tp_size": 2, "tp_rank": 1},
		"revision": "r", "adapter": "a", "tenant": "t", "device": {"driver": "sim", "index": 0}, "host_streams": true, "metrics_addr": "127.0.0.1:9400",
		"stream": {"path": "kernel", "policy": "background", "calibration": "never", "profile_dir": "/p", "staging_bytes": 1048576},
		"store": {"pipeline": "cache|file", "cache_bytes": 1048576, "dirs": ["/a", "/b"], "file_bytes": 1073741824, "dir_bytes": [536870912, 0],
			"fsync": "file", "read_only": true, "verify": "always", "readers": 3, "writers": 2, "tasks": 4, "gdr": "auto",
			"admission": "always", "lease_max_ms": 1500, "wait_max_ms": 2500},
		"rdma": {"provider": "ibv", "nics": ["n"], "count": 1, "port": 2, "gid_index": 3, "mtu": 4096, "queue_pairs": 5, "register_on_use": true}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	three := 3
	want := kvlane.Config{
		Model:    block.Geometry{Model: "m", DType: "float16", Layers: 4, KVHeads: 8, HeadSize: 64, BlockTokens: 16, TPSize: 2, TPRank: 1},
		Revision: "r", Adapter: "a", Tenant: "t", Device: kvlane.DeviceConfig{Driver: kvlane.Sim}, HostStreams: true, MetricsAddr: "127.0.0.1:9400",
		Stream: kvlane.StreamConfig{
			Path: path(t, "kernel"), Policy: plan.Policy{Goal: plan.Background}, Calibration: profile.Never, ProfileDir: "/p", StagingBytes: 1 << 20,
		},
		Store: kvlane.StoreConfig{
			Pipeline: "cache|file", CacheBytes: 1 << 20, Dirs: []string{"/a", "/b"}, FileBytes: 1 << 30, DirBytes: []int64{1 << 29, 0},
			Fsync: file.FsyncFile, ReadOnly: true, Verify: store.VerifyAlways, Readers: 3, Writers: 2, Tasks: 4, GDR: kvlane.GDRAuto, Admission: kvlane.AdmissionAlways,
			LeaseMax: 1500 * time.Millisecond, WaitMax: 2500 * time.Millisecond,
		},
		RDMA: gdr.Config{Provider: gdr.IBV, NICs: []string{"n"}, Count: 1, Port: 2, GIDIndex: &three, MTU: 4096, QueuePairs: 5, RegisterOnUse: true},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(kvlane.StoreConfig{}, "Hooks"), cmpopts.IgnoreFields(kvlane.DeviceConfig{}, "Sim")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	groups, err := capi.ParseConfig([]byte(`{"groups": [
		{"name": "full", "layers": [0, 2], "geometry": {"name": "m", "dtype": "int8", "kv_heads": 1, "head_size": 64, "block_tokens": 16, "mla": true}},
		{"name": "state", "layers": [1], "geometry": {"name": "m", "dtype": "int8", "kv_heads": 1, "head_size": 64, "block_tokens": 16, "state": true}}
	], "device": {"driver": "sim"}, "store": {"log_dir": "/l", "log_bytes": 1073741824, "log_fsync": "never", "cache_bytes": 1048576}}`))
	if err != nil {
		t.Fatal(err)
	}
	if g := groups.Groups; len(g) != 2 || g[1].Name != "state" || !g[1].Geometry.State || !g[0].Geometry.MLA || g[0].Geometry.TPSize != 1 || g[0].Layers[1] != 2 {
		t.Errorf("page groups: %+v", g)
	}
}

func path(t *testing.T, name string) stream.Path {
	t.Helper()
	p, err := stream.ParsePath(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// All errors of a configuration are reported together.
func TestConfigurationReportsEveryProblem(t *testing.T) {
	for text, words := range map[string][]string{
		`{"modell": 1, "store": {"cache_byte": 1, "verify": "now", "fsync": "maybe", "wait_max_ms": -1}, "stream": {"policy": "best", "path": "x"},
		  "device": {"driver": "sim"}, "groups": [{"nam": 1}]}`: {`"modell"`, `"store.cache_byte"`, `"now"`, `"maybe"`, "wait_max_ms", `"best"`, `"x"`, `"groups.0.nam"`},
		`{"Model": {}}`: {`"Model"`, "store.cache_bytes is not given"},
		`{"model": {"name": "m", "dtype": "int8", "layers": 1, "kv_heads": 1, "head_size": 64, "block_tokens": 16}, "device": {"driver": "sim"}}`: {
			"store.cache_bytes is not given: the cache holds at least 2 blocks",
		},
		`{"store": {"cache_bytes": "800TiB"}}`:       {"store.cache_bytes: a cache of"},
		`{"store": {"cache_bytes": "much"}, "a": 1}`: {"store.cache_bytes is no size", `"much"`, `"a"`},
		`{"store": {"cache_bytes": [1], "dirs": {}, "dir_bytes": [1, true], "read_only": 0, "readers": 1.5, "fsync": 1, "log_bytes": 1e300}}`: {
			`store.cache_bytes is an array, must be a size: a number of bytes, or text such as "8GiB"`, "store.dirs is an object, must be an array",
			"store.dir_bytes.1 is true or false, must be a size", "store.read_only is a number, must be true or false",
			`store.readers is "1.5", must be a whole number`, "store.fsync is a number, must be a string", `store.log_bytes is "1e300"`,
		},
		`{"tenant": "a", "tenant": "b"}`:              {`key "tenant" is given twice`},
		"{\"tenant\": \"caf\xe9\"}":                   {"is not UTF-8"},
		`{"model": {"name": "\udce9"}}`:               {`\udce9 is half of a surrogate pair`},
		`{"store": {"lease_max_ms": 9e18}}`:           {"lease_max_ms"},
		`{"store": {"admission": "sometimes"}}`:       {`"sometimes"`, "auto or always"},
		`{"store": [1]}`:                              {"store"},
		`{"model": {"name": "m"}, "revision": "r"} x`: {"invalid character"},
		``:     {"unexpected end"},
		`null`: {"the model has no name"},
		`[]`:   {"configuration is an array, must be an object"},
	} {
		_, err := capi.ParseConfig([]byte(text))
		if !errors.Is(err, errdefs.ErrInvalid) || capi.StatusOf(err) != capi.Invalid {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error does not mention %s:\n%v", text, w, err)
			}
		}
		if strings.Contains(capi.Text(err), "\n") {
			t.Errorf("%s: more than a line", text)
		}
		for _, w := range []string{"Go ", "unmarshal", "int64", "kvlane."} {
			if strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error speaks of Go:\n%v", text, err)
			}
		}
	}
}

// Impossible paths are refused before anything is opened.
func TestConfigurationRefusesImpossiblePaths(t *testing.T) {
	long := strings.Repeat("n", 256)
	for path, word := range map[string]string{`/a\u0000b`: "NUL byte", "/a/" + long: "a name of 256 bytes", strings.Repeat("/abc", 1024): "a path of 4096 bytes"} {
		for _, dir := range []string{`"dirs": "` + path + `"`, `"log_dir": "` + path + `"`} {
			_, err := capi.ParseConfig([]byte(`{"model": {"name": "m", "dtype": "int8", "layers": 1, "kv_heads": 1, "head_size": 64, "block_tokens": 16},
				"device": {"driver": "sim"}, "store": {"cache_bytes": 1048576, ` + dir + `}}`))
			if capi.StatusOf(err) != capi.Invalid || !strings.Contains(err.Error(), word) {
				t.Errorf("%.60s: %v", dir, err)
			}
		}
	}
}

// Sizes may be integers, floats with whole values, or text with a unit. A single directory needs no
// list.
func TestConfigurationTakesSizesAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]kvlane.StoreConfig{
		`"cache_bytes": "64MiB", "dirs": "/a", "dir_bytes": ["1.5GiB"]`: {
			CacheBytes: 64 << 20, Dirs: []string{"/a"}, DirBytes: []int64{3 << 29},
		},
		`"cache_bytes": 6.4e7, "dirs": ["/a", "/b"], "dir_bytes": [1e6, 1048576.0], "readers": 3.0`: {
			CacheBytes: 64e6, Dirs: []string{"/a", "/b"}, DirBytes: []int64{1e6, 1 << 20}, Readers: 3,
		},
		`"cache_bytes": "67108864", "log_dir": "/a", "log_bytes": "8gb", "dirs": null`: {CacheBytes: 64 << 20, LogDir: "/a", LogBytes: 8e9},
	} {
		got, err := capi.ParseConfig([]byte(`{"model": {"name": "m", "dtype": "int8", "layers": 1, "kv_heads": 1, "head_size": 64, "block_tokens": 16},
			"device": {"driver": "sim"}, "store": {` + text + `}}`))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if diff := cmp.Diff(want, got.Store, cmpopts.IgnoreFields(kvlane.StoreConfig{}, "Hooks")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", text, diff)
		}
	}
}

// The configuration of a manager is checked as strictly.
func TestManagerConfigurationReportsEveryProblem(t *testing.T) {
	for text, words := range map[string][]string{
		`{"blocks": -1, "ranks": [{"tenant": "t"}, {"stor": 1}]}`: {"blocks is -1", "rank 0: ", `"ranks.1.stor"`},
		`{"blocks": "1", "ranks": {}, "blocs": 2}`:                {"blocks is a string", "ranks is an object", `"blocs"`},
		`{"blocks": 1, "blocks": 2}`:                              {`key "blocks" is given twice`},
		"{\"ranks\": [{\"tenant\": \"caf\xe9\"}]}":                {"is not UTF-8"},
		`[]`: {"configuration is an array"},
	} {
		_, err := capi.ParseManagerConfig([]byte(text))
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: the error does not mention %s:\n%v", text, w, err)
			}
		}
	}
}

// Any text is either refused or a valid configuration.
func FuzzConfiguration(f *testing.F) {
	f.Add(configuration(f, "/d", nil))
	f.Add([]byte(`{"groups": [{"name": "full", "layers": [0], "geometry": {"name": "m"}}], "rdma": {"gid_index": 1, "nics_by_device": [["a"]]}}`))
	f.Add([]byte(`{"store": {"lease_max_ms": 1, "dir_bytes": [1]}, "model": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := capi.ParseConfig(text)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("refused with another error: %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("accepted, and the engine refuses it: %v", err)
		}
		if !json.Valid(text) {
			t.Error("accepted, and no JSON")
		}
	})
}

// The table of settings contains exactly the keys of a configuration.
func TestTableHasEveryKey(t *testing.T) {
	var keys []string
	for i := range settings.Table {
		if key := settings.Table[i].Key; key != "" {
			keys = append(keys, key)
		}
	}
	want := slices.DeleteFunc(capi.ConfigKeys(), func(key string) bool {
		return slices.Contains([]string{"device", "stream", "store", "rdma"}, key) // sections
	})
	slices.Sort(keys)
	slices.Sort(want)
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("(-configuration +table)\n%s", diff)
	}
}
