package archtest

import (
	"go/ast"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestNamesAreReplaced checks that no identifier has a name that testdata/replaced_names.txt
// forbids in its folder. Each line of the list has a folder or file pattern, and names.
func TestNamesAreReplaced(t *testing.T) {
	list, err := os.ReadFile("testdata/replaced_names.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		names := strings.Fields(line)
		place, found := names[0], false
		for _, f := range files(t) {
			if match, _ := path.Match(place, f.rel); !match && !strings.HasPrefix(f.rel, place+"/") {
				continue
			}
			found = true
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains(names[1:], id.Name) {
					t.Errorf("%s: the name %s was replaced: choose one that states its purpose", f.fset.Position(id.Pos()), id.Name)
				}
				return true
			})
		}
		if !found {
			t.Errorf("testdata/replaced_names.txt: no file in %s", place)
		}
	}
}
