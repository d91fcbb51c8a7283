package acceptance_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/store/manager"
	"github.com/kvlane/kvlane/tier"
)

// lateList is a list of members that is empty, as its directory does not answer, until set. It is
// the metadata.Scheme of its own URLs.
type lateList struct {
	mu      sync.Mutex
	list    []metadata.Member
	changed chan struct{}
}

var errNoAnswer = errors.New("the directory does not answer")

func (l *lateList) Check(string) error { return nil }

func (l *lateList) Open(context.Context, string) (metadata.OpenedMembers, error) { return l, nil }

func (l *lateList) List() ([]metadata.Member, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list, l.changed
}

func (l *lateList) Err() error {
	if list, _ := l.List(); len(list) > 0 {
		return nil
	}
	return errNoAnswer
}

func (l *lateList) Close() error { return nil }

func (l *lateList) set(addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = []metadata.Member{{Name: addr, Address: addr, Weight: 1}}
	close(l.changed)
	l.changed = make(chan struct{})
}

// An Engine and a Manager start without block servers. All blocks are misses until servers are
// known, and are found then.
func TestStartWithoutBlockServers(t *testing.T) {
	addr, _ := blockServer(t)
	c := testConfig(t)
	c.Store.Dirs, c.Store.Remote = nil, addr
	names := prompt(0)
	before := newWorker(t, c)
	before.store(t, &kvlane.Job{Blocks: names})

	late := &lateList{changed: make(chan struct{})}
	ctx := metadata.WithScheme(t.Context(), "late", late)
	c.Store.Remote = "late://list"
	e, err := kvlane.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := kvlane.OpenManager(ctx, kvlane.ManagerConfig{Ranks: []kvlane.Config{c}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(context.Background()), e.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	if notes := strings.Join(e.Notes(), " "); !strings.Contains(notes, "no block server is known") || !strings.Contains(notes, errNoAnswer.Error()) {
		t.Errorf("notes %q", notes)
	}
	found := func() (manager.State, bool) {
		t.Helper()
		states, err := m.Lookup(t.Context(), names)
		if err != nil {
			t.Fatal(err)
		}
		hits, err := e.Lookup(t.Context(), before.keys(names))
		if err != nil {
			t.Fatal(err)
		}
		return states[0], hits[0].Tier == "remote"
	}
	if state, hit := found(); state != manager.Absent || hit {
		t.Errorf("without servers: state %v, hit %t", state, hit)
	}
	l, err := e.LeasePrefix(t.Context(), before.keys(names), 0)
	if err != nil || l.Len() != 0 {
		t.Fatalf("%v, a lease of blocks of unknown servers", err)
	}
	l.Release()
	if s, ok := e.Tiers()[1].(tier.Statter); !ok || !errors.Is(s.Stats().Failure, errNoAnswer) {
		t.Error("the failure of the tier is not that of the list")
	}
	late.set(addr)
	if state, hit := found(); state != manager.InRemote || !hit {
		t.Errorf("with a server: state %v, hit %t", state, hit)
	}
}
