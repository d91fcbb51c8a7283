package main

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/internal/statuspage"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
)

// maxGone is the number of members that have left and are still shown.
const maxGone = 16

// clusterView is the view of its cluster that a server has. It is opened in the background, because
// etcd may be down, which takes time to find out.
type clusterView struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	members *etcd.Members // nil: not open yet
	list    []metadata.Member
	gone    []goneMember // the latest last
}

// goneMember is a member that has left.
type goneMember struct {
	metadata.Member
	at time.Time
}

// follow opens the view, and follows the list until close.
func (v *clusterView) follow(ctx context.Context, o etcd.Options) {
	ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	v.running.Go(func() {
		m, err := etcd.Open(ctx, o)
		if err != nil {
			return // o is not valid, as the registration has reported
		}
		defer m.Close() //nolint:errcheck // it was only read
		for ctx.Err() == nil {
			list, changed := m.List()
			v.update(m, list, time.Now())
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
}

// update takes a list, and notes the members that are not in it any more.
func (v *clusterView) update(m *etcd.Members, list []metadata.Member, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	in := func(name string) bool {
		return slices.ContainsFunc(list, func(m metadata.Member) bool { return m.Name == name })
	}
	v.gone = slices.DeleteFunc(v.gone, func(g goneMember) bool { return in(g.Name) })
	for i := range v.list {
		if !in(v.list[i].Name) {
			v.gone = append(v.gone, goneMember{v.list[i], now})
		}
	}
	v.gone = v.gone[max(0, len(v.gone)-maxGone):]
	v.members, v.list = m, list
}

// table returns the members for the status page, and then those that have left. A member that left
// without draining is lost.
func (v *clusterView) table() statuspage.Table {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := statuspage.Table{Title: "Members", Columns: []string{"member", "zone", "weight", "share of runs", "state", "joined"}}
	row := func(s memberStatus, state string) {
		joined := ""
		if s.Joined != nil {
			joined = s.Joined.Format(time.DateTime)
		}
		t.Rows = append(t.Rows, []string{s.Name, s.Zone, strconv.Itoa(s.Weight), present.Percent(s.Share), state, joined})
	}
	for i := range v.list {
		s := newMemberStatus(v.list, i)
		row(s, s.State)
	}
	for i := range v.gone {
		g := &v.gone[i]
		state := "lost "
		if g.Draining {
			state = "left "
		}
		s := newMemberStatus([]metadata.Member{g.Member}, 0)
		s.Share = 0
		row(s, state+g.at.UTC().Format(time.DateTime))
	}
	return t
}

// epoch returns the epoch of the last change, or 0.
func (v *clusterView) epoch() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.members == nil {
		return 0
	}
	return v.members.LastChange()
}

// close ends the view.
func (v *clusterView) close() {
	if v.cancel != nil {
		v.cancel()
		v.running.Wait()
	}
}
