package metadata

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/errdefs"
)

// Limits of member lists.
const (
	MaxMembers = 1 << 10
	MaxWeight  = 1 << 16
)

// Member is a server of a group that shares a load.
type Member struct {
	Name    string // unique in the group and equal for all clients, because it determines placement
	Address string // host:port
	Weight  int    // share of the load relative to other members, 1 to MaxWeight

	Zone     string // for example of a data center; empty: unknown
	Draining bool   // the member leaves: it gets no new load

	Boot   [16]byte  // another value after each start of the member; zero: unknown
	Joined time.Time // of this start, by the member's clock, in UTC; zero: unknown
}

// Members is the current list of a group's servers. Implementations are safe for concurrent use.
type Members interface {
	// List returns the members sorted by name, and a channel that is closed when the list changes,
	// or nil if it never changes. The caller must not modify the list. List does not block.
	List() ([]Member, <-chan struct{})
}

// Versioned are members in a directory that numbers its changes. The numbers grow.
type Versioned interface {
	Members
	// Epoch returns the number of a change. The list contains this change and all earlier ones.
	Epoch() uint64
	// Refresh reads the directory again if Epoch is below epoch. It returns the error of reading.
	Refresh(ctx context.Context, epoch uint64) error
}

// Counted are members with counters of their reads.
type Counted interface {
	Members
	ListStats() ListStats
}

// ListStats has counters since the list was opened.
type ListStats struct {
	Reads    int64
	Failures int64 // reads without a valid list, and watches that failed
	Changes  int64 // of the list
}

// StaticMembers is a list that never changes.
type StaticMembers struct{ list []Member }

var _ Members = StaticMembers{}

// NewStaticMembers returns a list of members. It returns ErrInvalid for an empty list, for more
// than MaxMembers, for duplicate or empty names, for addresses that are not host:port, and for
// weights out of range.
func NewStaticMembers(list []Member) (StaticMembers, error) {
	if len(list) == 0 || len(list) > MaxMembers {
		return StaticMembers{}, fmt.Errorf("list of %d members: 1 to %d are needed: %w", len(list), MaxMembers, errdefs.ErrInvalid)
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list {
		if err := list[i].check(); err != nil {
			return StaticMembers{}, err
		}
		if i > 0 && list[i].Name == list[i-1].Name {
			return StaticMembers{}, fmt.Errorf("member %q is listed twice: %w", list[i].Name, errdefs.ErrInvalid)
		}
	}
	return StaticMembers{list}, nil
}

func (m *Member) check() error {
	host, port, err := net.SplitHostPort(m.Address)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); err == nil && n == 0 {
			err = strconv.ErrRange
		}
	}
	switch {
	case err != nil || host == "":
		return fmt.Errorf("member %q: address %q is not HOST:PORT: %w", m.Name, m.Address, errdefs.ErrInvalid)
	case m.Name == "":
		return fmt.Errorf("member at %q has no name: %w", m.Address, errdefs.ErrInvalid)
	case m.Weight < 1 || m.Weight > MaxWeight:
		return fmt.Errorf("member %q: weight %d is not in 1 to %d: %w", m.Name, m.Weight, MaxWeight, errdefs.ErrInvalid)
	}
	return nil
}

// ParseMembers parses a list HOST:PORT[=WEIGHT],.... The addresses are the names, and the default
// weight is 1. It returns the errors of NewStaticMembers.
func ParseMembers(s string) (StaticMembers, error) {
	return parseMembers(strings.SplitSeq(s, ","))
}

func parseMembers(items iter.Seq[string]) (StaticMembers, error) {
	var list []Member
	for item := range items {
		if len(list) == MaxMembers {
			return StaticMembers{}, fmt.Errorf("list of more than %d members: %w", MaxMembers, errdefs.ErrInvalid)
		}
		address, weight, found := strings.Cut(strings.TrimSpace(item), "=")
		m := Member{Name: address, Address: address, Weight: 1}
		if found {
			n, err := strconv.ParseUint(weight, 10, 32)
			if err != nil || n > math.MaxInt32 {
				return StaticMembers{}, fmt.Errorf("member %q: weight %q is no number from 1 to %d: %w", address, weight, MaxWeight, errdefs.ErrInvalid)
			}
			m.Weight = int(n)
		}
		list = append(list, m)
	}
	return NewStaticMembers(list)
}

// List implements Members.
func (m StaticMembers) List() ([]Member, <-chan struct{}) { return m.list, nil }

// String returns the list in the syntax of ParseMembers.
func (m StaticMembers) String() string {
	var b strings.Builder
	for i := range m.list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(m.list[i].Address)
		if m.list[i].Weight != 1 {
			fmt.Fprintf(&b, "=%d", m.list[i].Weight)
		}
	}
	return b.String()
}
