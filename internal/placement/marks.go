package placement

import (
	"encoding/binary"
	"sync"
	"time"
)

// Run returns the number of the run with an anchor in requests. It is not zero. Two runs may have
// the same number: both then have the replicas of the hotter one.
func Run(anchor []byte) uint32 { return max(binary.LittleEndian.Uint32(anchor), 1) }

// Marks are the hot runs that servers reported, up to a fixed number, for a limited time. The
// methods are safe for concurrent use.
type Marks struct {
	most int
	life time.Duration

	mu          sync.Mutex
	recent, old map[uint32]int // replicas by run
	since       time.Time      // when recent was empty
}

// NewMarks returns marks of at most most runs. A mark ends between life/2 and life after the last
// report.
func NewMarks(most int, life time.Duration) *Marks {
	return &Marks{most: most, life: life, recent: make(map[uint32]int)}
}

// Set records that a run is to have replicas. Of several numbers the largest counts.
func (m *Marks) Set(run uint32, replicas int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(now)
	if _, ok := m.recent[run]; !ok && len(m.recent) >= m.most/2 {
		m.old, m.recent, m.since = m.recent, make(map[uint32]int), now
	}
	m.recent[run] = max(m.recent[run], min(replicas, MaxReplicas))
}

// Replicas returns the number of servers that have a run. It is 1 for a run that is not hot.
func (m *Marks) Replicas(run uint32, now time.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.recent)+len(m.old) == 0 {
		return 1
	}
	m.expire(now)
	return max(m.recent[run], m.old[run], 1)
}

// expire removes marks at the end of their life. The caller holds mu.
func (m *Marks) expire(now time.Time) {
	switch age := now.Sub(m.since); {
	case age >= m.life:
		m.old, m.recent, m.since = nil, make(map[uint32]int), now
	case age >= m.life/2:
		m.old, m.recent, m.since = m.recent, make(map[uint32]int), now
	}
}
