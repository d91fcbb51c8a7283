package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/etcdtest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
)

// onEach runs a test on each version of etcd.
func onEach(t *testing.T, test func(t *testing.T, s *etcdtest.Server)) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) { test(t, etcdtest.Start(t, version)) })
	}
}

func options(addr string) etcd.Options {
	return etcd.Options{Endpoints: []string{addr}, Cluster: "test", Lease: 2 * time.Second, Resync: time.Hour, Within: 30 * time.Second}
}

// register registers a member, and waits until it is.
func register(t *testing.T, o etcd.Options, m metadata.Member) *etcd.Registration {
	t.Helper()
	r := begin(t, o, m)
	waitFor(t, "a registration", func() bool { return r.Err() == nil })
	return r
}

// begin begins to register a member.
func begin(t *testing.T, o etcd.Options, m metadata.Member) *etcd.Registration {
	t.Helper()
	return beginWithin(t.Context(), t, o, m)
}

func beginWithin(ctx context.Context, t *testing.T, o etcd.Options, m metadata.Member) *etcd.Registration {
	t.Helper()
	r, err := etcd.Register(ctx, o, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(context.Background()) }) // the test checks the error where it matters
	return r
}

func open(t *testing.T, o etcd.Options) *etcd.Members {
	t.Helper()
	return openWithin(t.Context(), t, o)
}

func openWithin(ctx context.Context, t *testing.T, o etcd.Options) *etcd.Members {
	t.Helper()
	m, err := etcd.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in time: " + what)
		}
	}
}

// names returns the names of the members, those that drain with a minus.
func names(m metadata.Members) string {
	list, _ := m.List()
	var all []string
	for i := range list {
		name := list[i].Name
		if list[i].Draining {
			name += "-"
		}
		all = append(all, name)
	}
	return strings.Join(all, " ")
}

func becomes(t *testing.T, m metadata.Members, want string) {
	t.Helper()
	waitFor(t, want, func() bool { return names(m) == want })
}

func member(i int) metadata.Member {
	addr := fmt.Sprintf("127.0.0.1:%d", 7000+i)
	return metadata.Member{Name: fmt.Sprint("m", i), Address: addr, Weight: i, Zone: "z", Boot: [16]byte{byte(i)}, Joined: time.Unix(int64(i), 5).UTC()}
}

// raw returns a client of etcd itself.
func raw(t *testing.T, addr, user, password string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second, Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // its requests have ended
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMembersFollowRegistrations(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		o := options(s.Addr)
		m := open(t, o)
		waitFor(t, "a cluster without members", func() bool { return errors.Is(m.Err(), errdefs.ErrNotFound) })
		one := register(t, o, member(1))
		becomes(t, m, "m1")
		must(t, m.Err())
		if list, _ := m.List(); len(list) != 1 || list[0] != member(1) {
			t.Errorf("list %+v, want %+v", list, member(1))
		}
		first := m.Epoch()
		if last := m.LastChange(); last == 0 || last > first {
			t.Errorf("the last change is %d, the epoch %d", last, first)
		}
		_, changed := m.List()
		two := register(t, o, member(2))
		select {
		case <-changed:
		case <-time.After(testkit.Patience()):
			t.Fatal("a change was not announced")
		}
		becomes(t, m, "m1 m2")
		if m.Epoch() <= first {
			t.Errorf("epoch %d after %d", m.Epoch(), first)
		}
		// Marks, by the member and by an operator.
		must(t, two.Drain(t.Context()))
		becomes(t, m, "m1 m2-")
		must(t, etcd.MarkDraining(t.Context(), o, "m1", true))
		becomes(t, m, "m1- m2-")
		must(t, etcd.MarkDraining(t.Context(), o, "m1", false))
		becomes(t, m, "m1 m2-")
		if err := etcd.MarkDraining(t.Context(), o, "m3", true); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("drain of no member: %v", err)
		}
		must(t, two.Close(t.Context()))
		becomes(t, m, "m1")
		// Values that are no member are left out. The last list stays.
		_, err := raw(t, s.Addr, "", "").Put(t.Context(), "/kvlane/test/members/bad", `{"address":"x","weight":1}`)
		must(t, err)
		waitFor(t, "an invalid value", func() bool { return m.Stats().Invalid > 0 })
		must(t, one.Close(t.Context()))
		waitFor(t, "no members", func() bool { return errors.Is(m.Err(), errdefs.ErrNotFound) })
		if names(m) != "m1" {
			t.Errorf("the last list became %s", names(m))
		}
	})
}

func TestALostLeaseIsReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		p := etcdtest.NewProxy(t, s.Addr)
		of := options(p.Addr)
		register(t, options(s.Addr), member(1))
		two := register(t, of, member(2))
		m := open(t, options(s.Addr))
		becomes(t, m, "m1 m2")
		p.Cut(true) // as if the server were killed
		start := time.Now()
		becomes(t, m, "m1")
		if d := time.Since(start); d > testkit.Patience()/2 {
			t.Errorf("the member left after %v", d)
		}
		waitFor(t, "the loss is known", func() bool { return two.Err() != nil })
		must(t, two.Drain(t.Context())) // it is not registered: the mark comes with it
		p.Cut(false)
		becomes(t, m, "m1 m2-")
		var registered int64
		waitFor(t, "a registration with a new lease", func() bool {
			st := two.Stats()
			registered = st.Registered
			return two.Err() == nil && st.Lost > 0 && registered == st.Lost+1
		})
		// A key that is deleted comes back too.
		_, err := raw(t, s.Addr, "", "").Delete(t.Context(), "/kvlane/test/members/m2")
		must(t, err)
		waitFor(t, "another loss", func() bool { return two.Stats().Registered > registered })
		becomes(t, m, "m1 m2-")
	})
}

func TestAWatchAfterCompaction(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		p := etcdtest.NewProxy(t, s.Addr)
		register(t, options(s.Addr), member(1))
		m := open(t, options(p.Addr))
		becomes(t, m, "m1")
		p.Cut(true)
		register(t, options(s.Addr), member(2))
		client := raw(t, s.Addr, "", "")
		for range 10 {
			_, err := client.Put(t.Context(), "/other", "")
			must(t, err)
		}
		r, err := client.Get(t.Context(), "/other")
		must(t, err)
		_, err = client.Compact(t.Context(), r.Header.Revision)
		must(t, err)
		if names(m) != "m1" {
			t.Errorf("list %s through a cut connection", names(m))
		}
		p.Cut(false)
		becomes(t, m, "m1 m2")
		if st := m.Stats(); st.Compactions != 1 {
			t.Errorf("%+v", st)
		}
		register(t, options(s.Addr), member(3))
		becomes(t, m, "m1 m2 m3")
	})
}

func TestListsStayWhileEtcdIsDown(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		o := options(s.Addr)
		one, two := register(t, o, member(1)), register(t, o, member(2))
		o.Resync, o.Within = 500*time.Millisecond, time.Second
		m := open(t, o)
		becomes(t, m, "m1 m2")
		s.Kill()
		waitFor(t, "an error", func() bool { return m.Err() != nil })
		epoch := m.Epoch()
		waitFor(t, "lost leases", func() bool { return one.Err() != nil && two.Err() != nil })
		if names(m) != "m1 m2" || m.Epoch() != epoch {
			t.Errorf("list %s at %d, was at %d", names(m), m.Epoch(), epoch)
		}
		if err := m.Refresh(t.Context(), epoch+1); err == nil {
			t.Error("a refresh without etcd succeeded")
		}
		s.Start(t)
		waitFor(t, "no error", func() bool { return m.Err() == nil && one.Err() == nil && two.Err() == nil })
		must(t, two.Close(t.Context()))
		becomes(t, m, "m1")
	})
}

func TestRefresh(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		p := etcdtest.NewProxy(t, s.Addr)
		register(t, options(s.Addr), member(1))
		m, ahead := open(t, options(p.Addr)), open(t, options(s.Addr))
		p.Cut(true)
		register(t, options(s.Addr), member(2))
		becomes(t, ahead, "m1 m2")
		p.Cut(false)
		waitFor(t, "a refresh", func() bool { return m.Refresh(t.Context(), ahead.Epoch()) == nil })
		if names(m) != "m1 m2" || m.Epoch() < ahead.Epoch() {
			t.Errorf("list %s at %d, want that at %d", names(m), m.Epoch(), ahead.Epoch())
		}
	})
}

