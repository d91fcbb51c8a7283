package gateway_test

import (
	"sync/atomic"

	"github.com/kvlane/kvlane/rdma/soft"
)

// slowMover holds transfers back while slow is set, until release is closed.
type slowMover struct {
	soft.CPUMover
	slow           atomic.Bool
	began, release chan struct{}
}

func (m *slowMover) Move(t *soft.Transfer) {
	if !m.slow.Load() {
		m.CPUMover.Move(t)
		return
	}
	go func() {
		m.began <- struct{}{}
		<-m.release
		m.CPUMover.Move(t)
	}()
}
