package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
)

// Members is the list of a cluster. If all members leave, the last list stays.
type Members struct {
	o      Options
	c      *connection
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	byName  map[string]metadata.Member // nil before the first read
	list    []metadata.Member
	changed chan struct{}
	epoch   uint64 // byName has all changes up to this revision
	last    uint64 // a revision not before the last change
	err     error
	stats   Stats
}

var (
	_ metadata.Versioned = (*Members)(nil)
	_ metadata.Counted   = (*Members)(nil)
)

// Stats has counters since Open.
type Stats struct {
	metadata.ListStats
	Compactions int64 // watches of revisions that etcd had deleted
	Invalid     int64 // values that are no member
}

// Open reads the list and follows its changes. If etcd does not answer, or the cluster has no
// members, the list is empty until it has some, and Err returns the reason. Open returns ErrInvalid
// for wrong options.
func Open(ctx context.Context, o Options) (*Members, error) {
	c, err := newConnection(o)
	if err != nil {
		return nil, err
	}
	m := &Members{o: c.o, c: c, done: make(chan struct{}), changed: make(chan struct{})}
	_ = m.read(ctx) // Err has the error
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go m.follow(ctx)
	return m, nil
}

// List implements metadata.Members.
func (m *Members) List() ([]metadata.Member, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list, m.changed
}

// Epoch implements metadata.Versioned.
func (m *Members) Epoch() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// LastChange returns a revision not before the last change of the list. Lists of this epoch have
// the change.
func (m *Members) LastChange() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Refresh implements metadata.Versioned.
func (m *Members) Refresh(ctx context.Context, epoch uint64) error {
	if m.Epoch() >= epoch {
		return nil
	}
	return m.read(ctx)
}

// Err returns the error of the last read or watch, which is ErrNotFound for a cluster without
// members, or nil if the list is up to date.
func (m *Members) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Stats returns the counters.
func (m *Members) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// ListStats implements metadata.Counted.
func (m *Members) ListStats() metadata.ListStats { return m.Stats().ListStats }

// Close stops following the list, which stays. Later calls do nothing.
func (m *Members) Close() error {
	m.cancel()
	<-m.done
	return m.c.close()
}

// follow watches the list, and reads it again after failures and at intervals.
func (m *Members) follow(ctx context.Context) {
	defer close(m.done)
	for pause := firstPause; ctx.Err() == nil; {
		err := m.watch(ctx)
		if err == nil || errors.Is(err, rpctypes.ErrCompacted) {
			err = m.read(ctx)
		}
		if err == nil {
			pause = firstPause
			continue
		}
		sleep(ctx, pause)
		pause = min(2*pause, maxPause)
		_ = m.read(ctx) // Err has the error
	}
}

var errUnread = errors.New("the list has not been read yet")

// watch applies changes until the time of the next read, or a failure.
func (m *Members) watch(ctx context.Context) error {
	m.mu.Lock()
	from, unread := m.epoch+1, m.byName == nil
	m.mu.Unlock()
	if unread {
		return errUnread
	}
	client, err := m.c.get(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Resync/2+rand.N(m.o.Resync/2+1))
	defer cancel()
	for r := range client.Watch(clientv3.WithRequireLeader(ctx), m.o.prefix(), clientv3.WithPrefix(), clientv3.WithRev(int64(from))) {
		err := r.Err()
		switch {
		case ctx.Err() != nil:
			return nil
		case r.CompactRevision > 0:
			m.fail(nil, func(s *Stats) { s.Compactions++ })
			return rpctypes.ErrCompacted
		case err != nil:
			err = m.o.failed("watch", err)
			m.fail(err, func(s *Stats) { s.Failures++ })
			return err
		}
		m.apply(r.Events, uint64(r.Header.Revision))
	}
	return nil
}

// apply applies the events that the list does not have yet. Epoch becomes at least revision.
func (m *Members) apply(events []*clientv3.Event, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := maps.Clone(m.byName)
	for _, e := range events {
		if uint64(e.Kv.ModRevision) <= m.epoch {
			continue // a read was faster
		}
		name := strings.TrimPrefix(string(e.Kv.Key), m.o.prefix())
		if e.Type == mvccpb.DELETE {
			delete(next, name)
		} else {
			m.put(next, name, e.Kv.Value)
		}
	}
	m.set(next, max(revision, m.epoch))
}

// put adds a member, unless its value is not valid. The caller holds mu.
func (m *Members) put(to map[string]metadata.Member, name string, value []byte) {
	member, err := decode(name, value)
	if err != nil || len(to) >= metadata.MaxMembers {
		m.stats.Invalid++
		return
	}
	to[name] = member
}

// read reads the whole list.
func (m *Members) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Within)
	defer cancel()
	before := m.Epoch()
	client, err := m.c.get(ctx)
	var r *clientv3.GetResponse
	if err == nil {
		r, err = client.Get(ctx, m.o.prefix(), clientv3.WithPrefix(), clientv3.WithLimit(metadata.MaxMembers))
	}
	if err != nil {
		err = m.o.failed("read members of", err)
		m.fail(err, func(s *Stats) { s.Reads++; s.Failures++ })
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Reads++
	revision := uint64(r.Header.Revision)
	if before <= revision && revision < m.epoch {
		return nil // the watch was faster
	}
	// A revision below an earlier one is of an etcd with other data, and counts.
	next := make(map[string]metadata.Member, len(r.Kvs))
	for _, kv := range r.Kvs {
		m.put(next, strings.TrimPrefix(string(kv.Key), m.o.prefix()), kv.Value)
	}
	m.set(next, revision)
	return nil
}

// set sets the list, unless it is empty. The caller holds mu.
func (m *Members) set(next map[string]metadata.Member, revision uint64) {
	m.byName, m.epoch, m.err = next, revision, nil
	if len(next) == 0 {
		m.err = m.o.failed("find members in", fmt.Errorf("there are none; start a server with --etcd and --cluster %s: %w", m.o.Cluster, errdefs.ErrNotFound))
		return
	}
	list := slices.SortedFunc(maps.Values(next), func(a, b metadata.Member) int { return strings.Compare(a.Name, b.Name) })
	if slices.Equal(list, m.list) {
		return
	}
	if m.list != nil {
		m.stats.Changes++
	}
	m.list, m.last = list, revision
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Members) fail(err error, count func(*Stats)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count(&m.stats)
	if err != nil {
		m.err = err
	}
}

// sleep waits for about d, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
