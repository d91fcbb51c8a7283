package testkit

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/leak"
)

func TestMain(m *testing.M) { Main(m) }

func TestRequired(t *testing.T) {
	tests := []struct {
		list, feature string
		want          bool
	}{
		{"", "cuda", false},
		{"cuda", "cuda", true},
		{"verbs, cuda", "cuda", true},
		{"cudart", "cuda", false},
		{"cuda,verbs", "cufile", false},
	}
	for _, tt := range tests {
		if got := required(tt.list, tt.feature); got != tt.want {
			t.Errorf("required(%q, %q) returned %v", tt.list, tt.feature, got)
		}
	}
}

// probe records what Skip does to a test.
type probe struct {
	testing.TB
	skipped, failed string
}

func (p *probe) Helper()                       {}
func (p *probe) Skipf(format string, a ...any) { p.skipped = fmt.Sprintf(format, a...); panic(p) }
func (p *probe) Fatalf(format string, a ...any) {
	p.failed = fmt.Sprintf(format, a...)
	panic(p)
}

func TestSkipFailsWhatIsRequired(t *testing.T) {
	for list, fails := range map[string]bool{"": false, "verbs": false, "cuda": true} {
		t.Setenv(RequireEnv, list)
		p := &probe{}
		func() {
			defer func() { _ = recover() }()
			Skip(p, "cuda", "no driver")
		}()
		if (p.failed != "") != fails || (p.skipped != "") == fails {
			t.Errorf("%s=%q: skipped %q, failed %q", RequireEnv, list, p.skipped, p.failed)
		}
		if got := p.failed + p.skipped; !strings.Contains(got, "cuda") || !strings.Contains(got, "no driver") {
			t.Errorf("%s=%q: %q names neither feature nor reason", RequireEnv, list, got)
		}
	}
}

func TestRunReportsWhatTestsLeaveBehind(t *testing.T) {
	var undo func()
	tests := []struct {
		name  string
		tests func() int
		want  int
	}{
		{"nothing", func() int { undo = func() {}; return 0 }, 0},
		{"a failed test", func() int { undo = func() {}; return 2 }, 2},
		{"a counted object", func() int {
			leak.Add(leak.Queues, 1)
			undo = func() { leak.Add(leak.Queues, -1) }
			return 0
		}, 1},
		{"a file", func() int {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Error(err)
			}
			undo = func() { _ = f.Close() }
			return 0
		}, 1},
		{"a goroutine", func() int {
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() { defer close(stopped); <-stop }()
			undo = func() { close(stop); <-stopped }
			return 0
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// The goroutine of the outer tests waits for this one, and is not a leak.
			got := run(tt.tests, ignoreCurrent())
			undo()
			if got != tt.want {
				t.Errorf("exit status %d, want %d", got, tt.want)
			}
		})
	}
}
