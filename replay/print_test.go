package replay

import (
	"errors"
	"strings"
	"testing"
)

func TestReportForPeople(t *testing.T) {
	r := Report{
		Trace: "t.jsonl", Device: "sim: d", Notes: []string{"no GPU"}, Seconds: 2, Requests: 12031, BlockAccesses: 1000, PrefixHits: 250,
		HitRate: 0.25, HitsByTier: map[string]int64{"file": 50, "cache": 200}, BytesVerified: 3 << 29, Mismatches: 1, Corrupt: 2, LoadErrors: 3,
		Paths:           []PathReport{{Path: "kernel", Direction: "load", Bytes: 1 << 30, GBps: 51.25, Reason: "many"}},
		Tiers:           []TierReport{{Name: "file", Blocks: 7}},
		LoadUS:          Latency{P50: 1, P99: 1234567},
		MismatchSamples: []Mismatch{{Line: 9, HashID: 4, Key: "ab", Tier: "file", Page: 3, Layer: 2, Part: "v", Offset: 17, WrongBytes: 1}},
		ErrorSamples:    []string{"a cause"},
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"12,031 in 2.0 s, 6016/s (stopped before the end)", "250 (25.0%)", "from cache", "200 (20.0%)", "1.50 GiB", "51.25",
		"p99 1,234,567 us", "unbounded", "WRONG BYTES", "line 9: block 4 (key ab) from tier file on page 3: 1 wrong bytes, the first in layer 2, v, at byte 17",
		"a cause", "3 blocks not loaded", "2 stored blocks failed their check", "no GPU",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in the report:\n%s", want, &b)
		}
	}
	full := errors.New("disk full")
	if err := r.Print(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", -100: "-100"} {
		if got := count(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 10 << 20: "10.0 MiB", 1<<63 - 1: "8.00 EiB"} {
		if got := Size(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}
