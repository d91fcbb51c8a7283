package archtest

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits for 1,000 words of comments, and for Markdown.
const (
	maxWhat          = 2.0
	maxSay           = 1.0
	maxPersons       = 0.5
	maxLong          = 0.02 // share of the comment lines
	maxColumns       = 100
	maxSentenceWords = 17.0
)

// A smaller package or page counts as if it had these numbers, because a few words prove nothing.
const (
	minWords     = 1000
	minLines     = 50
	minSentences = 10
)

var (
	word        = regexp.MustCompile(`[A-Za-z][A-Za-z'’-]*`)
	whatWords   = regexp.MustCompile(`(?i)^what(ever)?$`)
	sayWords    = regexp.MustCompile(`(?i)^(say|says|said|saying|tell|tells|told|telling|hear|hears|heard)$`)
	personWords = regexp.MustCompile(`(?i)^(who|whom|whoever|whomever|nobody|somebody|someone|anybody|anyone|everybody|everyone|he|him|his|she|her)$`)
	directive   = regexp.MustCompile(`^(//(go:|nolint|line |export |#nosec)|# ?(noqa|type:|ruff|mypy|pragma|fmt|!))`)
)

// prose counts the words and lines of a package's comments.
type prose struct {
	words, what, say, persons int
	lines, long               int
}

// add counts a comment. widths are the widths of its source lines.
func (p *prose) add(text string, widths []int) {
	for _, w := range word.FindAllString(text, -1) {
		p.words++
		switch {
		case whatWords.MatchString(w):
			p.what++
		case sayWords.MatchString(w):
			p.say++
		case personWords.MatchString(w):
			p.persons++
		}
	}
	for _, w := range widths {
		p.lines++
		if w > maxColumns {
			p.long++
		}
	}
}

// excess returns the limits that p exceeds, or "".
func (p *prose) excess() string {
	var all []string
	rate := func(name string, n int, limit float64) {
		if float64(n) > limit*float64(max(p.words, minWords))/1000 && n > 1 {
			all = append(all, fmt.Sprintf("%s %.1f of at most %g in 1,000 words", name, 1000*float64(n)/float64(p.words), limit))
		}
	}
	rate(`"what"`, p.what, maxWhat)
	rate(`"say" and "tell"`, p.say, maxSay)
	rate(`"who", "nobody" and such`, p.persons, maxPersons)
	if float64(p.long) > maxLong*float64(max(p.lines, minLines)) {
		all = append(all, fmt.Sprintf("%.0f%% of comment lines have more than %d columns, of at most %.0f%%",
			100*float64(p.long)/float64(p.lines), maxColumns, 100*maxLong))
	}
	return strings.Join(all, "; ")
}

var shrink = flag.Bool("shrink", false, "take packages and pages that are within the limits off the lists of TestProse")

// TestProseOfComments checks the comments of each package against the limits. The list contains the
// packages that still exceed them, and may only shrink.
func TestProseOfComments(t *testing.T) {
	all := make(map[string]*prose)
	of := func(file string) *prose {
		dir := path.Dir(file)
		if all[dir] == nil {
			all[dir] = new(prose)
		}
		return all[dir]
	}
	for _, f := range files(t) {
		if !strings.HasSuffix(f.rel, "_test.go") && !ast.IsGenerated(f.ast) {
			addGo(t, of(f.rel), &f)
		}
	}
	for _, file := range tracked(t, "*.py") {
		if !strings.Contains(file, "/tests/") {
			addPython(of(file), contents(t, file))
		}
	}
	excess := make(map[string]string)
	for dir, p := range all {
		excess[dir] = p.excess()
	}
	ratchet(t, excess, "unclear_packages.txt")
}

// TestProseOfPages checks the sentence length of each page, except decision records. The list
// contains the pages that still exceed the limit, and may only shrink.
func TestProseOfPages(t *testing.T) {
	excess := make(map[string]string)
	for _, file := range tracked(t, "*.md") {
		if strings.HasPrefix(file, "docs/adr/") {
			continue
		}
		excess[file] = ""
		if words, sentences := sentences(contents(t, file)); float64(words) > maxSentenceWords*float64(max(sentences, minSentences)) {
			excess[file] = fmt.Sprintf("%.1f words in a sentence, of at most %g", float64(words)/float64(sentences), maxSentenceWords)
		}
	}
	ratchet(t, excess, "unclear_pages.txt")
}