func TestAuthentication(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		admin := raw(t, s.Addr, "", "")
		_, err := admin.UserAdd(t.Context(), "root", "rootpw")
		must(t, err)
		_, err = admin.UserGrantRole(t.Context(), "root", "root")
		must(t, err)
		_, err = admin.RoleAdd(t.Context(), "kv")
		must(t, err)
		_, err = admin.RoleGrantPermission(t.Context(), "kv", "/kvlane/test/", "/kvlane/test0", clientv3.PermissionType(clientv3.PermReadWrite))
		must(t, err)
		_, err = admin.UserAdd(t.Context(), "kvlane", "secret")
		must(t, err)
		_, err = admin.UserGrantRole(t.Context(), "kvlane", "kv")
		must(t, err)
		_, err = admin.AuthEnable(t.Context())
		must(t, err)

		o := options(s.Addr)
		if err := open(t, o).Err(); err == nil || errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("without credentials: %v", err)
		}
		if r := begin(t, o, member(1)); r.Err() == nil {
			t.Error("registered without credentials")
		}
		o.User, o.Password = "kvlane", "wrong"
		if err := open(t, o).Err(); err == nil || errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("with a wrong password: %v", err)
		}
		o.Password = "secret"
		r := register(t, o, member(1))
		becomes(t, open(t, o), "m1")
		other := o
		other.Cluster = "other"
		if err := open(t, other).Err(); err == nil || errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("the prefix of another cluster: %v", err)
		}
		// A client with a password connects when it is opened. It may start before etcd does.
		must(t, r.Close(t.Context()))
		s.Kill()
		ended, cancel := context.WithCancel(t.Context())
		cancel() // do not wait for the first attempts
		late, m := beginWithin(ended, t, o, member(2)), openWithin(ended, t, o)
		if late.Err() == nil || m.Err() == nil || names(m) != "" {
			t.Errorf("without etcd: %v, %v, %s", late.Err(), m.Err(), names(m))
		}
		s.Start(t)
		becomes(t, m, "m2")
		waitFor(t, "no error", func() bool { return late.Err() == nil && m.Err() == nil })
	})
}

func TestListsThatAreOpenedBeforeEtcd(t *testing.T) {
	onEach(t, func(t *testing.T, s *etcdtest.Server) {
		s.Kill()
		o := options(s.Addr)
		o.Within = 200 * time.Millisecond
		m := open(t, o)
		_, changed := m.List()
		waitFor(t, "several reads", func() bool { return m.Stats().Failures > 2 })
		if err := m.Err(); err == nil || names(m) != "" || m.Epoch() != 0 {
			t.Errorf("%v, %s at %d", err, names(m), m.Epoch())
		}
		s.Start(t)
		waitFor(t, "a read", func() bool { return errors.Is(m.Err(), errdefs.ErrNotFound) })
		register(t, options(s.Addr), member(1))
		<-changed
		becomes(t, m, "m1")
	})
}

func TestOptions(t *testing.T) {
	o, err := etcd.ParseURL("etcd://a:1,b:2/kv")
	if err != nil || strings.Join(o.Endpoints, " ") != "a:1 b:2" || o.Cluster != "kv" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, url := range []string{"", "etcd://", "etcd://a:1", "etcd://a:1/", "etcd:///kv", "etcd://a/kv", "etcd://a:1/k/v", "http://a:1/kv", "etcd://a:1,/kv"} {
		if _, err := etcd.ParseURL(url); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, o := range []etcd.Options{
		{Endpoints: []string{"a:1"}, Cluster: "kv", Lease: time.Millisecond},
		{Endpoints: []string{"a:1"}, Cluster: "kv", User: "u"},
		{Cluster: "kv"},
	} {
		if err := o.Validate(); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := etcd.Register(t.Context(), options("a:1"), metadata.Member{Name: "a/b", Address: "a:1", Weight: 1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a name that is no part of a key: %v", err)
	}
}
