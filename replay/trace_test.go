package replay

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/errdefs"
)

const (
	goodLine  = `{"timestamp": 12, "input_length": 1025, "output_length": 7, "hash_ids": [0, 1, 9223372036854775807]}`
	shortLine = `{"hash_ids":[],"timestamp":0,"input_length":0,"output_length":0,"user":{"name":"x"}}`
)

func readAll(t *testing.T, text string) ([]Request, error) {
	t.Helper()
	tr, err := NewTraceReader("t.jsonl", strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var out []Request
	for {
		var req Request
		if err := tr.Next(&req); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		out = append(out, req)
	}
}

func TestTraceReads(t *testing.T) {
	want := []Request{
		{Line: 1, Timestamp: 12, InputLength: 1025, OutputLength: 7, HashIDs: []int64{0, 1, 1<<63 - 1}},
		{Line: 3, HashIDs: nil},
	}
	for name, text := range map[string]string{
		"unix":             goodLine + "\n\n" + shortLine + "\n",
		"no last newline":  goodLine + "\n\n" + shortLine,
		"windows":          goodLine + "\r\n\r\n" + shortLine + "\r\n",
		"trailing blanks":  goodLine + "\n \t\n" + shortLine + "\n\n  \n",
		"gzip":             zipped(t, goodLine+"\n\n"+shortLine+"\n"),
		"gzip, two halves": zipped(t, goodLine+"\n") + zipped(t, "\n"+shortLine+"\n"),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readAll(t, text)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmp.Transformer("", func(ids []int64) string { return fmt.Sprint(ids) })); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
		})
	}
}

