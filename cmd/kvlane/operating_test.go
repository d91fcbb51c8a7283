package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/testkit"
)

// quotedCommands returns a page's commands, each with the lines of output that follow it in the
// page.
func quotedCommands(page string) (commands []string, outputs [][]string) {
	for _, block := range regexp.MustCompile(`(?m)^(?: {4,}.*\n|\n)+`).FindAllString(page, -1) {
		quoting := false
		indent := ""
		for _, line := range strings.Split(block, "\n") {
			trimmed := strings.TrimLeft(line, " ")
			switch {
			case strings.HasPrefix(trimmed, "$ "):
				quoting, indent = true, line[:len(line)-len(trimmed)]
				commands, outputs = append(commands, trimmed[2:]), append(outputs, nil)
			case quoting && trimmed != "":
				outputs[len(outputs)-1] = append(outputs[len(outputs)-1], strings.TrimPrefix(line, indent))
			}
		}
	}
	return commands, outputs
}

// missingLine returns the first of the quoted lines that the output lacks, in their order. "..."
// stands for any text.
func missingLine(quoted []string, output string) string {
	lines := strings.Split(output, "\n")
	for _, q := range quoted {
		p := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(q), `\.\.\.`, ".*") + "$")
		for len(lines) > 0 && !p.MatchString(lines[0]) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			return q
		}
	}
	return ""
}

// writeTrace writes the first lines of the conversation trace.
func writeTrace(t *testing.T, name string, lines int) {
	t.Helper()
	in, err := os.Open(conversation)
	must(t, err)
	defer in.Close()
	unzip, err := gzip.NewReader(in)
	must(t, err)
	var first bytes.Buffer
	scan := bufio.NewScanner(unzip)
	scan.Buffer(nil, 1<<20)
	for range lines {
		if !scan.Scan() {
			t.Fatal(scan.Err())
		}
		first.Write(append(scan.Bytes(), '\n'))
	}
	must(t, os.WriteFile(name, first.Bytes(), 0o600))
}

// Every command of docs/operating.md runs, one after the other, and prints the lines that the page
// quotes.
func TestOperatingPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operating.md"))
	must(t, err)
	dir := t.TempDir()
	writeTrace(t, filepath.Join(dir, "trace.jsonl"), 40)
	full := filepath.Join(dir, "full")
	must(t, os.Mkdir(full, 0o700))
	small := unix.Mount("none", full, "tmpfs", 0, "size=6m") == nil
	if small {
		t.Cleanup(func() { must(t, unix.Unmount(full, unix.MNT_DETACH)) })
	} else if testkit.Required("root") {
		t.Fatal("no tmpfs can be mounted")
	}

	commands, outputs := quotedCommands(string(text))
	if len(commands) < 7 {
		t.Fatalf("%d commands are in the page", len(commands))
	}
	must(t, os.Symlink(command(t), filepath.Join(dir, "kvlane")))
	for i, c := range commands {
		if strings.Contains(c, "full/") && !small {
			continue // needs root
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", c)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput()
		if line := missingLine(outputs[i], string(out)); line != "" {
			t.Errorf("$ %s\nprints no line (or not in this order)\n%s\nbut\n%s", c, line, out)
		}
	}
}
