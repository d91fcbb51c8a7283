package published

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/replay"
)

const page = "../../docs/benchmarks.md"

// section is the part of the page that the template generates.
var section = regexp.MustCompile(`(?s)## Committed runs\n.*?\n(\n## )`)

// render fills the runs' figures into the template.
func render(all map[string]*run, text string) (string, error) {
	tmpl, err := template.New("measured").Option("missingkey=error").Funcs(figures(all).functions()).Parse(text)
	if err != nil {
		return "", err
	}
	if err := noFigures(text); err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = tmpl.Execute(&b, nil)
	return b.String(), err
}

// byHand matches a figure that was typed into the template: a number with a unit of measurement, or
// a pair of numbers.
var (
	byHand = regexp.MustCompile(`\d\s*(GB/s|TFLOP|%|ms\b|us\b)|\d\s+s\b|\d[.]\d+ ?[/(]`)
	filled = regexp.MustCompile(`{{.*?}}`)
	digit  = regexp.MustCompile(`\d`)
)

// noFigures refuses figures in the template's own text and in cells of its tables, except in the
// first line and column.
func noFigures(text string) error {
	lines := strings.Split(filled.ReplaceAllString(text, ""), "\n")
	for i, line := range lines {
		found := byHand.FindString(line)
		if cells := strings.SplitN(line, "|", 3); len(cells) == 3 && cells[0] == "" && (i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "|--")) {
			found += digit.FindString(cells[2])
		}
		if found != "" {
			return fmt.Errorf("a figure of no run: %q in %q", found, line)
		}
	}
	return nil
}

func measured(t *testing.T, all map[string]*run) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "measured.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := render(all, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every figure of the section equals that of the committed runs after rounding.
func TestFiguresAreOfCommittedRuns(t *testing.T) {
	want := measured(t, readRuns(t))
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	at := section.FindSubmatchIndex(text)
	if at == nil {
		t.Fatal("docs/benchmarks.md has no section of committed runs")
	}
	if *rewrite {
		if err := os.WriteFile(page, []byte(string(text[:at[0]])+want+string(text[at[2]:])), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(text[at[0]:at[2]])); d != "" {
		t.Errorf("docs/benchmarks.md differs from the runs (-rewrite writes it again; - runs, + page):\n%s", d)
	}
}

func TestAnotherRunGivesAnotherText(t *testing.T) {
	all := readRuns(t)
	before := measured(t, all)
	p, err := copied(all["copy-h200-T"], "auto", 4<<10, 0, "h2d", "scattered")
	if err != nil {
		t.Fatal(err)
	}
	p.GBps += 20
	if measured(t, all) == before {
		t.Error("a figure of a run changed, and the text did not")
	}
}

// Parts of the page without runs are left out, and appear with their runs.
func TestPartsComeWithTheirRuns(t *testing.T) {
	all := readRuns(t)
	const tokens, interference = "The same model with transformers", "The cost of requests for a concurrent model"
	for name, r := range all {
		if r.Shows == "transformers" || strings.HasPrefix(r.Shows, "harm") {
			delete(all, name)
		}
	}
	if text := measured(t, all); strings.Contains(text, tokens) || strings.Contains(text, interference) {
		t.Errorf("a part without a run:\n%s", text)
	}
	all["tokens"] = &run{entry: entry{File: "tokens.json.gz", Shows: "transformers", Date: "2026-01-02"}, ttft: &firstTokens{}}
	if err := json.Unmarshal([]byte(sampleTokens(t)), all["tokens"].ttft); err != nil {
		t.Fatal(err)
	}
	for i, shows := range []string{"harm", "harm, 4096 rows"} {
		rep := &request.Report{ProductCost: &request.ProductCost{}}
		for _, at := range []request.Place{{Work: request.Load}, {Work: request.Load, Layerwise: true}, {Work: request.Dump}, {Work: request.Dump, Layerwise: true}} {
			at.Geometry, at.Blocks, at.Requests = "70b-tp8", 1024, 2
			rep.ProductCost.Losses = append(rep.ProductCost.Losses, request.Loss{Place: at, GBps: 40 + float64(i), Loss: 0.02, Low: 0.015, High: 0.026})
		}
		all[fmt.Sprint("harm", i)] = &run{entry: entry{File: "harm.json.gz", Shows: shows, Date: "2026-01-02"}, store: rep}
		text := measured(t, all)
		for _, want := range [][]string{
			{"| the prefix is | 64 tokens | 2,048 tokens |\n|---|---|---|\n| computed again | 1500 (1600) | 1500 (1600) |\n", "| in kvlane's files, disk | 20 | 20 |\n\n**Requests", "2 at a time of 1,024 blocks", "| loads, whole | 40.0 | 2.0 (1.5 to 2.6) |\n"},
			{"| loads, whole | 40.0 | 2.0 (1.5 to 2.6) | 41.0 | 2.0 (1.5 to 2.6) |\n", "| dumps by layers | 40.0 | 2.0 (1.5 to 2.6) | 41.0 | 2.0 (1.5 to 2.6) |\n\n"},
		}[i] {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", shows, want, text)
			}
		}
	}
}

