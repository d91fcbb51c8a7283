package rpc

import "sync/atomic"

// limiter counts the calls in progress. Its zero value has no limit.
type limiter struct {
	max atomic.Int64 // 0: no limit
	now atomic.Int64
}

// enter begins a call and returns the number of calls in progress, including it. It returns false
// if there are too many; the call then does not begin.
func (l *limiter) enter() (calls int64, ok bool) {
	calls = l.now.Add(1)
	if limit := l.max.Load(); limit > 0 && calls > limit {
		l.now.Add(-1)
		return calls, false
	}
	return calls, true
}

func (l *limiter) leave() { l.now.Add(-1) }
