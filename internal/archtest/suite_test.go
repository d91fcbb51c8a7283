package archtest

import (
	"go/ast"
	"strings"
	"testing"
)

// suites maps each folder of implementations to the conformance suite that the tests of every
// package in it must call.
var suites = map[string]string{
	"device": "devicetest",
	"stream": "streamtest",
	"tier":   "tiertest",
	"rdma":   "rdmatest",
}

// noImplementations are packages below the folders of suites that do not implement the interface.
var noImplementations = map[string]bool{
	"device/signal": true, "device/storage": true, "rdma/channel": true, "rdma/rail": true, "rdma/registry": true,
	"stream/hoststream": true, "stream/ordered": true, "stream/renew": true, "stream/softnic": true, "tier/owner": true,
}

// Decorators also run the suite, because they replace implementations in tests.
func TestImplementationsRunTheirSuite(t *testing.T) {
	calls := callsOfTests(t)
	checked := 0
	for _, p := range packages(t) {
		parent, name, ok := strings.Cut(p.rel, "/")
		suite := suites[parent]
		if !ok || suite == "" || name == suite || strings.Contains(name, "/") || noImplementations[p.rel] {
			continue
		}
		checked++
		if !calls[p.rel][suite+".Run"] {
			t.Errorf("package %s does not call %s.Run from its tests", p.rel, suite)
		}
	}
	if checked < len(suites) {
		t.Errorf("only %d implementations were found: the test looks in the wrong place", checked)
	}
}

// The tests of every package end with the leak check.
func TestPackagesCheckForLeaks(t *testing.T) {
	calls := callsOfTests(t)
	for _, p := range packages(t) {
		// internal/testkit cannot check itself.
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || p.rel == "internal/testkit" {
			continue
		}
		if !calls[p.rel]["testkit.Main"] {
			t.Errorf("package %s has tests and no TestMain that calls testkit.Main", p.rel)
		}
	}
}

// callsOfTests returns for each package the qualified functions that its test files call, as
// "package.Function".
func callsOfTests(t *testing.T) map[string]map[string]bool {
	t.Helper()
	calls := make(map[string]map[string]bool)
	for _, f := range files(t) {
		if !strings.HasSuffix(f.rel, "_test.go") {
			continue
		}
		in := calls[folder(f.rel)]
		if in == nil {
			in = make(map[string]bool)
			calls[folder(f.rel)] = in
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					if x, ok := sel.X.(*ast.Ident); ok {
						in[x.Name+"."+sel.Sel.Name] = true
					}
				}
			}
			return true
		})
	}
	return calls
}
