package cluster_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
	"github.com/kvlane/kvlane/rpc/cluster"
	"github.com/kvlane/kvlane/rpc/echo"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const method = "example.EchoService/Echo"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition was not met in time")
		}
	}
}

// node is a server whose Echo returns the address of the node. It can be stopped and restarted at
// its address.
type node struct {
	t       *testing.T
	o       rpc.ServerOptions
	address string
	runs    atomic.Int64                                // calls
	handle  atomic.Pointer[func(context.Context) error] // runs before the handler; nil: nothing

	mu     sync.Mutex
	server *rpc.Server
	served chan error
}

func newNode(t *testing.T, o rpc.ServerOptions) *node {
	t.Helper()
	n := &node{t: t, o: o, address: "127.0.0.1:0"}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func nodes(t *testing.T, count int) []*node {
	t.Helper()
	list := make([]*node, count)
	for i := range list {
		list[i] = newNode(t, rpc.ServerOptions{})
	}
	slices.SortFunc(list, func(a, b *node) int { return slices.Compare([]byte(a.address), []byte(b.address)) })
	return list
}

func (n *node) start() {
	n.t.Helper()
	var l net.Listener
	var err error
	waitFor(n.t, func() bool { // a connection of another process may have the port of an earlier start
		l, err = net.Listen("tcp", n.address)
		return !errors.Is(err, syscall.EADDRINUSE)
	})
	must(n.t, err)
	n.address = l.Addr().String()
	n.serve(l)
}

func (n *node) serve(l net.Listener) {
	n.t.Helper()
	o := n.o
	o.Interceptors = append(slices.Clone(o.Interceptors), func(ctx context.Context, in proto.Message, next rpc.Handler) (proto.Message, error) {
		n.runs.Add(1)
		if f := n.handle.Load(); f != nil {
			if err := (*f)(ctx); err != nil {
				return nil, err
			}
		}
		return next(ctx, in)
	})
	s, err := rpc.NewServer(o)
	must(n.t, err)
	v, err := rpc.NewService(echo.File_rpc_echo_echo_proto.Services().Get(0), map[string]rpc.Handler{
		"Echo": func(ctx context.Context, _ proto.Message) (proto.Message, error) {
			call := rpc.FromContext(ctx)
			call.Reply.Attachment = call.Attachment.Cut(call.Attachment.Len())
			return &echo.EchoResponse{Message: proto.String(n.address)}, nil
		},
	})
	must(n.t, err)
	must(n.t, s.Register(v))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server, n.served = s, make(chan error, 1)
	go func() { n.served <- s.Serve(l) }()
}

// stop kills the server. Later calls do nothing.
func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server == nil {
		return
	}
	if err := errors.Join(n.server.Close(), <-n.served); err != nil && !errors.Is(err, errdefs.ErrClosed) { // before Serve
		n.t.Error(err)
	}
	n.server = nil
}

func (n *node) current() *rpc.Server {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.server
}

// set sets the behaviour of the handler.
func (n *node) set(f func(context.Context) error) {
	if f == nil {
		n.handle.Store(nil)
	} else {
		n.handle.Store(&f)
	}
}

// fails returns a behaviour with an error code.
func fails(code rpc.Code) func(context.Context) error {
	return func(context.Context) error { return rpc.Errorf(code, "by the test") }
}

// hangs is a behaviour that does not end before the server is closed.
func hangs(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// until returns a behaviour that waits for release.
func until(release chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// group is a list of members that changes.
type group struct {
	mu      sync.Mutex
	list    []metadata.Member
	changed chan struct{}
}

func (g *group) List() ([]metadata.Member, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.list, g.changed
}

func (g *group) set(list ...metadata.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed != nil {
		close(g.changed)
	}
	g.list, g.changed = list, make(chan struct{})
}

func member(n *node, weight int) metadata.Member {
	return metadata.Member{Name: n.address, Address: n.address, Weight: weight}
}

// of returns the list of nodes, with weight 1.
func of(list ...*node) *group {
	g := new(group)
	members := make([]metadata.Member, len(list))
	for i, n := range list {
		members[i] = member(n, 1)
	}
	g.set(members...)
	return g
}

// fast are options with short times.
func fast(o cluster.Options) cluster.Options {
	o.MinEject, o.MaxEject = 5*time.Millisecond, 20*time.Millisecond
	return o
}

func newClient(t *testing.T, m metadata.Members, o cluster.Options) *cluster.Client {
	t.Helper()
	c, err := cluster.New(m, o)
	must(t, err)
	t.Cleanup(func() {
		for _, s := range c.Stats().Servers {
			if s.InFlight != 0 {
				t.Errorf("%d attempts in progress at the end of the test", s.InFlight)
			}
		}
		must(t, c.Close())
	})
	return c
}

// ask calls Echo and returns the address of the node that has answered.
func ask(ctx context.Context, c *cluster.Client, options ...rpc.CallOption) (string, error) {
	out := new(echo.EchoResponse)
	err := c.Call(ctx, method, &echo.EchoRequest{Message: proto.String("hello")}, out, options...)
	return out.GetMessage(), err
}

// load makes calls until stop is called, which returns the number of calls and their errors.
func load(t *testing.T, c *cluster.Client, callers int) (stop func() (int64, []error)) {
	t.Helper()
	var calls atomic.Int64
	var mu sync.Mutex
	var errs []error
	end := make(chan struct{})
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience())
				_, err := ask(ctx, c)
				cancel()
				calls.Add(1)
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	stop = sync.OnceValues(func() (int64, []error) {
		close(end)
		group.Wait()
		return calls.Load(), errs
	})
	t.Cleanup(func() { stop() })
	return stop
}

func statsOf(c *cluster.Client, n *node) cluster.ServerStats {
	for _, s := range c.Stats().Servers {
		if s.Address == n.address {
			return s
		}
	}
	return cluster.ServerStats{}
}

func anyMethod(string) bool { return true }
