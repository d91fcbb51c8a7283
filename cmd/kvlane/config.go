package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

const (
	configEnv       = "KVLANE_CONFIG"
	systemConfig    = "/etc/kvlane/config.yaml"
	maxConfigBytes  = 1 << 20
	configFlag      = "config"
	configFlagUsage = "configuration file (default " + configEnv + ", or else config.yaml in $XDG_CONFIG_HOME/kvlane or /etc/kvlane)"
)

// configFile returns the name of the configuration file, or "" where there is none: what --config or the environment names has to be
// there, the usual places need not.
func configFile(cmd *cobra.Command) (string, error) {
	if f := cmd.Root().PersistentFlags().Lookup(configFlag); f.Changed {
		if f.Value.String() == "" {
			return "", errors.New("--config names no file")
		}
		return f.Value.String(), nil
	}
	if name := os.Getenv(configEnv); name != "" {
		return name, nil
	}
	return firstFile(usualConfigs())
}

// usualConfigs are the places where a configuration file is looked for, in order.
func usualConfigs() []string {
	var places []string
	if dir, err := os.UserConfigDir(); err == nil { // else there is no home, or none by an absolute path
		places = append(places, filepath.Join(dir, "kvlane", "config.yaml"))
	}
	return append(places, systemConfig)
}

// firstFile returns the first of places that exists. A home that this user may not enter, as a
// service's user often may not, has no file for this user; the system's file is never passed over.
func firstFile(places []string) (string, error) {
	for _, p := range places {
		_, err := os.Stat(p)
		if err == nil {
			return p, nil
		}
		if !errors.Is(err, os.ErrNotExist) && (p == systemConfig || !errors.Is(err, os.ErrPermission)) {
			return "", fmt.Errorf("look for a configuration file: %w; --config FILE names another, and --config /dev/null none", err)
		}
	}
	return "", nil
}

// readConfig returns the settings of a file, or all its errors.
func readConfig(ctx context.Context, name string, known func() *catalog) ([]supplied, error) {
	text, err := readUntil(ctx, name, maxConfigBytes+1)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("read the configuration: %s is longer than %d bytes", name, maxConfigBytes)
	}
	return parseConfig(name, text, known())
}

// readStart returns at most the first limit bytes of a file.
func readStart(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, limit))
	return text, errors.Join(err, f.Close())
}

// readUntil is readStart for a file that may be a FIFO. Opening a FIFO blocks until there is a
// writer, so a goroutine opens it, which ends with the process where ctx ends first.
func readUntil(ctx context.Context, name string, limit int64) ([]byte, error) {
	if info, err := os.Stat(name); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return readStart(name, limit)
	}
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		text, err := readStart(name, limit)
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s: %w", name, context.Cause(ctx))
	}
}

// parseConfig reads a file's text: one YAML mapping of settings to a value, or to a list of them where the flag takes several.
func parseConfig(name string, text []byte, known *catalog) ([]supplied, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // nothing, or comments alone
	} else if err != nil {
		return nil, yamlError(name, err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, fmt.Errorf("%s:%d: there is a second document: a configuration is one", name, more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(name, err)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: a configuration is lines of NAME: VALUE, the names those of flags", name, root.Line)
	}
	var all []supplied
	var errs []error
	seen := map[string]int{}
	for pair := range slices.Chunk(root.Content, 2) {
		key, at := pair[0].Value, fmt.Sprintf("%s:%d", name, pair[0].Line)
		if line := seen[key]; line > 0 {
			errs = append(errs, fmt.Errorf("%s: %s is given in line %d already", at, key, line))
			continue
		}
		seen[key] = pair[0].Line
		g := supplied{from: at}
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == key })
		if pair[0].Kind != yaml.ScalarNode || i < 0 {
			errs = append(errs, fmt.Errorf("%s: %w", at, unknownKey(key, known.names)))
			continue
		}
		g.setting = &settings[i]
		err := g.read(pair[1], known.list(g.setting))
		if err == nil {
			err = known.check(&g)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, g)
	}
	return all, errors.Join(errs...)
}

// yamlError names file and line as the other errors do.
func yamlError(name string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if line, found := strings.CutPrefix(text, "line "); found {
		return fmt.Errorf("%s:%s", name, line)
	}
	return fmt.Errorf("%s: %s", name, text)
}

// unknownKey says why a name is no key; flags are those that there are.
func unknownKey(key string, flags []string) error {
	var names []string
	for i := range settings {
		names = append(names, settings[i].name)
	}
	if flag := strings.TrimLeft(key, "-"); flag != key || strings.Contains(key, "_") {
		if flag = strings.ReplaceAll(flag, "_", "-"); slices.Contains(names, flag) {
			return fmt.Errorf("%q: the key is %s", key, flag)
		}
	}
	if slices.Contains(flags, key) {
		return fmt.Errorf("%q is no setting: --%s is given on the command line alone", key, key)
	}
	return fmt.Errorf("%q is no setting%s (kvlane config show lists them)", key, didYouMean(key, names))
}

// read takes the values from a node of the file.
func (g *supplied) read(n *yaml.Node, list bool) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: %s: %s", g.from, g.name, fmt.Sprintf(format, args...))
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		if items = n.Content; !list {
			return fail("it takes one value, not a list")
		}
		if len(items) == 0 {
			return fail("the list is empty: leave the key out")
		}
	}
	for _, item := range items {
		switch {
		case item.Kind != yaml.ScalarNode:
			return fail("it takes a value%s", map[bool]string{true: " or a list of values"}[list])
		case item.Value == "" || item.Tag == "!!null":
			return fail("it has no value: leave the key out")
		}
		g.values = append(g.values, item.Value)
	}
	return nil
}
