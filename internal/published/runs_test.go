package published

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/internal/ctxio"
	"github.com/kvlane/kvlane/replay"
)

const folder = "../../docs/runs"

// entry describes a run's file in index.json.
type entry struct {
	File    string `json:"file"`
	Kind    string `json:"kind"`            // copy, store, replay, ttft, serving
	Shows   string `json:"shows,omitempty"` // the part of the template that uses it without naming files
	Device  string `json:"device"`
	UUID    string `json:"uuid"`
	Driver  string `json:"driver"`
	Date    string `json:"date"`
	Command string `json:"command"`
	Version string `json:"version"`
	Note    string `json:"note,omitempty"`
}

// firstTokens is the part of the JSON of examples/ttft (ttft.py and ttft_vllm.py) that the page
// uses.
type firstTokens struct {
	Device  string       `json:"device"`
	Preset  string       `json:"preset"`
	Machine *bench.Facts `json:"machine"`
	Rows    []struct {
		Tokens    int     `json:"tokens"`
		Source    string  `json:"source"`
		N         int     `json:"n"`
		Median    float64 `json:"median"` // seconds
		P99       float64 `json:"p99"`
		Identical *bool   `json:"identical"` // to KV that stayed on the device; nil: not loaded
	} `json:"rows"`
	Wrong []string `json:"wrong"`
}

// servers is the part of the JSON of examples/serving/serving.py that the page uses.
type servers struct {
	Rows []struct {
		Side       string  `json:"side"`
		Workload   string  `json:"workload"`
		Round      int     `json:"round"`
		Failed     int     `json:"failed"`
		MedianTTFT float64 `json:"median_ttft_ms"`
		MeanTPOT   float64 `json:"mean_tpot_ms"`
	} `json:"rows"`
}

// run is a file of docs/runs. One of the pointers is set.
type run struct {
	entry
	copies  *bench.Report
	store   *request.Report
	trace   *replay.Report
	ttft    *firstTokens
	servers *servers
}

// readRuns reads all runs. The keys are file names without suffix.
func readRuns(t *testing.T) map[string]*run {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var entries []entry
	if err := d.Decode(&entries); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*run)
	for _, e := range entries {
		r := &run{entry: e}
		if err := r.read(contentOf(t, e.File)); err != nil {
			t.Fatalf("%s: %v", e.File, err)
		}
		all[strings.TrimSuffix(e.File, ".json.gz")] = r
	}
	return all
}

func contentOf(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join(folder, file))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // read only
	plain, err := ctxio.Decompress(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(plain)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return b
}

func (r *run) read(b []byte) (err error) {
	switch r.Kind {
	case "copy":
		r.copies, err = bench.Read(bytes.NewReader(b))
	case "store":
		r.store, err = request.Read(bytes.NewReader(b))
	case "replay":
		err = json.Unmarshal(b, &r.trace)
	case "ttft":
		err = json.Unmarshal(b, &r.ttft)
	case "serving":
		err = json.Unmarshal(b, &r.servers)
	default:
		err = fmt.Errorf("unknown kind %q", r.Kind)
	}
	return err
}

// facts returns the facts of the run's own JSON, or nil.
func (r *run) facts() *bench.Facts {
	switch {
	case r.copies != nil:
		return &r.copies.Machine
	case r.store != nil:
		return &r.store.Machine
	case r.trace != nil && r.trace.Machine.Device != "":
		return &r.trace.Machine
	case r.ttft != nil:
		return r.ttft.Machine
	}
	return nil
}

// device returns the device of a run without facts.
func (r *run) device() string {
	switch {
	case r.trace != nil:
		return strings.TrimPrefix(r.trace.Device, "cuda: ")
	case r.ttft != nil:
		return r.ttft.Device
	}
	return r.Device // early JSON of serving.py does not contain the device
}

// elsewhere matches a path on the machine of a run.
var elsewhere = regexp.MustCompile(`/(home|root|tmp|work|usr|var|opt|mnt|Users)\b[^"\s]*`)

// The index contains the machine, time, command and version of every run. No run used simulated
// hardware, had wrong results, or contains paths of its machine.
func TestRunsNameTheirMachine(t *testing.T) {
	template, err := os.ReadFile(filepath.Join(folder, "measured.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	all := readRuns(t)
	for name, r := range all {
		if m := r.facts(); m != nil {
			if m.Device != r.Device || m.UUID != r.UUID || m.DriverVersion != r.Driver || m.Date.Format(time.RFC3339) != r.Date || m.Command != r.Command || m.Simulated {
				t.Errorf("%s: the index contains %+v, the run %+v", name, r.entry, *m)
			}
		} else if device := r.device(); device != r.Device {
			t.Errorf("%s: the index contains %s, the run %s", name, r.Device, device)
		}
		if r.ttft != nil && (r.ttft.Preset != "8b" || len(r.ttft.Wrong) > 0) {
			t.Errorf("%s: a model %q; wrong: %q", name, r.ttft.Preset, r.ttft.Wrong)
		}
		if r.servers != nil {
			for _, row := range r.servers.Rows {
				if row.Failed > 0 {
					t.Errorf("%s: %d requests of %s failed", name, row.Failed, row.Side)
				}
			}
		}
		if p := r.trace; p != nil && (p.Trace != "mooncake-conversation.jsonl.gz" || p.BytesVerified != p.PrefixHits<<18 || p.HitsByTier["cache"] != p.PrefixHits) {
			t.Errorf("%s is of another trace, of other blocks than of 256 KiB, or not of memory alone: %+v", name, p)
		}
		if fast := strings.HasSuffix(r.Shows, ", throughput"); r.Shows != "" && (fast != strings.Contains(r.Command, "--policy throughput") || !fast && strings.Contains(r.Command, "--policy")) {
			t.Errorf("%s shows %s, and is of %s", name, r.Shows, r.Command)
		}
		if r.Shows != "" && !bytes.Contains(template, fmt.Appendf(nil, "shown %q", r.Shows)) {
			t.Errorf("%s: the template has no part %q", name, r.Shows)
		}
		if r.Driver == "" || r.Date == "" || r.Command == "" || r.Version == "" {
			t.Errorf("%s: a field is missing: %+v", name, r.entry)
		}
		if path := elsewhere.Find(contentOf(t, r.File)); path != nil {
			t.Errorf("%s has a path of the machine it was made on: %s", name, path)
		}
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.gz"))
	if err != nil || len(files) != len(all) {
		t.Errorf("%d files, %d in the index, %v", len(files), len(all), err)
	}
}
