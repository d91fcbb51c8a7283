package metadata

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Defaults and limits of polled members.
const (
	DefaultFileInterval = time.Second
	DefaultDNSInterval  = 5 * time.Second

	maxFileBytes = 1 << 20
	maxRead      = 10 * time.Second // time limit of one read
)

// PolledMembers is a list that is read again at intervals. If a read fails or its result is not a
// valid list, the last valid list stays, and Err returns the reason. The caller closes it.
type PolledMembers struct {
	read   func(context.Context) (StaticMembers, error)
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	list    []Member
	changed chan struct{}
	err     error
	stats   ListStats
}

var _ Counted = (*PolledMembers)(nil)

// OpenFileMembers reads a list from a file that has a member HOST:PORT[=WEIGHT] in each line, empty
// lines, and comments after #. It reads the file again after each interval; 0 is
// DefaultFileInterval. Replace the file by renaming another one to it, because a file that is being
// written has an incomplete list. It returns the errors of the first read, which are those of
// ParseMembers, ErrInvalid for a file of more than 1 MiB, and those of opening the file.
func OpenFileMembers(path string, interval time.Duration) (*PolledMembers, error) {
	return openPolled(context.Background(), cmp.Or(interval, DefaultFileInterval), false, func(context.Context) (StaticMembers, error) {
		f, err := os.Open(path)
		if err != nil {
			return StaticMembers{}, err
		}
		defer f.Close() //nolint:errcheck // it was only read
		b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
		if err != nil {
			return StaticMembers{}, err
		}
		if len(b) > maxFileBytes {
			return StaticMembers{}, fmt.Errorf("file of more than %d bytes: %w", maxFileBytes, errdefs.ErrInvalid)
		}
		return parseMembers(func(yield func(string) bool) {
			for line := range strings.Lines(string(b)) {
				line, _, _ = strings.Cut(line, "#")
				if line = strings.TrimSpace(line); line != "" && !yield(line) {
					return
				}
			}
		})
	}, "read members of "+path)
}

// DNSOptions are the options of OpenDNSMembers. Zero values are the defaults.
type DNSOptions struct {
	// Interval is the time between lookups. Default: DefaultDNSInterval.
	Interval time.Duration
	// Patient makes a failed first lookup no error: the list is empty until a later one succeeds.
	Patient bool
	// Resolver makes the lookups. Default: net.DefaultResolver.
	Resolver *net.Resolver
}

// OpenDNSMembers looks up a list, and looks it up again after each interval. For a name HOST:PORT
// the members are the addresses of the host, each with weight 1. For a name
// _SERVICE._PROTOCOL.DOMAIN they are the SRV records of the lowest priority, with their weights, of
// which 0 counts as 1. It returns ErrInvalid for other names, and the errors of the first lookup.
func OpenDNSMembers(ctx context.Context, name string, o DNSOptions) (*PolledMembers, error) {
	o.Resolver = cmp.Or(o.Resolver, net.DefaultResolver)
	read := func(ctx context.Context) (StaticMembers, error) { return lookupSRV(ctx, o.Resolver, name) }
	if !strings.HasPrefix(name, "_") {
		host, port, err := net.SplitHostPort(name)
		if err != nil || host == "" {
			return nil, fmt.Errorf("look up members of %q: not HOST:PORT or _SERVICE._PROTOCOL.DOMAIN: %w", name, errdefs.ErrInvalid)
		}
		read = func(ctx context.Context) (StaticMembers, error) { return lookupHost(ctx, o.Resolver, host, port) }
	}
	return openPolled(ctx, cmp.Or(o.Interval, DefaultDNSInterval), o.Patient, read, "look up members of "+name)
}

func lookupHost(ctx context.Context, r *net.Resolver, host, port string) (StaticMembers, error) {
	addresses, err := r.LookupHost(ctx, host)
	if err != nil {
		return StaticMembers{}, err
	}
	list := make([]Member, len(addresses))
	for i, a := range addresses {
		at := net.JoinHostPort(a, port)
		list[i] = Member{Name: at, Address: at, Weight: 1}
	}
	return NewStaticMembers(unique(list))
}

func lookupSRV(ctx context.Context, r *net.Resolver, name string) (StaticMembers, error) {
	_, records, err := r.LookupSRV(ctx, "", "", name) // sorted by priority
	if err != nil {
		return StaticMembers{}, err
	}
	var list []Member
	for _, s := range records {
		if s.Priority == records[0].Priority {
			at := net.JoinHostPort(strings.TrimSuffix(s.Target, "."), strconv.Itoa(int(s.Port)))
			list = append(list, Member{Name: at, Address: at, Weight: max(int(s.Weight), 1)})
		}
	}
	return NewStaticMembers(unique(list))
}

// unique keeps one member of each name, the one with the least weight.
func unique(list []Member) []Member {
	slices.SortFunc(list, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Weight, b.Weight)) })
	return slices.CompactFunc(list, func(a, b Member) bool { return a.Name == b.Name })
}

// openPolled reads the first list and starts the goroutine that reads the later ones. A failed
// first read is no error if patient is set. purpose is the start of its errors.
func openPolled(ctx context.Context, interval time.Duration, patient bool, read func(context.Context) (StaticMembers, error), purpose string) (*PolledMembers, error) {
	if interval < 0 {
		return nil, fmt.Errorf("%s every %v: %w", purpose, interval, errdefs.ErrInvalid)
	}
	m := &PolledMembers{done: make(chan struct{}), changed: make(chan struct{})}
	m.read = func(ctx context.Context) (StaticMembers, error) {
		ctx, cancel := context.WithTimeout(ctx, maxRead)
		defer cancel()
		list, err := read(ctx)
		if err != nil {
			err = fmt.Errorf("%s: %w", purpose, err)
		}
		return list, err
	}
	first, err := m.read(ctx)
	if err != nil {
		if !patient {
			return nil, err
		}
		m.stats.Failures++
	}
	m.list, m.err, m.stats.Reads = first.list, err, 1
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go m.poll(ctx, interval)
	return m, nil
}

func (m *PolledMembers) poll(ctx context.Context, interval time.Duration) {
	defer close(m.done)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		next, err := m.read(ctx)
		if ctx.Err() != nil {
			return
		}
		m.mu.Lock()
		m.err = err
		m.stats.Reads++
		if err != nil {
			m.stats.Failures++
		} else if !slices.Equal(m.list, next.list) {
			m.stats.Changes++
			m.list = next.list
			close(m.changed)
			m.changed = make(chan struct{})
		}
		m.mu.Unlock()
	}
}

// List implements Members.
func (m *PolledMembers) List() ([]Member, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list, m.changed
}

// Err returns the error of the last read, or nil if the list is up to date.
func (m *PolledMembers) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// ListStats implements Counted.
func (m *PolledMembers) ListStats() ListStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Close stops reading and waits for a read in progress. The list stays. Later calls do nothing.
func (m *PolledMembers) Close() error {
	m.cancel()
	<-m.done
	return nil
}
