package settings

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvlane/kvlane/internal/ctxio"
)

// maxFileBytes is the maximum length of a configuration file.
const maxFileBytes = 1 << 20

// Value is a setting with the texts that were given for it. A list may have several.
type Value struct {
	*Setting
	Texts []string
	// From is the origin of the value: "FILE:LINE", the name of an environment variable, or empty
	// for a flag.
	From string
}

// errorf returns an error about the value that includes its origin.
func (v *Value) errorf(format string, args ...any) error {
	if v.From == "" {
		return fmt.Errorf("--"+v.Name+": "+format, args...)
	}
	return fmt.Errorf(v.From+": "+v.Name+": "+format, args...)
}

// Check returns an error if a text is not valid for the setting.
func (v *Value) Check() error {
	for _, text := range v.Texts {
		if err := v.CheckValue(text); err != nil {
			return v.errorf("%w", err)
		}
	}
	return nil
}

// ReadFile reads a configuration file and returns its values. The error lists all errors. If the
// file is a FIFO without a writer, it blocks until ctx ends.
func ReadFile(ctx context.Context, name string) ([]Value, error) {
	text, err := read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("read the configuration: %s is longer than %d bytes", name, maxFileBytes)
	}
	return ParseFile(name, text)
}

// read reads a file, at most maxFileBytes+1 bytes.
func read(ctx context.Context, name string) ([]byte, error) {
	if info, err := os.Stat(name); err == nil && info.Mode()&fs.ModeNamedPipe == 0 {
		ctx = context.WithoutCancel(ctx) // only reading a FIFO can block
	}
	f, err := ctxio.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	return text, errors.Join(err, f.Close())
}

// ParseFile parses a YAML mapping from names to values or lists of values.
func ParseFile(name string, text []byte) ([]Value, error) {
	root, err := parseYAML(name, text)
	if root == nil || err != nil {
		return nil, err
	}
	var all []Value
	var errs []error
	seen := map[string]int{}
	for pair := range slices.Chunk(root.Content, 2) {
		key, v := pair[0].Value, Value{From: fmt.Sprintf("%s:%d", name, pair[0].Line)}
		if line := seen[key]; line > 0 {
			errs = append(errs, fmt.Errorf("%s: %s is also given in line %d", v.From, key, line))
			continue
		}
		seen[key] = pair[0].Line
		if v.Setting = ByName(key); pair[0].Kind != yaml.ScalarNode || v.Setting == nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.From, unknownName(key)))
			continue
		}
		if err := errors.Join(v.read(pair[1]), v.Check()); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, v)
	}
	return all, errors.Join(errs...)
}

// parseYAML returns the mapping in text, which must be a single document. It returns nil if the
// document is empty.
func parseYAML(name string, text []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, yamlError(name, err)
	}
	if err := dec.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s:%d: unexpected second document: a configuration is one document", name, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, yamlError(name, err)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: a configuration consists of lines NAME: VALUE, with the names of flags", name, root.Line)
	}
	return root, nil
}

// yamlError converts an error of the YAML parser to the format "FILE:LINE: text".
func yamlError(name string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if line, found := strings.CutPrefix(text, "line "); found {
		return fmt.Errorf("%s:%s", name, line)
	}
	return fmt.Errorf("%s: %s", name, text)
}

// unknownName returns the error for an unknown setting, with the most similar name as a suggestion.
func unknownName(key string) error {
	var names []string
	for i := range Table {
		names = append(names, Table[i].Name)
	}
	flag := strings.ReplaceAll(strings.TrimLeft(key, "-"), "_", "-")
	if flag != key && ByName(flag) != nil {
		return fmt.Errorf("%q: the key is %s", key, flag)
	}
	return fmt.Errorf("%q is not a setting%s (kvlane config show lists the settings)", key, DidYouMean(key, names))
}

// read appends the texts of a YAML node.
func (v *Value) read(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		if items = n.Content; !v.IsList() {
			return v.errorf("takes one value, not a list")
		}
		if len(items) == 0 {
			return v.errorf("the list is empty: omit the key")
		}
	}
	for _, item := range items {
		switch {
		case item.Kind != yaml.ScalarNode:
			return v.errorf("takes a value%s", map[bool]string{true: " or a list of values"}[v.IsList()])
		case item.Value == "" || item.Tag == "!!null":
			return v.errorf("has no value: omit the key")
		}
		v.Texts = append(v.Texts, item.Value)
	}
	return nil
}

// FromEnv returns the values of settings in environment variables. The error lists all errors.
func FromEnv() ([]Value, error) {
	var all []Value
	var errs []error
	for i := range Table {
		s := &Table[i]
		text := os.Getenv(s.Env())
		if s.Name == "" || text == "" {
			continue
		}
		v := Value{s, []string{text}, s.Env()}
		if s.IsList() {
			v.Texts = strings.Split(text, ",")
		}
		if err := v.Check(); err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, v)
	}
	return all, errors.Join(errs...)
}
