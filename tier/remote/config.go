package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/placement"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/usage"
)

// Name is the name of the tier in pipelines.
const Name = "remote"

const (
	// DefaultTimeout is the default of Config.Timeout.
	DefaultTimeout = time.Second
	// DefaultWrites is the default of Config.Writes.
	DefaultWrites = 256
	// DefaultRamp is the default of Config.Ramp.
	DefaultRamp = time.Minute
	leaseTime   = time.Minute           // the server may grant less
	renewPause  = 10 * time.Millisecond // between renewals of a lease
)

// Config configures a Tier. The tags are the keys of settings.
type Config struct {
	// Servers is a list of block servers that metadata.OpenMembers opens: HOST:PORT[=WEIGHT],...,
	// dns+srv://NAME, or a URL of a scheme of Open's context. All clients of the servers must have the
	// same list.
	Servers string `config:"remote"`
	// Members is a list that may change, instead of Servers. The caller closes it after the tier.
	Members metadata.Members
	// Zone is the zone of this process. Replicas in it are read first. Empty: unknown.
	Zone string `config:"remote_zone"`
	// Ramp is the time in which the weight of a server that joins grows. Default DefaultRamp.
	Ramp time.Duration
	// CAFile, CertFile, KeyFile and TokenFile are the credentials (auth.ClientOptions). The default
	// is plain TCP without credentials.
	CAFile    string `config:"remote_ca"`
	CertFile  string `config:"remote_cert"`
	KeyFile   string `config:"remote_key"`
	TokenFile string `config:"remote_token"`
	// Formats has one format for each page group.
	Formats block.Formats
	// Timeout bounds each request to a server. An operation ends at most 200 ms later. Default
	// DefaultTimeout.
	Timeout time.Duration `config:"remote_timeout_ms"`
	// Writes bounds the number of Puts in progress. Put returns ErrBusy beyond it. Default
	// DefaultWrites.
	Writes int
	// Breaker are the options of each server's breaker, Latency those of leaving out a server that is
	// slower than the others.
	Breaker breaker.Options
	Latency breaker.LatencyOptions
	// UseRDMA lets the servers access the memory of blocks by the NIC that OpenNIC opens. Without
	// OpenNIC, and if it fails or a server refuses, blocks pass over sockets. Notes has the reason.
	UseRDMA bool `config:"remote_rdma"`
	OpenNIC OpenNIC
	// Events receives the blocks that this tier stores and deletes. Evictions by servers are not
	// events. It may be nil.
	Events *tier.Events
	// Dial replaces TCP and TLS in tests, and Clock the time by which blocks are placed.
	Dial  func(ctx context.Context, address string) (net.Conn, error)
	Clock clockwork.Clock
}

// OpenNIC opens a NIC with which the memory of blocks is registered, and returns a text that
// describes it. The caller of Open closes the NIC after the tier.
type OpenNIC func() (o *blockio.RDMAOptions, what string, err error)

// Validate reports all errors. It does not access servers.
func (c *Config) Validate() error {
	var serr error
	if c.Members == nil {
		serr = metadata.CheckMembers(c.Servers)
	}
	_, berr := breaker.New(c.Breaker)
	_, lerr := breaker.NewLatencies(c.Latency)
	errs := []error{serr, berr, lerr, c.Formats.Validate()}
	if c.Timeout < 0 || c.Writes < 0 || c.Ramp < 0 {
		errs = append(errs, fmt.Errorf("timeout %v, ramp %v and %d writes must not be negative: %w", c.Timeout, c.Ramp, c.Writes, errdefs.ErrInvalid))
	}
	return errors.Join(errs...)
}

// OpenTier calls Open.
func (c *Config) OpenTier(ctx context.Context) (tier.Tier, error) { return Open(ctx, *c) }

