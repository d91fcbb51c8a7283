package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// exitConstants returns the exit codes in the source by the name of their constant.
func exitConstants(t *testing.T) map[string]string {
	t.Helper()
	codes := map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != len(spec.Values) {
				return true
			}
			for i, id := range spec.Names {
				if value, ok := spec.Values[i].(*ast.BasicLit); ok && strings.HasPrefix(id.Name, "exit") {
					codes[id.Name] = value.Value
				}
			}
			return true
		})
	}
	return codes
}

// The constants, the help and the documentation list the same exit codes with the same meanings.
func TestExitCodesAreDocumented(t *testing.T) {
	codes := exitConstants(t)
	if len(codes) < 5 || len(codes) != len(exitMeanings) {
		t.Errorf("the source has %v, and %d codes have a meaning", codes, len(exitMeanings))
	}
	_, help, _ := execute(t, "--help")
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "command-line.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| code | meaning |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows, lines strings.Builder
	for code, means := range exitMeanings {
		if means == "" {
			t.Errorf("code %d means nothing", code)
		}
		fmt.Fprintf(&rows, "| %d | %s |\n", code, means)
		fmt.Fprintf(&lines, "  %d  %s\n", code, means)
	}
	if strings.TrimSpace(rows.String()) != table {
		t.Errorf("docs/command-line.md has\n%s\nwant\n%s", table, rows.String())
	}
	if !strings.Contains(help, "\nExit codes:\n"+lines.String()) {
		t.Errorf("the help lacks\n%s\n%s", lines.String(), help)
	}
	seen := map[string]bool{}
	for name, value := range codes {
		if seen[value] {
			t.Errorf("%s is %s, as another is", name, value)
		}
		seen[value] = true
	}
	for code := range exitMeanings {
		if !seen[fmt.Sprint(code)] {
			t.Errorf("no constant is %d", code)
		}
	}
}
