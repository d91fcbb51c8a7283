package fault

import (
	"fmt"
	"time"
)

// Action is the effect of a fault.
type Action uint8

// The actions.
const (
	Fail    Action = iota + 1 // the operation does nothing and reports Fault.Err
	Partial                   // it does about half of its work, then reports Fault.Err
	Corrupt                   // it does its work with one wrong byte, and reports no error
	Stall                     // it waits until the plan releases it, then does its work
	Delay                     // it does its work after Fault.Delay
	Crash                     // it and all later operations do nothing
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

// Rule picks operations of one name and has an action for them. The default action is Fail.
type Rule struct {
	op     string
	mode   mode
	n      int64
	p      float64
	action Action
	cause  error
	delay  time.Duration
}

// Nth picks the operation number n, counted from 0, and no other.
func Nth(op string, n int) Rule { return Rule{op: op, mode: nth, n: int64(n), action: Fail} }

// Every picks the operations number n-1, 2n-1, 3n-1, ... counted from 0; n below 1 counts as 1.
func Every(op string, n int) Rule {
	return Rule{op: op, mode: every, n: int64(max(n, 1)), action: Fail}
}

// After picks the operation number n, counted from 0, and all later ones.
func After(op string, n int) Rule { return Rule{op: op, mode: after, n: int64(n), action: Fail} }

// Rate picks each operation with probability p, drawn from the plan's seed.
func Rate(op string, p float64) Rule { return Rule{op: op, mode: rate, p: p, action: Fail} }

// Fail makes the operation fail without effect. The fault's error wraps cause, which may be nil.
func (r Rule) Fail(cause error) Rule { r.action, r.cause = Fail, cause; return r }

// Partial makes the operation do about half of its work and then fail; cause as for Fail.
func (r Rule) Partial(cause error) Rule { r.action, r.cause = Partial, cause; return r }

// Corrupt makes the operation succeed with one wrong byte.
func (r Rule) Corrupt() Rule { r.action = Corrupt; return r }

// Stall makes the operation wait for Plan.Release.
func (r Rule) Stall() Rule { r.action = Stall; return r }

// Delay makes the operation take d longer, by the clock of the decorator.
func (r Rule) Delay(d time.Duration) Rule { r.action, r.delay = Delay, d; return r }

// Crash prevents the operation and every later one.
func (r Rule) Crash() Rule { r.action = Crash; return r }

// picks reports whether the rule picks operation number i; draw is a number in [0, 1) for this
// operation and rule.
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