func TestTraceErrorsNameFileLineAndField(t *testing.T) {
	fields := func(ts, in, out, ids string) string {
		return fmt.Sprintf(`{"timestamp": %s, "input_length": %s, "output_length": %s, "hash_ids": %s}`, ts, in, out, ids)
	}
	for _, c := range []struct{ name, line, field, problem string }{
		{"not JSON", "hello", "", "not JSON"},
		{"cut off", goodLine[:40], "", "not JSON"},
		{"two objects", goodLine + goodLine, "", "not JSON"},
		{"array", "[1]", "", "is a JSON array, not an object"},
		{"number", "5", "", "is a JSON number, not an object"},
		{"null", "null", "timestamp", "is missing"},
		{"empty object", "{}", "timestamp", "is missing"},
		{"no input length", `{"timestamp":1,"output_length":1,"hash_ids":[]}`, "input_length", "is missing"},
		{"no output length", `{"timestamp":1,"input_length":1,"hash_ids":[]}`, "output_length", "is missing"},
		{"no hash ids", `{"timestamp":1,"input_length":1,"output_length":1}`, "hash_ids", "is missing"},
		{"negative timestamp", fields("-1", "1", "1", "[]"), "timestamp", "is -1, but must not be negative"},
		{"negative input length", fields("1", "-6758", "1", "[]"), "input_length", "is -6758, but must not be negative"},
		{"negative output length", fields("1", "1", "-2", "[]"), "output_length", "is -2, but must not be negative"},
		{"length with a fraction", fields("1", "1.5", "1", "[]"), "input_length", "is 1.5, not an integer"},
		{"length as text", fields("1", `"7"`, "1", "[]"), "input_length", `is "7", not an integer`},
		{"length null", fields("1", "1", "null", "[]"), "output_length", "is null, not an integer"},
		{"length too large", fields("1", "9223372036854775808", "1", "[]"), "input_length", "does not fit 64 bits"},
		{"hash ids null", fields("1", "1", "1", "null"), "hash_ids", "is null, not an array"},
		{"hash ids a number", fields("1", "1", "1", "3"), "hash_ids", "is 3, not an array"},
		{"hash id negative", fields("1", "1", "1", "[0, 1, -3]"), "hash_ids[2]", "is -3, but must not be negative"},
		{"hash id with a fraction", fields("1", "1", "1", "[0.5]"), "hash_ids[0]", "is 0.5, not an integer"},
		{"hash id null", fields("1", "1", "1", "[4, null]"), "hash_ids[1]", "is null, not an integer"},
		{"hash id as text", fields("1", "1", "1", `["a,b"]`), "hash_ids[0]", `is "a, not an integer`},
		{"hash id nested", fields("1", "1", "1", "[[1]]"), "hash_ids[0]", "is [1], not an integer"},
		{"long value", fields("1", `"`+strings.Repeat("x", 1000)+`"`, "1", "[]"), "input_length", "..., not an integer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readAll(t, goodLine+"\n"+c.line+"\n"+goodLine+"\n")
			var te *TraceError
			if !errors.As(err, &te) || !errors.Is(err, errdefs.ErrInvalid) {
				t.Fatalf("got %v, want a TraceError", err)
			}
			if te.File != "t.jsonl" || te.Line != 2 || te.Field != c.field || !strings.Contains(te.Problem, c.problem) {
				t.Errorf("got %q, want line 2, field %q, %q", err, c.field, c.problem)
			}
			if len(err.Error()) > 300 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestTraceTooLong(t *testing.T) {
	_, err := readAll(t, goodLine+"\n"+strings.Repeat("x", MaxLineBytes+1))
	var te *TraceError
	if !errors.As(err, &te) || te.Line != 2 || !strings.Contains(te.Problem, "longer than") {
		t.Errorf("got %v, want a TraceError for line 2", err)
	}
}

func TestTraceEmpty(t *testing.T) {
	for name, text := range map[string]string{"nothing": "", "blank lines": "\n \n", "gzip of nothing": zipped(t, "")} {
		t.Run(name, func(t *testing.T) {
			if _, err := readAll(t, text); err == nil || !strings.HasPrefix(err.Error(), "t.jsonl: the trace is empty; ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTraceGzipCutOff(t *testing.T) {
	z := zipped(t, strings.Repeat(goodLine+"\n", 1000))
	_, err := readAll(t, z[:len(z)/2])
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "t.jsonl") {
		t.Errorf("got %v, want an unexpected end of t.jsonl", err)
	}
	if _, err := readAll(t, z[:5]); err == nil || !strings.Contains(err.Error(), "t.jsonl") {
		t.Errorf("cut in the header: got %v", err)
	}
}

func TestScan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.jsonl")
	three := `{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[1,2,3,4]}`
	if err := os.WriteFile(path, []byte(shortLine+"\n"+goodLine+"\n"+three+"\nbad\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Scan(t.Context(), path, 3)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Summary{Requests: 3, Accesses: 7, MaxBlocks: 4, LongestLine: 3, leastTokens: 342}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if _, err := Scan(t.Context(), path, 0); err == nil || !strings.Contains(err.Error(), path+":4:") {
		t.Errorf("the bad line: got %v", err)
	}
	if _, err := Scan(t.Context(), filepath.Join(t.TempDir(), "none"), 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
}

// Every replay reads the trace twice: first to scan it, and then to replay it.
func TestScanWholeTrace(t *testing.T) {
	got, err := Scan(t.Context(), wholeTrace, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Summary{Requests: 12031, Accesses: 288500, MaxBlocks: 247, LongestLine: got.LongestLine, leastTokens: 512, mostTokens: 512}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestTraceReaderAllocatesNothingPerBlock(t *testing.T) {
	line := `{"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[` + strings.Repeat("123456, ", 999) + "7]}\n"
	tr, err := NewTraceReader("t", strings.NewReader(strings.Repeat(line, 200)))
	if err != nil {
		t.Fatal(err)
	}
	var req Request
	n := testing.AllocsPerRun(100, func() {
		if err := tr.Next(&req); err != nil {
			t.Fatal(err)
		}
	})
	if n > 20 {
		t.Errorf("%.0f allocations for a request of 1000 blocks", n)
	}
}

func FuzzReadTrace(f *testing.F) {
	for _, s := range []string{goodLine, shortLine, goodLine + "\n" + shortLine, "", "{", "[]", "null", `{"hash_ids":[[,1]]}`, "\x1f\x8b", "\x1f\x8b\x08\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		tr, err := NewTraceReader("t", bytes.NewReader(text))
		if err != nil {
			return
		}
		var req Request
		for n := 0; ; n++ {
			err := tr.Next(&req)
			if errors.Is(err, io.EOF) {
				if n == 0 {
					t.Error("an empty trace ends like a good one")
				}
				return
			}
			if err != nil {
				return
			}
			for _, id := range append(req.HashIDs, req.Timestamp, req.InputLength, req.OutputLength) {
				if id < 0 {
					t.Errorf("line %d has a negative number: %+v", req.Line, req)
				}
			}
		}
	})
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A byte order mark is not part of the first line, compressed or not.
func TestDefectByteOrderMarkIsSkipped(t *testing.T) {
	for _, text := range []string{"\ufeff" + goodLine + "\n", zipped(t, "\ufeff"+goodLine+"\n"), "\ufeff\n" + goodLine} {
		if got, err := readAll(t, text); err != nil || len(got) != 1 {
			t.Errorf("read %d requests, %v", len(got), err)
		}
	}
	if _, err := readAll(t, "\ufeff"); err == nil || !strings.Contains(err.Error(), "the trace is empty") {
		t.Errorf("a mark alone: %v", err)
	}
}

// The error for an invalid trace shows the valid format.
func TestDefectTraceErrorsShowTheFormat(t *testing.T) {
	for _, text := range []string{"", "nonsense", "[1]", `{"timestamp":1}`, `{"timestamp":1,"input_length":1,"output_length":1}`, strings.Repeat(" ", MaxLineBytes+1)} {
		if _, err := readAll(t, text); err == nil || !strings.Contains(err.Error(), format) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	var req Request
	tr, err := NewTraceReader("t", strings.NewReader(format[strings.Index(format, "{"):]))
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Next(&req); err != nil {
		t.Errorf("the line that is shown is wrong: %v", err)
	}
}
