package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/internal/settings"
)

// configText writes a configuration file and returns its name.
func configText(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// shown returns the value and the source that "kvlane config show" reports for a setting.
func shown(t *testing.T, name string, args ...string) string {
	t.Helper()
	code, stdout, stderr := execute(t, append([]string{"config", "show", "--json"}, args...)...)
	var c shownConfig
	if err := json.Unmarshal([]byte(stdout), &c); err != nil || code != exitOK {
		t.Fatalf("%v: exit code %d, %v: %s", args, code, err, stderr)
	}
	for _, s := range c.Settings {
		if s.Name == name {
			return strings.Join(s.Values, ",") + " " + s.Source
		}
	}
	return "none"
}

// An interrupt ends a command that waits for a FIFO to be opened for writing.
func TestConfigFIFOIsInterrupted(t *testing.T) {
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	if code := run(ctx, []string{"topo", "--config", name}, &stdout, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "read "+name) {
		t.Errorf("exit code %d, standard error %q", code, stderr.String())
	}
}

// Passwords in URLs are not printed.
func TestConfigShowMasksPasswords(t *testing.T) {
	file := configText(t, "metadata: http://user:secret@127.0.0.1:8080/metadata\n")
	if got := shown(t, "metadata", "--config", file); strings.Contains(got, "secret") || !strings.Contains(got, "http://user:xxxxx@127.0.0.1") {
		t.Errorf("metadata: %q", got)
	}
	if _, stdout, _ := execute(t, "config", "show", "--config", file); strings.Contains(stdout, "secret") {
		t.Errorf("the table has the password: %s", stdout)
	}
}

// A flag takes precedence over the environment, the environment over the file, and the file over
// the default, for values of every type.
func TestDefectFlagEnvironmentFileDefault(t *testing.T) {
	file := configText(t, "# of every sort\ndevice: sim\ncache-bytes: 2GiB\nnic: [a, b]\nfile-dir: /x\nrdma-port: 1\nmetrics-addr: 127.0.0.1:1\ngdr: auto\n")
	for _, c := range []struct {
		name, env, flag                 string
		byDefault, byFile, byEnv, byCmd string
	}{
		{"device", "host", "cuda", "auto", "sim", "host", "cuda"},
		{"cache-bytes", "3GiB", "4GiB", "1GiB", "2GiB", "3GiB", "4GiB"},
		{"nic", "c,d", "e", "", "a,b", "c,d", "e"},
		{"file-dir", "/y,/z", "/w", "", "/x", "/y,/z", "/w"},
		{"rdma-port", "2", "3", "0", "1", "2", "3"},
		{"metrics-addr", "127.0.0.1:2", "127.0.0.1:3", "", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"},
	} {
		env := "KVLANE_" + strings.ToUpper(strings.ReplaceAll(c.name, "-", "_"))
		check := func(want string, args ...string) {
			t.Helper()
			if got := shown(t, c.name, args...); got != want {
				t.Errorf("%s by %v: %q, want %q", c.name, args, got, want)
			}
		}
		line := 2 + slices.Index([]string{"device", "cache-bytes", "nic", "file-dir", "rdma-port", "metrics-addr"}, c.name)
		check(c.byDefault+" default", "replay")
		check(fmt.Sprintf("%s %s:%d", c.byFile, file, line), "--config", file, "replay")
		check(fmt.Sprintf("%s %s:%d", c.byFile, file, line), "--config", file)
		t.Setenv(env, c.env)
		check(c.byEnv+" "+env, "--config", file, "replay")
		check(c.byEnv+" "+env, "--config", file)
		check(c.byCmd+" flag", "--config", file, "replay", "--", "--"+c.name+"="+c.flag, "trace")
		t.Setenv(env, "")
	}
}

// All errors of a configuration file are reported together, each with file, line, key and a
// suggestion.
func TestDefectConfigurationNamesFileLineAndKey(t *testing.T) {
	for text, want := range map[string]string{
		"device: cdua":                 `:1: device: "cdua" is not one of auto, cuda, sim, host; did you mean cuda?`,
		"\n\ncache-bytes: much":        `:3: cache-bytes: "much" is not a size`,
		"rdma-port: 1.5":               `:1: rdma-port: "1.5" is not a whole number`,
		"log-level: loud":              `:1: log-level: "loud" is not one of debug, info, warn, error`,
		"pipeline: cache|files":        `:1: pipeline: parse pipeline "cache|files": unknown tier "files"`,
		"fil-dir: /x":                  `:1: "fil-dir" is not a setting; did you mean file-dir?`,
		"cache_bytes: 1":               `:1: "cache_bytes": the key is cache-bytes`,
		"--device: sim":                `:1: "--device": the key is device`,
		"seed: 1":                      `:1: "seed" is not a setting (kvlane config show`,
		"nonsense: 1":                  `:1: "nonsense" is not a setting (kvlane config show`,
		"device: sim\ndevice: host":    `:2: device is also given in line 1`,
		"device: [sim]":                ":1: device: takes one value, not a list",
		"device: {a: b}":               ":1: device: takes a value\n",
		"nic: [[a]]":                   ":1: nic: takes a value or a list of values",
		"nic: []":                      ":1: nic: the list is empty",
		"fsync:":                       ":1: fsync: has no value",
		"fsync: ~":                     ":1: fsync: has no value",
		"- device":                     ":1: a configuration consists of lines NAME: VALUE",
		"device sim":                   ":1: a configuration consists of lines NAME: VALUE",
		"device: sim\n---\ngdr: off":   ":2: unexpected second document",
		"device: \"sim":                ": found unexpected end of stream",
		"? [a]\n: b":                   ":1: ",
		"rdma-mtu: 77":                 `:1: rdma-mtu: "77" is not one of 0, 256, 512`,
		"metrics-addr: nonsense":       ":1: metrics-addr: address nonsense: missing port",
		"pprof-addr: nonsense":         ":1: pprof-addr: address nonsense: missing port",
		"file-dir-bytes: [0, -1]":      `:1: file-dir-bytes: the size "-1" is negative`,
		"<<: {device: sim}":            ` is not a setting`,
		"a: 1\nb: 2\nfsync: sometimes": `:3: fsync: "sometimes" is not one of never, file`,
		strings.Repeat("#", 1<<20+1):   "is longer than 1048576 bytes",
	} {
		name := configText(t, text)
		for _, args := range [][]string{{"config", "check", name}, {"topo", "--config", name}, {"config", "show", "--config", name}} {
			code, stdout, stderr := execute(t, args...)
			if code != exitUsage || stdout != "" || !strings.Contains(stderr, want) || !strings.Contains(stderr, name) {
				t.Errorf("%v of %.40q: exit code %d, want %d and %q:\n%s%s", args, text, code, exitUsage, want, stdout, stderr)
			}
		}
	}
	t.Setenv("KVLANE_CACHE_BYTES", "much")
	if code, _, stderr := execute(t, "topo"); code != exitUsage || !strings.Contains(stderr, `KVLANE_CACHE_BYTES: cache-bytes: "much" is not a size`) {
		t.Errorf("the environment: exit code %d, %s", code, stderr)
	}
}

// All commands share one file: each uses its settings and ignores the others. If a setting
// conflicts with the command line, the error names its source.
func TestConfigurationIsShared(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blocks")
	name := configText(t, "device: sim\nfile-dir: "+dir+"\nlog-fsync: always\nfsync: file\npolicy: latency\nrdma-mtu: 1024\ncache-bytes: 4MiB\n")
	t.Setenv(configEnv, name)
	if code, stdout, stderr := execute(t, "replay", traceFile(t, goodLine)); code != exitOK || strings.Contains(stdout, "SIMULATED DEVICE: no GPU is usable") {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := execute(t, "store", "verify", dir); code != exitOK || !strings.Contains(stdout, "clean") {
		t.Errorf("the directory of the file: exit code %d: %s%s", code, stdout, stderr)
	}
	for args, want := range map[string]string{
		"replay x --path kernel --policy latency":     "--policy has no effect with a forced --path: omit one of them\nSee",
		"replay x --file-read-only --log-fsync never": "--log-fsync has no effect",
		"replay x --log-dir /y --cache-bytes 4KiB":    ":2), --fsync (" + name + ":4), --log-fsync (" + name + ":3).",
	} {
		if code, _, stderr := execute(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, want %q:\n%s", args, code, want, stderr)
		}
	}
	t.Setenv(configEnv, configText(t, "path: kernel\ndevice: auto\nmetrics-addr: 127.0.0.1:0\npipeline: cache\nfile-dir: /x\n"))
	if code, _, stderr := execute(t, "replay", "x", "--policy", "latency"); code != exitUsage || !strings.Contains(stderr, "--path is from "+os.Getenv(configEnv)+":1.\n") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if code, _, stderr := execute(t, "bench", "copy"); code != exitUsage || !strings.Contains(stderr, "The configuration gives --device ("+os.Getenv(configEnv)+":2)") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	// Without --use-vram no device is opened.
	if code, _, stderr := execute(t, "bench", "transfer", "--segment", "127.0.0.1:1"); code != exitFailure || !strings.Contains(stderr, "refused") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	for args, want := range map[string]string{
		"metrics-addr store ls": "none", "metrics-addr replay": "127.0.0.1:0 " + os.Getenv(configEnv) + ":3", "pipeline bench store -- --device sim": "none",
		"file-dir calibrate -- --device sim": "none", "device bench file": "none", "seed replay": "none",
	} {
		words := strings.Fields(args)
		if got := shown(t, words[0], words[1:]...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// A configured setting that has no effect with the given flags is ignored, and config show reports
// that.
func TestDefectConfigurationWithoutEffectIsIgnored(t *testing.T) {
	dir, trace := filepath.Join(t.TempDir(), "blocks"), traceFile(t, goodLine)
	name := configText(t, "gdr: auto\nrdma-mtu: 1024\nnic: [a, b]\nlog-fsync: always\nfile-bytes: 1GiB\nfsync: file\ncalibrate: never\npolicy: latency\n")
	for _, args := range [][]string{
		{"--device", "sim", "--path", "kernel"}, {"--device", "host"}, {"--device", "sim", "--gdr", "off"}, {"--device", "sim", "--gdr", "off", "--log-dir", dir},
	} {
		if code, _, stderr := execute(t, append([]string{"replay", trace, "--cache-bytes", "4MiB", "--config", name}, args...)...); code != exitOK {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	for setting, want := range map[string]string{
		"nic":       " default; " + name + ":3 has no effect here",
		"gdr":       "off default; " + name + ":1 has no effect here",
		"log-fsync": "interval default; " + name + ":4 has no effect here",
		"policy":    "serving default; " + name + ":8 has no effect here",
	} {
		if got := shown(t, setting, "--config", name, "replay", "--", "--device", "sim", "--path", "kernel"); got != want {
			t.Errorf("%s: %q, want %q", setting, got, want)
		}
	}
	if got, want := shown(t, "log-fsync", "--config", name, "replay", "--", "--device", "sim", "--log-dir", dir), "always "+name+":4"; got != want {
		t.Errorf("with a log: %q, want %q", got, want)
	}
}

// If two settings contradict each other, the command line wins over the environment, and the
// environment over the file.
func TestDefectCommandLineDidNotOverruleTheTiersOfAConfiguration(t *testing.T) {
	trace, files, logs := traceFile(t, goodLine), filepath.Join(t.TempDir(), "files"), filepath.Join(t.TempDir(), "log")
	for _, c := range []struct {
		file, env string // the configuration file, and the value of KVLANE_LOG_DIR
		args      []string
		want      string // resulting values of pipeline, file-dir and log-dir
	}{
		{"file-dir: " + files, "", []string{"--log-dir", logs}, " | " + files + " | " + logs},
		{"file-dir: " + files + "\npipeline: cache|file", "", []string{"--log-dir", logs}, " | " + files + " | " + logs},
		{"file-dir: " + files, "", []string{"--log-dir", logs, "--pipeline", "cache|log"}, "cache|log | | " + logs},
		{"log-dir: " + logs + "\nlog-bytes: 1GiB", "", []string{"--file-dir", files}, " | " + files + " | " + logs},
		{"file-dir: " + files + "\nfsync: file", "", []string{"--pipeline", "cache"}, "cache | | "},
		{"file-dir: " + files, logs, nil, " | " + files + " | " + logs},
		{"file-dir: " + files, logs, []string{"--pipeline", "cache|file"}, "cache|file | " + files + " | "},
		{"pipeline: cache\nfile-dir: " + files, "", []string{"--file-dir", files + "2"}, " | " + files + "2 | "},
	} {
		config := []string{"--config", configText(t, c.file), "--device", "sim", "--cache-bytes", "4MiB"}
		t.Setenv("KVLANE_LOG_DIR", c.env)
		args := append(config, c.args...)
		if code, _, stderr := execute(t, append([]string{"replay", trace}, args...)...); code != exitOK {
			t.Errorf("%s, %q, %v: exit code %d: %s", c.file, c.env, c.args, code, stderr)
		}
		var got []string
		for _, s := range []string{"pipeline", "file-dir", "log-dir"} {
			value, _, _ := strings.Cut(shown(t, s, append([]string{"replay", "--"}, args...)...), " ")
			got = append(got, value)
		}
		if got := strings.Join(got, " | "); strings.ReplaceAll(got, "  ", " ") != c.want {
			t.Errorf("%s, %q, %v: the tiers are %q, want %q", c.file, c.env, c.args, got, c.want)
		}
	}
	for _, c := range []struct{ file, args string }{ // both are in the same source, so neither wins
		{"file-dir: " + files + "\npipeline: cache|log", "--device sim --log-dir " + logs},
		{"file-dir: " + files + "\npipeline: cache", "--device sim"},
	} {
		t.Setenv("KVLANE_LOG_DIR", "")
		if code, _, stderr := execute(t, append([]string{"replay", trace, "--config", configText(t, c.file)}, strings.Fields(c.args)...)...); code != exitUsage {
			t.Errorf("%s, %s: exit code %d: %s", c.file, c.args, code, stderr)
		}
	}
}

// Two spellings of the same pipeline are equal. An invalid pipeline does not overrule other
// settings.
func TestDefectPipelineInOtherWordsOverruledItsOwnTiers(t *testing.T) {
	trace, files, logs := traceFile(t, goodLine), filepath.Join(t.TempDir(), "files"), filepath.Join(t.TempDir(), "log")
	for _, c := range []struct{ file, flag, value, dirs string }{ // the configuration, the command line, and the directories that remain set
		{"file-dir: " + files, "--pipeline", "Cache | File", files + ", "},
		{"log-dir: " + logs, "--pipeline", " LOG", ", " + logs},
		{"log-dir: " + logs, "--pipeline", "Cache | File", ", "},
		{"file-dir: " + files, "--pipeline", "", files + ", "},
	} {
		args := []string{"replay", "--", "--config", configText(t, c.file), "--device", "sim", c.flag, c.value}
		dir := func(name string) string {
			value, _, _ := strings.Cut(shown(t, name, args...), " ")
			return value
		}
		if got := dir("file-dir") + ", " + dir("log-dir"); got != c.dirs {
			t.Errorf("%s, %s %q: the directories are %q, want %q", c.file, c.flag, c.value, got, c.dirs)
		}
	}
	args := []string{"--config", configText(t, "file-dir: "+files), "--device", "sim", "--pipeline", "cache|fiel", "--file-bytes", "1GiB"}
	if code, _, stderr := execute(t, append([]string{"replay", trace}, args...)...); code != exitUsage || !strings.Contains(stderr, `unknown tier "fiel"`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A pipeline is checked in a configuration as on the command line, with the same error.
func TestDefectConfigurationReadsPipelinesDifferently(t *testing.T) {
	trace := traceFile(t, goodLine)
	for _, bad := range []string{"file|cache", "cache|files", "cache|", "cache|cache"} {
		_, _, stderr := execute(t, "replay", trace, "--device", "sim", "--pipeline", bad)
		_, reported, _ := strings.Cut(stderr, "--pipeline: ")
		reported, _, _ = strings.Cut(reported, "\n")
		name := configText(t, fmt.Sprintf("pipeline: %q", bad))
		for _, args := range [][]string{{"config", "check", name}, {"replay", trace, "--device", "sim", "--config", name}} {
			code, _, stderr := execute(t, args...)
			if want := "kvlane: " + name + ":1: pipeline: " + reported + "\n"; code != exitUsage || reported == "" || !strings.HasPrefix(stderr, want) {
				t.Errorf("%v: exit code %d, %q, want %q", args, code, stderr, want)
			}
		}
	}
	name := configText(t, "pipeline: Cache | FILE\nfile-dir: "+t.TempDir())
	if code, _, stderr := execute(t, "replay", trace, "--device", "sim", "--cache-bytes", "4MiB", "--config", name); code != exitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// config show accepts only commands that have settings. For an unknown word its error suggests no
// unrelated command.
func TestDefectConfigShowNamesAnotherCommand(t *testing.T) {
	for args, want := range map[string]string{
		"nope":        `unknown command "nope" for "kvlane"` + "\nSee",
		"vresion":     `unknown command "vresion" for "kvlane"` + "\nSee",
		"version":     `"kvlane version" takes no settings` + "\nSee",
		"config shw":  `"kvlane config" takes no settings` + "\nSee",
		"bench":       `"kvlane bench" has several commands: give one of them` + "\nSee",
		"bench coppy": `unknown command "coppy" for "kvlane bench"; did you mean copy?` + "\nSee",
	} {
		if code, _, stderr := execute(t, append([]string{"config", "show"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("config show %s: exit code %d, want %q:\n%s", args, code, want, stderr)
		}
	}
	if code, _, stderr := execute(t, "config", "show", ""); code != exitUsage {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// The configuration file is searched in the documented places. A file that is named explicitly must
// exist.
func TestWhereTheConfigurationIs(t *testing.T) {
	home := t.TempDir()
	mine := filepath.Join(home, "kvlane", "config.yaml")
	t.Setenv("XDG_CONFIG_HOME", home)
	t.Setenv(configEnv, "")
	if got := usualConfigs(); !slices.Equal(got, []string{mine, "/etc/kvlane/config.yaml"}) {
		t.Errorf("usual places %q", got)
	}
	if err := os.MkdirAll(filepath.Dir(mine), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte("device: sim\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, "device"); got != "sim "+mine+":1" {
		t.Errorf("the user's file gives %q", got)
	}
	second := configText(t, "device: host\n")
	if got, err := firstFile([]string{filepath.Join(home, "none"), second, mine}); got != second || err != nil {
		t.Errorf("the first existing file: %q, %v", got, err)
	}
	t.Setenv(configEnv, second)
	if got := shown(t, "device"); got != "host "+second+":1" {
		t.Errorf("the file named by %s gives %q", configEnv, got)
	}
	if got := shown(t, "device", "--config", mine); got != "sim "+mine+":1" {
		t.Errorf("by --config: %q", got)
	}
	for _, args := range [][]string{{"topo", "--config", mine + "x"}, {"topo", "--config", ""}, {"topo", "--config", home}} {
		if code, _, stderr := execute(t, args...); code != exitUsage || !strings.Contains(stderr, "config") {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
	if code, stdout, stderr := execute(t, "config", "check"); code != exitOK || stdout != second+": 1 setting, no errors\n" {
		t.Errorf("check: exit code %d, %s%s", code, stdout, stderr)
	}
	// These commands must work with a wrong configuration.
	t.Setenv(configEnv, configText(t, "nonsense"))
	for _, args := range [][]string{{"version"}, {"completion", "bash"}, {"__complete", "replay", "--dev"}, {"--help"}, {"replay", "--help"}, {"config"}, {}} {
		if code, _, stderr := execute(t, args...); code != exitOK {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

// The example in the documentation contains every setting and is valid, and so does the table of
// exceptions.
func TestConfigurationIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "command-line.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	code, _, stderr := execute(t, "replay", "/no/such/trace", "--config", configText(t, example))
	if code != exitFailure || !strings.Contains(stderr, "no such file") { // the command reads the trace after all flags are accepted
		t.Errorf("with the example: exit code %d: %s", code, stderr)
	}
	all, err := settings.ParseFile("example", regexp.MustCompile("(?m)^#([a-z])").ReplaceAll([]byte(example), []byte("$1")))
	if err != nil {
		t.Error(err)
	}
	for i := range settings.Table {
		s := &settings.Table[i]
		if s.Name == "" {
			continue
		}
		if !slices.ContainsFunc(all, func(v settings.Value) bool { return v.Setting == s }) {
			t.Errorf("the example lacks %s", s.Name)
		}
		for _, c := range s.FlagOnly {
			command, _, _ := strings.Cut(c, " ")
			if ok, err := regexp.MatchString("(?m)^\\| .*`"+s.Name+"`.* \\|.*`"+command, string(text)); err != nil || !ok {
				t.Errorf("the documentation does not list that %s takes %s from the command line only", c, s.Name)
			}
		}
	}
}

// Every setting is a flag of a command, which accepts the setting's initial value and words unless
// it accepts fewer by design, and its variable has no other meaning.
func TestSettingsAreFlags(t *testing.T) {
	fewer := []string{"device", "protocol", "direct"}
	flags := map[string]bool{}
	forEachCommand(func(path string, cmd *cobra.Command) {
		for i := range settings.Table {
			s := &settings.Table[i]
			f := settingFlag(cmd, s)
			if f == nil {
				continue
			}
			flags[s.Name] = true
			if _, list := f.Value.(pflag.SliceValue); list != s.IsList() {
				t.Errorf("--%s of %q is a list: %v, and its setting is %v", s.Name, path, list, s.IsList())
			}
			if slices.Contains(fewer, s.Name) {
				continue
			}
			if v := s.Initial(); v != "" && f.DefValue != v {
				t.Errorf("--%s of %q starts as %q, and its setting as %q", s.Name, path, f.DefValue, v)
			}
			if words := flagWords(path, f); s.Words != nil && !slices.Equal(words, s.Words) {
				t.Errorf("--%s of %q accepts %q, and its setting %q", s.Name, path, words, s.Words)
			}
		}
	})
	env := map[string]bool{configEnv: true}
	for i := range settings.Table {
		s := &settings.Table[i]
		if s.Name == "" {
			continue
		}
		if !flags[s.Name] {
			t.Errorf("%s is a flag of no command", s.Name)
		}
		env[s.Env()] = true
		for _, c := range s.FlagOnly {
			cmd, rest, err := newRootCommand().Find(strings.Fields(c))
			if err != nil || len(rest) > 0 || settingFlag(cmd, s) != nil {
				t.Errorf("%s: %q is no command, or reads it from the configuration", s.Name, c)
			}
		}
	}
	name := regexp.MustCompile("KVLANE_[A-Z0-9_]+")
	read := 0
	err := fs.WalkDir(os.DirFS("../.."), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if p == ".git" || p == "bin" || p == "cmd/kvlane" || p == "docs" {
				return fs.SkipDir
			}
			return err
		}
		if ext := filepath.Ext(p); ext != ".go" && ext != ".py" && ext != ".sh" && ext != ".h" && ext != ".c" && ext != "" {
			return nil
		}
		b, err := os.ReadFile(filepath.Join("../..", p))
		for _, used := range name.FindAllString(string(b), -1) {
			read++
			if env[used] {
				t.Errorf("%s uses %s, which is a setting", p, used)
			}
		}
		return err
	})
	if err != nil || read < 50 {
		t.Errorf("%d names were found, %v: the test does not test", read, err)
	}
}
