package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/testkit"
)

// completed returns the words that a shell offers for a command line, and cobra's directive.
func completed(t *testing.T, args ...string) (words []string, directive string) {
	t.Helper()
	code, stdout, stderr := execute(t, append([]string{"__complete"}, args...)...)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != exitOK || !strings.HasPrefix(lines[len(lines)-1], ":") {
		t.Fatalf("%v: exit code %d, %s%s", args, code, stdout, stderr)
	}
	return lines[:len(lines)-1], lines[len(lines)-1]
}

// Cobra's directives as shells receive them.
var (
	anyFile  = fmt.Sprintf(":%d", cobra.ShellCompDirectiveDefault)
	noFile   = fmt.Sprintf(":%d", cobra.ShellCompDirectiveNoFileComp)
	onlyDirs = fmt.Sprintf(":%d", cobra.ShellCompDirectiveFilterDirs)
)

// forEachValue calls f with each flag that takes a value, of every command and of the root.
func forEachValue(f func(path string, cmd *cobra.Command, flag *pflag.Flag)) {
	forEachCommand(func(path string, cmd *cobra.Command) {
		visit := func(flag *pflag.Flag) {
			if flag.Value.Type() != "bool" {
				f(path, cmd, flag)
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(visit)
		cmd.Root().PersistentFlags().VisitAll(visit)
	})
}

// Flags complete the values that can be listed. Other flags complete nothing, and in particular no
// files.
func TestDefectFlagValuesComplete(t *testing.T) {
	testkit.SkipRace(t, "one goroutine reads the command line")
	used := map[string]bool{}
	forEachValue(func(path string, _ *cobra.Command, f *pflag.Flag) {
		key := path + " " + f.Name
		if offers[key] == nil {
			key = f.Name
		}
		used[key] = true
		offer := offerOf(path, f.Name)
		words, directive := completed(t, append(strings.Fields(path), "--"+f.Name, "")...)
		free := offer == nil
		if free {
			offer = cobra.NoFileCompletions
		}
		want, how := offer(nil, nil, "")
		if !slices.Equal(words, want) || directive != fmt.Sprintf(":%d", how) {
			t.Errorf("--%s of %q completes to %q, %s; want %q, :%d", f.Name, path, words, directive, want, how)
		}
		if !free && f.Name != "nic" && len(words) == 0 && directive == noFile {
			t.Errorf("--%s of %q completes to nothing", f.Name, path)
		}
	})
	for key := range maps.Keys(offers) {
		if !used[key] {
			t.Errorf("offers has %q, which no command has", key)
		}
	}
}

// A command accepts every completed word, and refuses a word that is not among them.
func TestCompletedValuesAreTaken(t *testing.T) {
	testkit.SkipRace(t, "one goroutine reads the command line")
	t.Setenv(configEnv, "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // no configuration: a canceled command would not read one
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	refused := func(path string, f *pflag.Flag, word string) bool {
		args := append(strings.Fields(path), operands[path]...)
		switch path {
		case "replay":
			args = append(args, "no-such-trace")
		case "doctor":
			args = append(args, "--dir", t.TempDir())
		case "store ls", "store stat", "store verify":
			args = append(args, "no-such-directory")
		case "store gc":
			args = append(args, "no-such-directory", "--max-bytes", "1")
		case "demo":
			args = append(args, "--dir", "/no-such-directory")
		case "calibrate": // whose memory would be this process's
			args = append(args, "--memory", "1MiB", "--profile-dir", t.TempDir())
		case "bench transfer":
			args = append(args, "--segment", "127.0.0.1:1")
		}
		if f.Name == "direct" {
			args = append(args, "--device", "sim", "--dir", t.TempDir())
		}
		if f.Name == "hits" && word != "cache" || path == "calibrate" && word == "host" || strings.Contains(word, "file") || path == "bench store" && strings.Contains(word, "log") {
			args = append(args, "--file-dir", t.TempDir())
		} else if f.Name == "pipeline" && strings.Contains(word, "log") {
			args = append(args, "--log-dir", t.TempDir())
		} else if f.Name == "pipeline" && strings.Contains(word, "remote") {
			args = append(args, "--remote", "127.0.0.1:1")
		} else if f.Name == "pipeline" && strings.Contains(word, "object") {
			args = append(args, "--object", "s3://bucket", "--object-endpoint", "http://127.0.0.1:1")
		}
		var stderr strings.Builder
		code := run(canceled, append(args, "--"+f.Name, word), io.Discard, &stderr)
		return code == exitUsage && strings.Contains(stderr.String(), word) && !strings.Contains(stderr.String(), "has no effect with")
	}
	tried := 0
	forEachValue(func(path string, _ *cobra.Command, f *pflag.Flag) {
		words, _ := completed(t, append(strings.Fields(path), "--"+f.Name, "")...)
		if f.Name == "metadata" || f.Name == "nic" { // any value is valid, or values depend on the machine
			return
		}
		for _, word := range words {
			tried++
			if refused(path, f, word) {
				t.Errorf("%s --%s %s is offered, and refused", path, f.Name, word)
			}
		}
	})
	if tried < 200 {
		t.Errorf("%d values were tried: the test does not test", tried)
	}
	for path, flags := range map[string]string{
		"replay": "device path policy calibrate verify gdr pipeline log-level", "bench store": "geometry work forms hits", "bench copy": "paths without directions host",
		"doctor": "require", "bench file": "work order from device direct", "bench transfer": "mode operation protocol",
	} {
		cmd, _, err := newRootCommand().Find(strings.Fields(path))
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.FieldsSeq(flags) {
			f := cmd.Flags().Lookup(name)
			if f == nil {
				f = cmd.Root().PersistentFlags().Lookup(name)
			}
			if !refused(path, f, "nothing-of-this-name") {
				t.Errorf("%s --%s takes any word: the test does not test", path, name)
			}
		}
	}
}

func TestCompletionOfListsFilesAndFolders(t *testing.T) {
	for name, c := range map[string]struct {
		args, words []string
		directive   string
	}{
		"a word":                {[]string{"replay", "--preset", "deepseek-v3"}, []string{"deepseek-v3"}, noFile},
		"the next of several":   {[]string{"doctor", "--require", "cuda,cufile"}, []string{"cuda,cufile", "cuda,cufile-direct"}, noFile},
		"no word twice":         {[]string{"bench", "file", "--work", "read,"}, []string{"read,write"}, noFile},
		"a flag of every":       {[]string{"topo", "--log-format", "j"}, []string{"json"}, noFile},
		"a way to transfer":     {[]string{"bench", "transfer", "--operation", ""}, []string{"read", "write"}, noFile},
		"of one command":        {[]string{"bench", "file", "--from", "c"}, []string{"cold"}, noFile},
		"of another":            {[]string{"bench", "copy", "--from", ""}, nil, anyFile},
		"a trace":               {[]string{"replay", ""}, nil, anyFile},
		"a directory of blocks": {[]string{"store", "verify", ""}, nil, onlyDirs},
		"a folder":              {[]string{"bench", "file", "--dir", ""}, nil, onlyDirs},
		"a segment":             {[]string{"transfer", "put", ""}, nil, noFile},
		"a file to put":         {[]string{"transfer", "put", "host:1", ""}, nil, anyFile},
		"no operand":            {[]string{"doctor", ""}, nil, noFile},
		"a number":              {[]string{"replay", "--tp", ""}, nil, noFile},
	} {
		words, directive := completed(t, c.args...)
		if !slices.Equal(words, c.words) || directive != c.directive {
			t.Errorf("%s: %q, %s; want %q, %s", name, words, directive, c.words, c.directive)
		}
	}
	if words, directive := completed(t, "bench", ""); directive != noFile || len(words) < 4 {
		t.Errorf("commands of a group: %q, %s", words, directive)
	}
}
