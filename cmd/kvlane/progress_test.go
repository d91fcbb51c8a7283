package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// Without a terminal a line tells every 10 seconds how far the operation is.
func TestProgressInLines(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "verify", false)
	now := p.start
	p.now = func() time.Time { return now }
	for i := range int64(100) {
		now = now.Add(time.Second)
		p.show(i, 1000, "")
	}
	p.show(100, 0, "folder a")
	p.end()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 10 || lines[0] != "verify: 9 of 1,000, 0.9 a second, about 18m21s left" {
		t.Errorf("%d lines:\n%s", len(lines), &out)
	}
	out.Reset()
	now = now.Add(lineInterval)
	p.show(1100, 0, "folder a")
	if out.String() != "verify: 1,100, 10 a second: folder a\n" {
		t.Errorf("without a total: %q", &out)
	}
}

func TestProgressAsABar(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, "verify", true)
	for i := range int64(11) {
		p.show(i, 10, "")
		time.Sleep(110 * time.Millisecond)
	}
	p.end()
	if s := out.String(); !strings.Contains(s, "verify") || !strings.Contains(s, "5/10") || !strings.HasSuffix(s, "\r") {
		t.Errorf("%q", s)
	}
}
