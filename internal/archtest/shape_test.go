package archtest

import (
	"go/ast"
	"strings"
	"testing"
)

// The limits of the style guide.
const (
	maxFileLines      = 500
	maxMainLines      = 150
	maxFunctionLines  = 80
	maxInterfaceWidth = 8
)

func TestFilesAreShort(t *testing.T) {
	for _, f := range files(t) {
		limit := maxFileLines
		if strings.HasPrefix(f.rel, "cmd/") && strings.HasSuffix(f.rel, "/main.go") {
			limit = maxMainLines
		}
		if f.lines > limit && !ast.IsGenerated(f.ast) {
			t.Errorf("%s has %d lines, at most %d are allowed: split it by topic", f.rel, f.lines, limit)
		}
	}
}

func TestFunctionsAndInterfacesAreSmall(t *testing.T) {
	for _, f := range files(t) {
		isTest := strings.HasSuffix(f.rel, "_test.go")
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				lines := f.fset.Position(n.End()).Line - f.fset.Position(n.Pos()).Line + 1
				if lines > maxFunctionLines && !isTest {
					t.Errorf("%s: function %s has %d lines, of %d at most", f.rel, n.Name.Name, lines, maxFunctionLines)
				}
			case *ast.InterfaceType:
				if n.Methods.NumFields() > maxInterfaceWidth {
					t.Errorf("%s: an interface has %d methods, of %d at most", f.fset.Position(n.Pos()), n.Methods.NumFields(), maxInterfaceWidth)
				}
			}
			return true
		})
	}
}

func TestNoInit(t *testing.T) {
	for _, f := range files(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !ast.IsGenerated(f.ast) {
				t.Errorf("%s has an init function: nothing registers itself, the façade and commands wire", f.rel)
			}
		}
	}
}

// Every package has one package comment. In a public package it is longer than one line.
func TestPackagesAreDocumented(t *testing.T) {
	documented := make(map[string]bool)
	for _, f := range files(t) {
		if f.ast.Doc != nil && !strings.HasSuffix(f.rel, "_test.go") {
			documented[folder(f.rel)] = true
		}
	}
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && !documented[p.rel] {
			t.Errorf("package %q has no package comment", p.rel)
		}
	}
}

func folder(file string) string {
	i := strings.LastIndex(file, "/")
	return file[:max(i, 0)]
}
