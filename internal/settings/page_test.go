package settings_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/internal/testkit"
)

const intro = `# Settings

This page is generated from the table in package internal/settings by ` + "`make generate`" + `; do not edit it.

- "library" is a key of the JSON object for ` + "`kvl_open`" + `, ` + "`kvlane.Store`" + ` and the adapters for engines
  ([the C library](library.md#configuration)). The fields of ` + "`kvlane.Config`" + ` in Go correspond to these keys.
- "name" is a key of the [configuration file](command-line.md#configuration) and a flag of commands.
  Its variable of the environment is the name in capitals behind ` + "`KVLANE_`" + `, with underscores.
- A row with both is the same setting.

## Tiers

A pipeline consists of these tiers. Without a pipeline, a store has a cache and the tiers whose place is given.

| tier | description | place | page |
|---|---|---|---|
`

const settingsHead = `
## All settings

| library | name | meaning | default |
|---|---|---|---|
`

// docs/settings.md contains the table of settings.
func TestPageIsTheTable(t *testing.T) {
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	var b strings.Builder
	b.WriteString(intro)
	for i := range settings.Tiers {
		row := &settings.Tiers[i]
		fmt.Fprintf(&b, "| %s | %s | %s | [%s](%s) |\n", code(row.Name), row.Doc, code(row.Place().Key), strings.TrimSuffix(row.Page, ".md"), row.Page)
	}
	b.WriteString(settingsHead)
	for _, s := range settings.Table {
		doc := strings.ReplaceAll(s.Doc, "|", `\|`)
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", code(s.Key), code(s.Name), doc, cmp.Or(s.Default, s.Initial()))
	}
	testkit.Generated(t, "../../docs/settings.md", b.String())
}

// Rows are complete, and the default of a setting is a value that it accepts.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for i := range settings.Table {
		s := &settings.Table[i]
		if s.Doc == "" || s.Key == "" && s.Name == "" || seen["key "+s.Key] || seen["name "+s.Name] {
			t.Errorf("%q %q: the row is incomplete or repeated", s.Key, s.Name)
		}
		if s.Key != "" {
			seen["key "+s.Key] = true
		}
		if s.Name == "" {
			continue
		}
		seen["name "+s.Name] = true
		if v := s.Initial(); v != "" {
			if err := s.CheckValue(v); err != nil {
				t.Errorf("%s: its initial value: %v", s.Name, err)
			}
		}
	}
	for _, r := range settings.Rules {
		for _, name := range r.Names {
			if settings.ByName(name) == nil && name != "file-read-only" {
				t.Errorf("a rule has %q, which is no setting", name)
			}
		}
	}
}

// The adapters for engines accept every section of the configuration that a user may give.
func TestAdaptersAcceptEverySection(t *testing.T) {
	for _, file := range []string{"vllm/config.py", "sglang/config.py"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "python", "src", "kvlane", file))
		if err != nil {
			t.Fatal(err)
		}
		for i := range settings.Table {
			section, _, _ := strings.Cut(settings.Table[i].Key, ".")
			own := []string{"", "model", "groups", "revision", "adapter", "host_streams"} // the adapter sets these
			if !slices.Contains(own, section) && !strings.Contains(string(text), `"`+section+`"`) {
				t.Errorf("%s does not accept %q", file, section)
			}
		}
	}
}
