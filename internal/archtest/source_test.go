package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const module = "github.com/kvlane/kvlane"

// root is the path of the module's folder from this package.
var root = filepath.Join("..", "..")

// pkg is a package as go list describes it.
type pkg struct {
	ImportPath                         string
	Dir                                string
	Imports                            []string
	GoFiles, TestGoFiles, XTestGoFiles []string
	CgoFiles                           []string // files that import C

	rel string // import path relative to the module; "" is the root
}

// source is a parsed file.
type source struct {
	rel   string // slash-separated path relative to the module's root
	ast   *ast.File
	fset  *token.FileSet
	lines int
}

var (
	listOnce = sync.OnceValues(list)
	readOnce = sync.OnceValues(read)
)

// packages returns every package of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listOnce()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// files returns every Go file of the module's packages, tests included.
func files(t *testing.T) []source {
	t.Helper()
	all, err := readOnce()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func list() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles,TestGoFiles,XTestGoFiles,CgoFiles", "./...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // otherwise files that use cgo are not listed; nothing is compiled
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		p.rel, _ = relative(p.ImportPath)
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, errors.New("go list found no package")
	}
	return all, nil
}

// relative returns the import path relative to the module, and whether the path belongs to the
// module.
func relative(path string) (string, bool) {
	if path == module {
		return "", true
	}
	return strings.CutPrefix(path, module+"/")
}

func read() ([]source, error) {
	all, err := listOnce()
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, p := range all {
		for _, names := range [][]string{p.GoFiles, p.CgoFiles, p.TestGoFiles, p.XTestGoFiles} {
			for _, name := range names {
				s, err := parse(p, name)
				if err != nil {
					return nil, err
				}
				sources = append(sources, s)
			}
		}
	}
	return sources, nil
}

func parse(p pkg, name string) (source, error) {
	s := source{rel: strings.TrimPrefix(p.rel+"/"+name, "/"), fset: token.NewFileSet()}
	text, err := os.ReadFile(filepath.Join(p.Dir, name))
	if err != nil {
		return s, err
	}
	s.lines = strings.Count(string(text), "\n")
	s.ast, err = parser.ParseFile(s.fset, s.rel, text, parser.ParseComments|parser.SkipObjectResolution)
	return s, err
}
