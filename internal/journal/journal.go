// Package journal keeps the recent failures and the slowest operations of a process, in bounded
// memory, for its status page.
package journal

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	maxFailures = 64
	maxSlow     = 8 // of each name
	// slowFor is how long a slow operation is kept.
	slowFor = time.Hour
	// maxText bounds the text of a failure, in bytes.
	maxText = 400
)

// A Failure is an event of one kind: how often it happened, and its last cause.
type Failure struct {
	Kind        string // such as "block not stored in tier file"
	Count       int64
	First, Last time.Time
	Cause       string // of the last one
}

// An Operation took long.
type Operation struct {
	Name   string // such as "load"
	At     time.Time
	Took   time.Duration
	Blocks int
	Error  string // empty after success
}

// Journal collects failures and operations. The zero value is ready. All methods may be called
// concurrently, also on nil, which collects nothing.
type Journal struct {
	mu       sync.Mutex
	failures []Failure   // the last one is the newest; guarded by mu
	slow     []Operation // guarded by mu
}

// Failed adds a failure. Failures of the same kind are counted together. At most 64 kinds are kept:
// a new one replaces the kind that has not occurred for the longest time.
func (j *Journal) Failed(kind string, err error) {
	if j == nil || err == nil {
		return
	}
	now, cause := time.Now(), short(err)
	j.mu.Lock()
	defer j.mu.Unlock()
	f := Failure{Kind: kind, First: now}
	if i := slices.IndexFunc(j.failures, func(f Failure) bool { return f.Kind == kind }); i >= 0 {
		f = j.failures[i]
		j.failures = slices.Delete(j.failures, i, i+1)
	} else if len(j.failures) == maxFailures {
		j.failures = slices.Delete(j.failures, 0, 1)
	}
	f.Count, f.Last, f.Cause = f.Count+1, now, cause
	j.failures = append(j.failures, f)
}

// Took adds an operation that ended now. Of each name the 8 slowest of the last hour are kept.
func (j *Journal) Took(name string, blocks int, took time.Duration, err error) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	same, fastest := 0, -1
	for i := range j.slow {
		if o := &j.slow[i]; o.Name == name && now.Sub(o.At) <= slowFor {
			if same++; fastest < 0 || o.Took < j.slow[fastest].Took {
				fastest = i
			}
		}
	}
	if same >= maxSlow && took <= j.slow[fastest].Took {
		return
	}
	o := Operation{Name: name, At: now, Took: took, Blocks: blocks}
	if err != nil {
		o.Error = short(err)
	}
	if same >= maxSlow {
		j.slow[fastest] = o
		return
	}
	j.forgetOld(now)
	j.slow = append(j.slow, o)
}

// forgetOld is called with mu held.
func (j *Journal) forgetOld(now time.Time) {
	j.slow = slices.DeleteFunc(j.slow, func(o Operation) bool { return now.Sub(o.At) > slowFor })
}

func short(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n") // joined errors have a line each
	if len(text) > maxText {
		return text[:maxText] + "..."
	}
	return text
}

// Read returns the failures, the newest first, and the slowest operations of the last hour, the
// slowest first.
func (j *Journal) Read() (failures []Failure, slow []Operation) {
	if j == nil {
		return nil, nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forgetOld(time.Now())
	failures, slow = slices.Clone(j.failures), slices.Clone(j.slow)
	slices.Reverse(failures)
	slices.SortStableFunc(slow, func(a, b Operation) int { return cmp.Compare(b.Took, a.Took) })
	return failures, slow
}
