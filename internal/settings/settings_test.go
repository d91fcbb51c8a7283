package settings_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
)

// config has some of the fields of an engine's configuration.
type config struct {
	Device struct {
		Driver string `config:"driver"`
		Index  int    `config:"index"`
	} `config:"device"`
	Stream struct {
		Path        string      `config:"path"`
		Policy      plan.Policy `config:"policy"`
		Calibration string      `config:"calibration"`
		ProfileDir  string      `config:"profile_dir"`
	} `config:"stream"`
	Store struct {
		Verify     string           `config:"verify"`
		GDR        string           `config:"gdr"`
		Pipeline   string           `config:"pipeline"`
		CacheBytes int64            `config:"cache_bytes"`
		Dirs       []string         `config:"dirs"`
		FileBytes  int64            `config:"file_bytes"`
		DirBytes   []int64          `config:"dir_bytes"`
		Fsync      file.FsyncPolicy `config:"fsync"`
		LogDir     string           `config:"log_dir"`
		LogBytes   int64            `config:"log_bytes"`
		LogFsync   string           `config:"log_fsync"`
		Remote     string           `config:"remote"`
		RemoteMS   int              `config:"remote_timeout_ms"`
		RemoteZone string           `config:"remote_zone"`
		RemoteCA   string           `config:"remote_ca"`
		RemoteCert string           `config:"remote_cert"`
		RemoteKey  string           `config:"remote_key"`
		RemoteTok  string           `config:"remote_token"`
		RemoteRDMA bool             `config:"remote_rdma"`
		Object     string           `config:"object"`
		ObjectEnd  string           `config:"object_endpoint"`
		ObjectReg  string           `config:"object_region"`
		ObjectCA   string           `config:"object_ca"`
		ObjectEnc  string           `config:"object_encryption"`
		ObjectKMS  string           `config:"object_kms_key"`
		ObjectMS   int              `config:"object_timeout_ms"`
		ObjectReqs int              `config:"object_requests"`
		Direct     string           `config:"direct"`
	} `config:"store"`
	RDMA struct {
		Provider   string   `config:"provider"`
		NICs       []string `config:"nics"`
		Port       int      `config:"port"`
		GIDIndex   *int     `config:"gid_index"`
		MTU        int      `config:"mtu"`
		QueuePairs int      `config:"queue_pairs"`
	} `config:"rdma"`
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A program's fields and keys take precedence over a file. Settings of the file that contradict
// them, have no effect, or are for commands only, are ignored.
func TestFileIsBelowTheProgram(t *testing.T) {
	name := write(t, "device: auto\npath: auto\npolicy: latency\ncache-bytes: 2GiB\nfile-dir: [/x, /y]\nfile-dir-bytes: [0, 1KiB]\nfsync: file\n"+
		"log-bytes: 1\nnic: [a, b]\nrdma-gid-index: 3\ngdr: auto\nmetrics-addr: 127.0.0.1:1\nlog-level: debug\n")
	for _, c := range []struct{ given, want string }{
		{`{}`, `{"stream": {"policy": "latency"}, "store": {"cache_bytes": "2GiB", "dirs": ["/x", "/y"], "dir_bytes": ["0", "1KiB"], "fsync": "file",
			"gdr": "auto"}, "rdma": {"nics": ["a", "b"], "gid_index": 3}}`},
		{`{"store": {"gdr": "off", "log_dir": "/l"}}`, `{"stream": {"policy": "latency"}, "store": {"gdr": "off", "log_dir": "/l", "cache_bytes": "2GiB",
			"dirs": ["/x", "/y"], "dir_bytes": ["0", "1KiB"], "fsync": "file", "log_bytes": "1"}}`},
		{`{"store": {"gdr": "off", "log_dir": "/l", "pipeline": "log"}}`, `{"stream": {"policy": "latency"}, "store": {"gdr": "off", "log_dir": "/l",
			"pipeline": "log", "cache_bytes": "2GiB", "log_bytes": "1"}}`},
		{`{"stream": {"path": "kernel"}, "store": {"dirs": ["/z"]}, "rdma": {"provider": "soft"}}`, `{"stream": {"path": "kernel"},
			"store": {"dirs": ["/z"], "dir_bytes": ["0", "1KiB"], "fsync": "file", "cache_bytes": "2GiB"}, "rdma": {"provider": "soft"}}`},
		{`{"device": {"driver": "host"}, "store": {"pipeline": "cache", "gdr": "off"}}`, `{"device": {"driver": "host"}, "store": {"pipeline": "cache", "gdr": "off", "cache_bytes": "2GiB"}}`},
	} {
		var object map[string]any
		if err := json.Unmarshal([]byte(c.given), &object); err != nil {
			t.Fatal(err)
		}
		object["config"] = name
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := settings.Merge(text)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := errors.Join(json.Unmarshal(merged, &got), json.Unmarshal([]byte(c.want), &want)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.given, diff)
		}
		// The same fields of a Go program give the same result.
		var byFields, byKeys config
		if err := errors.Join(settings.Decode([]byte(c.given), &byFields), settings.Fill(t.Context(), &byFields, name), settings.Decode(merged, &byKeys)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(byKeys, byFields); diff != "" {
			t.Errorf("%s: fields (-keys +fields)\n%s", c.given, diff)
		}
	}
	for _, text := range []string{`{"config": "/no/such/file"}`, `{"config": "` + write(t, "cache-bytes: much") + `"}`, `{"a": 1, "a": 2}`} {
		if _, err := settings.Merge([]byte(text)); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestNearest(t *testing.T) {
	words := []string{"cuda", "sim", "host", "copy-engine"}
	for word, want := range map[string]string{"cdua": "cuda", "Sim": "sim", "copyengine": "copy-engine", "copy-engin": "copy-engine", "tpu": "", "": "", "hsot": "host"} {
		if got := settings.Nearest(word, words); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// A file is either read or refused with its name, and its values are accepted.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{"device: sim\nnic: [a, b]\n", "a: &x sim\ndevice: *x", "# nothing", "---\n...\n", "<<: *x", "{device: sim, gdr: off}", "fsync: !!binary aGk=", "\"device\": |\n  sim"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := settings.ParseFile("the file", text)
		if err != nil && !strings.HasPrefix(err.Error(), "the file") {
			t.Errorf("%v", err)
		}
		for _, v := range all {
			if err := v.Check(); err != nil || len(v.Texts) == 0 || !strings.HasPrefix(v.From, "the file:") {
				t.Errorf("%s: %q from %q, %v", v.Name, v.Texts, v.From, err)
			}
		}
	})
}
