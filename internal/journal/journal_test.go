package journal

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestFailuresAreCountedByKind(t *testing.T) {
	var j Journal
	for i := range 100 {
		j.Failed(fmt.Sprint("kind ", i), errors.New("first"))
	}
	j.Failed("kind 50", errors.New(strings.Repeat("x", 1000)))
	failures, _ := j.Read()
	if len(failures) != maxFailures {
		t.Errorf("%d failures are kept", len(failures))
	}
	if f := failures[0]; f.Kind != "kind 50" || f.Count != 2 || len(f.Cause) != maxText+3 || f.Last.Before(f.First) {
		t.Errorf("the newest: %+v", f)
	}
	if failures[1].Kind != "kind 99" {
		t.Errorf("then: %+v", failures[1])
	}
}

func TestTheSlowestAreKept(t *testing.T) {
	var j Journal
	for i := range 1000 {
		j.Took("load", i, time.Duration((i*7)%1000)*time.Millisecond, nil)
	}
	_, slow := j.Read()
	for i, o := range slow {
		if want := time.Duration(999-i) * time.Millisecond; o.Took != want || time.Duration((o.Blocks*7)%1000)*time.Millisecond != want {
			t.Errorf("operation %d: %+v", i, o)
		}
	}
	if len(slow) != maxSlow {
		t.Errorf("%d operations", len(slow))
	}
	// After an hour they make room.
	for i := range j.slow {
		j.slow[i].At = time.Now().Add(-2 * slowFor)
	}
	if _, slow = j.Read(); len(slow) != 0 {
		t.Errorf("after two hours: %v", slow)
	}
	j.Took("dump", 1, time.Nanosecond, errors.New("full"))
	if _, slow = j.Read(); len(slow) != 1 || slow[0].Error != "full" {
		t.Errorf("a new one: %v", slow)
	}
	(*Journal)(nil).Failed("x", errors.New("y"))
	(*Journal)(nil).Took("x", 1, 1, nil)
	(*Journal)(nil).Read()
}
