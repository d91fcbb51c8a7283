package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/rpc"
)

// Client calls the methods of a list of servers. It is safe for concurrent use.
type Client struct {
	o       Options
	members metadata.Members
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	group   sync.WaitGroup // goroutines of servers, of the list, and of attempts

	mu      sync.Mutex
	servers []*server
	leaving map[*server]struct{} // removed servers with attempts in progress
	start   int                  // where policies begin to look for a server
	tokens  float64              // additional requests that the budget permits now
	stats   Stats
	closed  bool
}

var _ rpc.Caller = (*Client)(nil)

// New returns a client of a list of servers. It connects to a server at the first call there. It
// returns ErrInvalid for wrong options. The caller closes the list after the client.
func New(members metadata.Members, o Options) (*Client, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if members == nil {
		return nil, fmt.Errorf("make cluster client: the list of members is nil: %w", errdefs.ErrInvalid)
	}
	c := &Client{o: o, members: members, tokens: retryBurst, leaving: make(map[*server]struct{})}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	list, changed := members.List()
	if err := c.update(list); err != nil {
		_ = c.Close() // it returns nil
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.servers); n > 0 { // so that clients that start together use different servers first
		c.start = rand.IntN(n)
		for range rand.IntN(n) {
			choose(RoundRobin, c.servers, (*server).accepts, "", c.start)
		}
	}
	c.group.Go(func() { c.follow(changed) })
	return c, nil
}

// follow applies changes of the list.
func (c *Client) follow(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-c.ctx.Done():
			return
		}
		var list []metadata.Member
		list, changed = c.members.List()
		err := c.update(list)
		c.mu.Lock()
		c.stats.ListErr = err
		c.mu.Unlock()
	}
}

// update replaces the list of servers. Servers with the same name and address keep their state. If
// it returns an error, the list stays.
func (c *Client) update(list []metadata.Member) error {
	c.mu.Lock()
	old := slices.Clone(c.servers)
	c.mu.Unlock()
	next := make([]*server, len(list))
	var added, unused []*server
	drop := func(list []*server) {
		for _, s := range list {
			s.close()
		}
	}
	for i, m := range list {
		same := slices.IndexFunc(old, func(s *server) bool { return s.member.Name == m.Name && s.member.Address == m.Address })
		if same >= 0 {
			next[i] = old[same]
			continue
		}
		s, err := c.newServer(m)
		if err != nil {
			drop(added)
			return fmt.Errorf("make rpc client of member %q: %w", m.Name, err)
		}
		next[i] = s
		added = append(added, s)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		drop(added)
		return nil
	}
	c.servers = next
	for i, s := range next {
		s.member.Weight, s.weight, s.current = list[i].Weight, float64(list[i].Weight), 0
	}
	for _, s := range added {
		c.group.Go(s.run)
	}
	for _, s := range old {
		if !slices.Contains(next, s) {
			s.removed = true
			s.cancel()
			if s.inFlight == 0 {
				unused = append(unused, s)
			} else {
				c.leaving[s] = struct{}{} // its calls end normally
			}
		}
	}
	c.mu.Unlock()
	drop(unused)
	return nil
}

// Call calls a method, named SERVICE/METHOD, of a server that the policy chooses, as rpc.Client
// does. All errors are an *rpc.Error. The code is FailedSocket if no server can be called; the text
// then has the reason for each server. The error is rpc.ErrNotSent only if no server has received
// the request.
func (c *Client) Call(ctx context.Context, method string, in, out proto.Message, options ...rpc.CallOption) error {
	if ctx == nil {
		panic("cluster: nil context")
	}
	key, ok := ctx.Value(keyContext{}).(string)
	if !ok && c.o.Policy == ConsistentHash {
		return &rpc.Error{Code: rpc.BadRequest, Text: "the call has no key (cluster.WithKey)", Cause: errdefs.ErrInvalid}
	}
	r, err := rpc.NewRequest(method, in, append(slices.Clip(options), rpc.ReportExecuted())...)
	if err != nil {
		return err
	}
	q := &call{c: c, request: r, key: key, idempotent: c.o.Idempotent != nil && c.o.Idempotent(method)}
	q.uses.Store(1)
	defer q.done()
	response, err := q.run(ctx)
	if err != nil {
		return err
	}
	return response.Decode(out)
}

// Close closes all connections. Calls in progress fail with FailedSocket. Later calls of Close do
// nothing.
func (c *Client) Close() error {
	c.cancel()
	c.mu.Lock()
	c.closed = true
	servers := slices.AppendSeq(slices.Clone(c.servers), maps.Keys(c.leaving))
	c.mu.Unlock()
	for _, s := range servers {
		s.close()
	}
	c.group.Wait()
	return nil
}

// Stats are the counters of a Client since New.
type Stats struct {
	Calls  int64 // calls that have ended
	Failed int64 // of them, with an error of any code
	// Retries are the repeated requests, without Backups. Refused are the repeated and backup
	// requests that the budget (Options.RetryShare) prevented.
	Retries, Refused int64
	// Backups are the backup requests. BackupWins are those that answered first.
	Backups, BackupWins int64
	// ListErr is the reason why the last change of the list was not applied, or nil.
	ListErr error
	Servers []ServerStats // of the current list, in its order
}

// ServerStats are the state and the counters of one server.
type ServerStats struct {
	Name, Address string
	Weight        int
	InFlight      int   // attempts in progress
	Attempts      int64 // attempts that have ended
	// Failures are attempts that failed because of the server: connections that could not be made
	// or that failed, time-outs, attempts that lost to their backup, and calls refused for overload
	// or shutdown.
	Failures int64
	// Ejections is the number of times that the server was taken out of use. Ejected reports
	// whether it is now, and Why is the reason.
	Ejections int64
	Ejected   bool
	Why       error
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.stats
	for _, s := range c.servers {
		one := s.stats
		one.Name, one.Address, one.Weight = s.member.Name, s.member.Address, s.member.Weight
		one.InFlight, one.Ejected = s.inFlight, s.state == ejected
		if s.state != usable {
			one.Why = s.cause
		}
		out.Servers = append(out.Servers, one)
	}
	return out
}

// maxListed is the number of servers that an error lists.
const maxListed = 8

// unavailable returns the error of a call for which there is no server. The caller holds mu.
func (c *Client) unavailable() *rpc.Error {
	if len(c.servers) == 0 {
		return &rpc.Error{Code: rpc.FailedSocket, Text: "the list of servers is empty", Cause: rpc.ErrNotSent}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "none of %d servers can be called", len(c.servers))
	for i, s := range c.servers {
		if i == maxListed {
			fmt.Fprintf(&b, "; and %d more", len(c.servers)-i)
			break
		}
		var why string
		switch s.state {
		case usable:
			why = "it has not completed the call"
		case onTrial:
			why = "it gets one call at a time until one succeeds"
		case ejected:
			why = fmt.Sprintf("ejected: %v", s.cause)
			if left := time.Until(s.breaker.Until()); left > 0 {
				why = fmt.Sprintf("ejected, next check in %v: %v", left.Round(time.Millisecond), s.cause)
			}
		}
		fmt.Fprintf(&b, "; %s: %s", s.member.Name, why)
	}
	return &rpc.Error{Code: rpc.FailedSocket, Text: b.String(), Cause: rpc.ErrNotSent}
}