// ratchet compares the names that exceed a limit with the list of exceptions. With -shrink it
// removes names that no longer exceed a limit.
func ratchet(t *testing.T, excess map[string]string, list string) {
	t.Helper()
	file := path.Join("internal/archtest/testdata", list)
	may := strings.Fields(contents(t, file))
	for _, name := range slices.Sorted(maps.Keys(excess)) {
		if excess[name] != "" && !slices.Contains(may, name) {
			t.Errorf("%s: %s", name, excess[name])
		}
	}
	clean := func(name string) bool { return excess[name] == "" }
	if *shrink {
		may = slices.DeleteFunc(may, clean)
		if err := os.WriteFile(filepath.Join(root, file), []byte(strings.Join(may, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range may {
		if clean(name) {
			t.Errorf("%s is within the limits or gone: take it off the list, go test ./internal/archtest -run Prose -shrink", name)
		}
	}
}

func addGo(t *testing.T, p *prose, f *source) {
	t.Helper()
	lines := strings.Split(contents(t, f.rel), "\n")
	for _, group := range f.ast.Comments {
		if group.End() < f.ast.Package && strings.Contains(group.Text(), "Copyright") {
			continue
		}
		for _, c := range group.List {
			if directive.MatchString(c.Text) {
				continue
			}
			first, last := f.fset.Position(c.Pos()).Line, f.fset.Position(c.End()).Line
			p.add(c.Text, widths(lines[first-1:last]))
		}
	}
}

var (
	pythonComment = regexp.MustCompile(`(?m)(?:^|\s)(#.*)$`)
	docstring     = regexp.MustCompile(`(?ms)^[ \t]*[rR]?(?:"""(.*?)"""|'''(.*?)''')`)
)

// addPython counts comments and docstrings. A triple-quoted string at the start of a line counts as
// a docstring.
func addPython(p *prose, text string) {
	for _, m := range docstring.FindAllString(text, -1) {
		p.add(m, widths(strings.Split(m, "\n")))
	}
	for _, line := range strings.Split(docstring.ReplaceAllString(text, ""), "\n") {
		if m := pythonComment.FindStringSubmatch(line); m != nil && !directive.MatchString(m[1]) {
			p.add(m[1], widths([]string{line}))
		}
	}
}

func widths(lines []string) []int {
	all := make([]int, len(lines))
	for i, l := range lines {
		all[i] = utf8.RuneCountInString(strings.ReplaceAll(l, "\t", "    "))
	}
	return all
}

var (
	code     = regexp.MustCompile("(?ms)^ *```.*?^ *```|^\\|.*?$|<!--.*?-->|^    .*?$")
	heading  = regexp.MustCompile(`(?m)^#.*$`)
	inline   = regexp.MustCompile("`[^`]*`")
	link     = regexp.MustCompile(`\]\([^)]*\)`)
	item     = regexp.MustCompile(`(?m)^\s*([-*+]|\d+\.)\s`)
	sentence = regexp.MustCompile(`[.!?]["')*]*(\s|$)|\n\s*\n`)
)

// sentences returns the number of words and sentences of a page outside of its headings, tables and
// code. An item of a list ends a sentence.
func sentences(page string) (words, sentences int) {
	page = heading.ReplaceAllString(code.ReplaceAllString(page, "\n"), "\n")
	page = link.ReplaceAllString(inline.ReplaceAllString(page, "code"), "]")
	page = item.ReplaceAllString(page, "\n\n")
	for _, s := range sentence.Split(page, -1) {
		if n := len(word.FindAllString(s, -1)); n > 0 {
			words, sentences = words+n, sentences+1
		}
	}
	return words, cmp.Or(sentences, 1)
}

// tracked returns the files of the repository that match, without those of testdata.
func tracked(t *testing.T, pattern string) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--", pattern)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(file string) bool { return strings.Contains(file, "testdata/") })
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