// Open returns a tier. It tries to reach each server within the timeout. Servers that cannot be
// reached, and a list that is empty or cannot be read, are in Notes, and are no error: all blocks
// are misses meanwhile. Errors: those of Validate and of the credential files.
func Open(ctx context.Context, c Config) (*Tier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("open remote tier: %w", err)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Writes == 0 {
		c.Writes = DefaultWrites
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
	creds, err := auth.NewClient(auth.ClientOptions{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, TokenFile: c.TokenFile})
	if err != nil {
		return nil, fmt.Errorf("open remote tier: %w", err)
	}
	if c.Dial == nil {
		c.Dial = creds.Dial
	}
	latencies, _ := breaker.NewLatencies(c.Latency) // Validate has checked it
	members, opened := c.Members, io.Closer(nil)
	if members == nil {
		list, err := metadata.OpenMembers(ctx, c.Servers)
		if err != nil {
			return nil, fmt.Errorf("open remote tier: %w", err)
		}
		members, opened = list, list
	}
	t := &Tier{opened: opened, c: c, locks: usage.NewKeyLocks(), pins: make(map[block.Key][]*lease), writes: make(chan struct{}, c.Writes)}
	t.ops.Init()
	nic := t.openNIC()
	t.pool = &pool{
		members: members, options: placement.Options{Ramp: cmp.Or(c.Ramp, DefaultRamp), Zone: c.Zone}, latencies: latencies,
		marks: placement.NewMarks(marksMost, marksLife),
		open:  func(m metadata.Member) (*server, error) { return t.newServer(m, creds.Token(), nic) },
	}
	if err := t.pool.start(c.Clock.Now()); err != nil {
		err = errors.Join(err, t.closeMembers())
		return nil, fmt.Errorf("open remote tier: %w", err)
	}
	t.probe(ctx)
	return t, nil
}

// openNIC returns the options of the NIC, or nil.
func (t *Tier) openNIC() *blockio.RDMAOptions {
	if !t.c.UseRDMA || t.c.OpenNIC == nil {
		return nil
	}
	o, what, err := t.c.OpenNIC()
	if err != nil {
		t.notes = append(t.notes, fmt.Sprintf("blocks pass to block servers over sockets: %v", err))
		return nil
	}
	t.notes = append(t.notes, "block servers that authenticate this process move blocks by RDMA: "+what)
	return o
}

// newServer returns a server with a client that uses a NIC, if nic is not nil and that is possible.
func (t *Tier) newServer(m metadata.Member, token []byte, nic *blockio.RDMAOptions) (*server, error) {
	b, err := breaker.New(t.c.Breaker)
	if err != nil {
		return nil, err
	}
	s := &server{address: m.Address, breaker: b, timeout: t.c.Timeout}
	s.zone.Store(&m.Zone)
	o := blockio.ClientOptions{
		Dial:  func(ctx context.Context) (net.Conn, error) { return t.c.Dial(ctx, m.Address) },
		Token: token, Timeout: t.c.Timeout, RDMA: nic,
		Replicas:  func(run uint32, n int) { t.pool.marks.Set(run, n, t.c.Clock.Now()) },
		Newer:     t.pool.newer,
		Connected: func(g blockio.Greeting) { t.pool.greeted(s, g.Zone) },
	}
	if v, ok := t.pool.members.(metadata.Versioned); ok {
		o.Epoch, o.Refresh = v.Epoch, v.Refresh
	}
	for _, f := range t.c.Formats {
		o.Formats = append(o.Formats, blockio.Format{Identity: f.Identity, ShardBytes: f.Layout.ShardSizes()})
	}
	s.client, err = blockio.NewClient(o)
	if err != nil && nic != nil {
		t.noteSockets(m.Address, err)
		o.RDMA = nil
		s.client, err = blockio.NewClient(o)
	}
	if err != nil {
		return nil, fmt.Errorf("use block server %s: %w", m.Address, err)
	}
	s.latency = t.pool.latencies.Add()
	return s, nil
}

func (t *Tier) noteSockets(address string, why error) {
	t.notes = append(t.notes, fmt.Sprintf("blocks of block server %s pass over sockets: %v", address, why))
}

// probe notes the servers that cannot be used, and those that refuse RDMA.
func (t *Tier) probe(ctx context.Context) {
	servers := t.servers()
	if len(servers) == 0 {
		t.notes = append(t.notes, fmt.Sprintf("no block server is known, so all their blocks are misses until some join: %v", t.pool.listErr()))
	}
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.stat(ctx, s.timeout) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			does := "does not answer"
			if errors.Is(err, errRefused) {
				does = "refuses this client"
			}
			t.notes = append(t.notes, fmt.Sprintf("block server %s %s; its blocks are misses meanwhile: %v", servers[i].address, does, err))
		}
		if refusal := servers[i].client.Stats().Refusal; refusal != nil {
			t.noteSockets(servers[i].address, refusal)
		}
	}
}
