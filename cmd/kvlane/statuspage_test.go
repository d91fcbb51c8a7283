package main

import (
	"bytes"
	"context"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/telemetry"
)

// browse returns the document that a headless browser has built from a page. If KVLANE_SCREENSHOT
// names a file, the page is there as PNG.
func browse(t *testing.T, url string) string {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		testkit.Skip(t, "chromium", err.Error())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,1700", "--virtual-time-budget=4000", "--user-data-dir=" + t.TempDir()}
	if png := os.Getenv("KVLANE_SCREENSHOT"); png != "" {
		must(t, exec.CommandContext(ctx, chromium, append(args, "--screenshot="+png, url)...).Run())
	}
	cmd := exec.CommandContext(ctx, chromium, append(args, "--dump-dom", url)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v: %s", err, &errs)
	}
	return out.String()
}

// served returns what a server answers.
func served(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url) //nolint:gosec,noctx // a server of the test
	must(t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	must(t, err)
	return string(b)
}

// comparePage compares each number of a page with /metrics, and returns how many there are.
func comparePage(t *testing.T, document, metrics string) int {
	t.Helper()
	values := map[string]float64{}
	for _, line := range strings.Split(metrics, "\n") {
		if i := strings.LastIndexByte(line, ' '); i > 0 {
			values[line[:i]], _ = strconv.ParseFloat(line[i+1:], 64)
		}
	}
	cells := regexp.MustCompile(`data-metric="([^"]*)" data-value="([^"]*)"`).FindAllStringSubmatch(document, -1)
	for _, c := range cells {
		name := html.UnescapeString(c[1])
		if strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "go_") {
			continue // they change
		}
		shown, err := strconv.ParseFloat(c[2], 64)
		must(t, err)
		if v, found := values[name]; !found || v != shown {
			t.Errorf("the page shows %s %v, /metrics %v", name, shown, v)
		}
	}
	return len(cells)
}

// The page of a replay with a disk that fails has the numbers of /metrics, and the failure with its
// cause.
func TestStatusPageInABrowser(t *testing.T) {
	m := telemetry.New()
	ctx := withMetrics(dirfs.With(t.Context(), faultfs.New(dirfs.OS(), fault.New(1, fault.After("write", 20).Fail(unix.EIO)), nil)), m)
	cmd := newReplayCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(small(conversation, "--limit", "20", "--layers", "2", "--kv-heads", "1", "--head-size", "64", "--file-dir", t.TempDir()))
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(ctx); err == nil {
		t.Fatal("the replay did not meet the fault")
	}
	s, err := m.Serve(t.Context(), "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })

	document := browse(t, s.URL()+"/")
	if n := comparePage(t, document, served(t, s.URL()+"/metrics")); n < 40 {
		t.Errorf("the page has %d numbers:\n%s", n, document)
	}
	for _, want := range []string{"Ready", "Hit rate", "Tiers", "Slow operations", "dump", "block not stored in tier file", unix.EIO.Error(), "store.dirs"} {
		if !strings.Contains(document, want) {
			t.Errorf("the page lacks %q:\n%s", want, document)
		}
	}
}