// sampleTokens returns JSON as examples/ttft/ttft.py writes it, without a machine.
func sampleTokens(t *testing.T) string {
	t.Helper()
	var rows []string
	for _, tokens := range []int{2048, 64} {
		rows = append(rows, fmt.Sprintf(`{"tokens": %d, "source": "computed in full", "n": 5, "median": 1.5, "p99": 1.6, "identical": null}`, tokens))
		for _, source := range []string{"kept on the device", "transformers, offloading", "kvlane, in memory", "kvlane, in the page cache", "kvlane, on disk"} {
			rows = append(rows, fmt.Sprintf(`{"tokens": %d, "source": %q, "n": 1, "median": 0.02, "p99": 0.02, "identical": true}`, tokens, source))
		}
	}
	return `{"device": "a GPU", "rows": [` + strings.Join(rows, ", ") + `]}`
}

// A replay with a wrong byte, or that did not complete, has no figures.
func TestFailedReplayHasNoFigures(t *testing.T) {
	all := map[string]*run{"r": {trace: &replay.Report{Complete: true, Seconds: 2}}}
	if got, err := render(all, `{{trace "r" "seconds"}}`); err != nil || got != "2.0" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []replay.Report{{}, {Complete: true, Mismatches: 1}, {Complete: true, DurableErrors: 1}} {
		all["r"].trace = &bad
		if got, err := render(all, `{{trace "r" "seconds"}}`); err == nil {
			t.Errorf("%+v has %q", bad, got)
		}
	}
}

func TestTemplateHasNoFiguresOfItsOwn(t *testing.T) {
	all := readRuns(t)
	for _, text := range []string{
		"reaches 53.7 GB/s there", "loses 2% of", "takes 84 us at", "| kvlane | 61 | 74 |", "5.9 ms", "at 53.7 / 53.6 there",
		`{{rate "copy-h200-T" "teleport" 4096 "h2d" "scattered"}}`, `{{rate "copy-h200-X" "auto" 4096 "h2d" "scattered"}}`,
		`{{rate "" "auto" 4096 "h2d" "scattered"}}`, `{{request "copy-h200-T" "load" 1 "whole" "p50"}}`, `{{request "store-h200-W" "load" 1 "whole" "first"}}`,
		`{{times "store-h200-W" "dump" 1 "whole"}}`, `{{cost "store-h200-W" "load" "whole"}}`, `{{concurrency "store-h200-W"}}`,
		`{{trace "store-h200-W" "hits"}}`, `{{trace "replay-h100-X" "luck"}}`, `{{lengths "store-h200-W"}}`,
		`{{peer "copy-h100-S" "auto" 4096 "h2d"}}`, `{{peerLarge "copy-h100-S" "h2d"}}`,
		`{{first "vllm-h200-W" 1 "computed in full"}}`, `{{large "latency-h100-U1" "both"}}`, `{{cite "nothing"}}`,
	} {
		if got, err := render(all, text); err == nil {
			t.Errorf("%s became %q", text, got)
		}
	}
	if got, err := render(all, "blocks of 4 KiB, Llama 3.1 8B\n| 1024 | "); err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRounded(t *testing.T) {
	for want, got := range map[string]string{"0.0": rounded(-0.04, 1), "-0.1": rounded(-0.06, 1), "54": rounded(53.5, 0), "5.62": rounded(5.623, 2)} {
		if got != want {
			t.Errorf("%s in place of %s", got, want)
		}
	}
}
