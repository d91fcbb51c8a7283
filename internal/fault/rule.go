package fault

import (
	"fmt"
	"time"
)

// Action is the effect of a fault.
type Action uint8

// The actions.
const (
	Fail    Action = iota + 1 // the operation does nothing and returns Fault.Err
	Partial                   // the operation does about half of its work, then returns Fault.Err
	Corrupt                   // the operation succeeds with one wrong byte
	Stall                     // the operation waits until the plan releases it, then proceeds
	Delay                     // the operation proceeds after Fault.Delay
	Crash                     // this operation and all later ones do nothing
)

// String returns the name of the action.
func (a Action) String() string {
	switch a {
	case Fail:
		return "fail"
	case Partial:
		return "partial"
	case Corrupt:
		return "corrupt"
	case Stall:
		return "stall"
	case Delay:
		return "delay"
	case Crash:
		return "crash"
	}
	return fmt.Sprintf("action(%d)", uint8(a))
}

type mode uint8

const (
	nth mode = iota
	every
	after
	rate
)

// Rule selects operations with one name and an action for them. The default action is Fail.
type Rule struct {
	op     string
	mode   mode
	n      int64
	p      float64
	action Action
	cause  error
	delay  time.Duration
}

// Nth selects operation n, counted from 0.
func Nth(op string, n int) Rule { return Rule{op: op, mode: nth, n: int64(n), action: Fail} }

// Every selects every nth operation, beginning with operation n-1, counted from 0. n below 1 means
// 1.
func Every(op string, n int) Rule {
	return Rule{op: op, mode: every, n: int64(max(n, 1)), action: Fail}
}

// After selects operation n, counted from 0, and all later ones.
func After(op string, n int) Rule { return Rule{op: op, mode: after, n: int64(n), action: Fail} }

// Rate selects each operation with probability p. The choice is determined by the plan's seed.
func Rate(op string, p float64) Rule { return Rule{op: op, mode: rate, p: p, action: Fail} }

// Fail makes the operation fail without effect. The fault's error wraps cause, which may be nil.
func (r Rule) Fail(cause error) Rule { r.action, r.cause = Fail, cause; return r }

// Partial makes the operation do about half of its work and then fail. The fault's error wraps
// cause, which may be nil.
func (r Rule) Partial(cause error) Rule { r.action, r.cause = Partial, cause; return r }

// Corrupt makes the operation succeed with one wrong byte.
func (r Rule) Corrupt() Rule { r.action = Corrupt; return r }

// Stall makes the operation wait for Plan.Release.
func (r Rule) Stall() Rule { r.action = Stall; return r }

// Delay delays the operation by d, measured by the decorator's clock.
func (r Rule) Delay(d time.Duration) Rule { r.action, r.delay = Delay, d; return r }

// Crash makes this operation and every later one fail without effect.
func (r Rule) Crash() Rule { r.action = Crash; return r }

// picks reports whether the rule selects operation i. draw returns a random number in [0, 1).
func (r *Rule) picks(i int64, draw func() float64) bool {
	switch r.mode {
	case nth:
		return i == r.n
	case every:
		return i%r.n == r.n-1
	case after:
		return i >= r.n
	case rate:
		return draw() < r.p
	}
	return false
}
