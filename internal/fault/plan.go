package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ErrInjected is wrapped by every *Error.
var ErrInjected = errors.New("injected fault")

// Error is the injected failure of an operation.
type Error struct {
	ID    int    // number of the fault within its plan, from 0
	Op    string // name of the operation
	N     int64  // number among the operations with that name, from 0
	Cause error  // cause given to the rule; may be nil
}

// Error returns the operation and the cause.
func (e *Error) Error() string {
	s := fmt.Sprintf("injected fault %d in %s %d", e.ID, e.Op, e.N)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns ErrInjected and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrInjected}
	}
	return []error{ErrInjected, e.Cause}
}

// Fault is the fault of one operation.
type Fault struct {
	Action   Action
	Err      error         // an *Error for every action; Fail and Partial return it
	Delay    time.Duration // set for the action Delay
	Rand     uint64        // random number for Corrupt; use it modulo the length
	released <-chan struct{}
}

// Wait waits until the plan releases stalled operations. If ctx ends first, it returns the cause of
// ctx.
func (f *Fault) Wait(ctx context.Context) error {
	select {
	case <-f.released:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Released returns a channel that is closed when the plan releases stalled operations.
func (f *Fault) Released() <-chan struct{} { return f.released }

// Plan counts operations and determines which of them fail.
type Plan struct {
	mu       sync.Mutex
	rng      *rand.Rand
	rules    []Rule
	seen     map[string]int64
	injected []*Error
	actions  []Action
	changed  chan struct{} // closed and replaced when a fault is injected while a caller waits
	released chan struct{} // closed by Release
}

// New returns a plan. If several rules match an operation, the first one applies. With equal seeds
// and equal sequences of operations, faults are equal.
func New(seed uint64, rules ...Rule) *Plan {
	return &Plan{
		rng: rand.New(rand.NewPCG(seed, 0x6b766c616e65)), rules: slices.Clone(rules),
		seen: make(map[string]int64), released: make(chan struct{}),
	}
}

// Add appends a rule. Its operation numbers include earlier operations.
func (p *Plan) Add(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// Clear removes all rules and releases stalled operations. It keeps the counters.
func (p *Plan) Clear() {
	p.mu.Lock()
	p.rules = nil
	p.mu.Unlock()
	p.Release()
}

// Hit counts one operation and returns its fault. It returns false if the operation has none.
func (p *Plan) Hit(op string) (Fault, bool) {
	if p == nil {
		return Fault{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.seen[op]
	p.seen[op] = i + 1
	for k := range p.rules {
		r := &p.rules[k]
		if r.op == op && r.picks(i, p.rng.Float64) {
			return p.inject(r, i), true
		}
	}
	return Fault{}, false
}

func (p *Plan) inject(r *Rule, i int64) Fault {
	e := &Error{ID: len(p.injected), Op: r.op, N: i, Cause: r.cause}
	p.injected = append(p.injected, e)
	p.actions = append(p.actions, r.action)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return Fault{Action: r.action, Err: e, Delay: r.delay, Rand: p.rng.Uint64(), released: p.released}
}

// Seen returns the number of operations with a name.
func (p *Plan) Seen(op string) int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[op]
}

// Injected returns the number of injected faults.
func (p *Plan) Injected() int {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.injected)
}

// Await waits until at least n faults were injected. If ctx ends first, it returns the cause of
// ctx. Tests use it to wait for a stalled operation.
func (p *Plan) Await(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		if len(p.injected) >= n {
			p.mu.Unlock()
			return nil
		}
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Release releases all stalled operations. Later stalls do not wait. Further calls do nothing.
func (p *Plan) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.released:
	default:
		close(p.released)
	}
}

// Unreported returns the Fail and Partial faults that no error in errs wraps. Pass every error that
// the tested code returned.
func (p *Plan) Unreported(errs ...error) []*Error {
	reported := make(map[*Error]bool)
	for _, err := range errs {
		collect(err, reported)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var lost []*Error
	for i, e := range p.injected {
		if (p.actions[i] == Fail || p.actions[i] == Partial) && !reported[e] {
			lost = append(lost, e)
		}
	}
	return lost
}

// collect adds all *Errors in the tree of err to into. errors.As would find only the first.
func collect(err error, into map[*Error]bool) {
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case nil:
	case *Error:
		into[e] = true
	case interface{ Unwrap() error }:
		collect(e.Unwrap(), into)
	case interface{ Unwrap() []error }:
		for _, c := range e.Unwrap() {
			collect(c, into)
		}
	}
}
