package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The kinds of output of commands.
const (
	reports = "report"      // a report: it starts with a verdict, and has --json
	lists   = "list"        // facts without a verdict, with --json
	serves  = "server"      // runs until it is interrupted
	data    = "data"        // data, or a line that confirms a change
	hidden  = "not for use" // of another process
)

// outputs lists the kind of each command.
var outputs = map[string]string{
	"replay": reports, "demo": reports, "doctor": reports, "calibrate": reports, "config check": reports, "cluster status": reports,
	"bench copy": reports, "bench store": reports, "bench file": reports, "bench blockio": reports, "bench transfer": reports, "rpc bench": reports,
	"store verify": reports, "store gc": reports, "store rm": reports, "store pin": reports, "store unpin": reports, "store why": reports,
	"store ls": lists, "store stat": lists, "topo": lists, "version": lists, "config show": lists, "transfer ls": lists, "transfer probe": lists,
	"blockd": serves, "rpc serve": serves, "transfer serve": serves, "transfer metadata": serves,
	"cluster drain": data, "rpc call": data, "transfer get": data, "transfer put": data,
}

// Each command that prints a report or facts has --json.
func TestReportsHaveJSON(t *testing.T) {
	seen := 0
	forEachCommand(func(path string, cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" || strings.HasPrefix(path, "completion") {
			return
		}
		seen++
		kind, ok := outputs[path]
		if !ok {
			t.Errorf("%s: add the kind of its output to the list", path)
		}
		if has := cmd.Flags().Lookup("json") != nil; has != (kind == reports || kind == lists) {
			t.Errorf("%s, a %s: --json %t", path, kind, has)
		}
	})
	if seen != len(outputs) {
		t.Errorf("%d commands, and %d in the list", seen, len(outputs))
	}
}

// The reports of directories start with a verdict. TestReportsKeepToTheScreen has other reports.
func TestReportsStartWithAVerdict(t *testing.T) {
	t.Chdir(t.TempDir())
	trace := traceFile(t, goodLine+goodLine)
	if code, _, stderr := execute(t, small("replay", trace, "--file-dir", "files")...); code != exitOK {
		t.Fatal(stderr)
	}
	for _, c := range []struct{ args, verdict string }{
		{"store verify files", "clean "},
		{"store gc files --max-bytes 1GiB", "collected       0 blocks removed\n"},
		{"store gc files --quarantine --max-bytes 1GiB", "collected       0 files and 0 blocks removed\n"},
		{"store rm files --max-age 1000h", "removed         0 blocks\n"},
		{"store gc files --max-bytes 0", "collected       2 blocks removed\n"},
	} {
		code, stdout, stderr := execute(t, strings.Fields(c.args)...)
		if code != exitOK || !strings.HasPrefix(stdout, c.verdict) {
			t.Errorf("%s: exit code %d, %s\n%s", c.args, code, stderr, stdout)
		}
	}
}

// The demo as JSON has all claims.
func TestDemoAsJSON(t *testing.T) {
	code, stdout, stderr := execute(t, "demo", "--device", "sim", "--json")
	var r demoReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, %s", code, err, stderr)
	}
	if !r.Holds || len(r.Claims) < 9 || r.Seconds <= 0 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Claims {
		if !c.Holds || c.Claim == "" {
			t.Errorf("%+v", c)
		}
	}
}
