package rdma

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
)

// PortOptions restrict the choice of a port. The zero value has no restriction.
type PortOptions struct {
	Port     int  // zero: the first active one
	GIDIndex *int // nil: the best entry of the port's table
	MTU      MTU  // zero: the port's active MTU
}

// Port is the result of FindPort.
type Port struct {
	Number   int
	GIDIndex int
	GID      GIDEntry // zero on InfiniBand if the table has none
	MTU      MTU
	Reason   string
}

// FindPort chooses a port of d for queue pairs. It returns ErrBroken if the requested port is not
// active, or no port is. It returns ErrNotFound if the GID table is empty or has no GID at the
// requested index. It returns ErrInvalid for a port that d does not have, an index beyond the
// table, or an MTU above the active one.
//
// On Ethernet, FindPort prefers a RoCE v2 GID with an IPv4 address, then other RoCE v2 GIDs, then
// RoCE v1. Among equal GIDs it uses the first that is not link-local, or else the first.
func FindPort(d Device, o PortOptions) (Port, error) {
	port, why, err := activePort(d, o.Port)
	if err != nil {
		return Port{}, fmt.Errorf("choose port of %s: %w", d.Info().Name, err)
	}
	c := Port{Number: port.Number, MTU: port.ActiveMTU}
	if o.MTU != 0 {
		if o.MTU.Bytes() == 0 || o.MTU > port.ActiveMTU {
			return Port{}, fmt.Errorf("choose MTU of %s port %d: %s bytes, and the active one is %s: %w", d.Info().Name, port.Number, o.MTU, port.ActiveMTU, errdefs.ErrInvalid)
		}
		c.MTU = o.MTU
	}
	var whyGID string
	if o.GIDIndex != nil {
		if *o.GIDIndex < 0 || *o.GIDIndex >= port.GIDs {
			return Port{}, fmt.Errorf("choose GID %d of %s port %d: the table has %d entries: %w", *o.GIDIndex, d.Info().Name, port.Number, port.GIDs, errdefs.ErrInvalid)
		}
		c.GID, err = d.QueryGID(port.Number, *o.GIDIndex)
		whyGID = "as configured"
	} else {
		c.GID, err = bestGID(d, port)
		whyGID = "the best of its table"
	}
	if err != nil {
		return Port{}, fmt.Errorf("choose GID of %s port %d: %w", d.Info().Name, port.Number, err)
	}
	c.GIDIndex = c.GID.Index
	c.Reason = fmt.Sprintf("port %d, %s; GID %d (%s, %s), %s; MTU %s", c.Number, why, c.GIDIndex, c.GID.GID, c.GID.Type, whyGID, c.MTU)
	return c, nil
}

// activePort returns the requested port, or the first active one. The string explains the choice.
func activePort(d Device, number int) (PortInfo, string, error) {
	if number != 0 {
		if most := d.Info().Ports; number < 1 || number > most {
			return PortInfo{}, "", fmt.Errorf("port %d: must be 1 to %d: %w", number, most, errdefs.ErrInvalid)
		}
		p, err := d.QueryPort(number)
		if err == nil && p.State != PortActive {
			err = fmt.Errorf("port %d is %s: %w", number, p.State, errdefs.ErrBroken)
		}
		return p, "as configured", err
	}
	var states []string
	for n := 1; n <= d.Info().Ports; n++ {
		p, err := d.QueryPort(n)
		if err != nil {
			return PortInfo{}, "", err
		}
		if p.State == PortActive {
			return p, "the first active port", nil
		}
		states = append(states, fmt.Sprintf("port %d is %s", n, p.State))
	}
	return PortInfo{}, "", fmt.Errorf("no port is active (%s): %w", strings.Join(states, ", "), errdefs.ErrBroken)
}

// bestGID returns the entry of p's table with the highest rank.
func bestGID(d Device, p PortInfo) (GIDEntry, error) {
	best, rank := GIDEntry{}, -1
	for i := range p.GIDs {
		e, err := d.QueryGID(p.Number, i)
		if errors.Is(err, errdefs.ErrNotFound) {
			continue // an empty entry
		}
		if err != nil {
			return GIDEntry{}, err
		}
		if r := rankGID(&e, p.LinkLayer); r > rank {
			best, rank = e, r
		}
	}
	if rank < 0 && p.LinkLayer != LinkLayerInfiniBand {
		return GIDEntry{}, fmt.Errorf("its table of %d entries is empty: %w", p.GIDs, errdefs.ErrNotFound)
	}
	return best, nil
}

func rankGID(e *GIDEntry, l LinkLayer) int {
	if l == LinkLayerInfiniBand {
		return 0 // the first entry is the default GID of the port
	}
	rank := 0
	if e.Type == GIDTypeRoCEv2 {
		rank = 4
	}
	g := e.GID
	switch {
	case isIPv4(g):
		rank += 2
	case g[0] != 0xfe || g[1]&0xc0 != 0x80: // not fe80::/10
		rank++
	}
	return rank
}

// isIPv4 reports whether g is an IPv4 address in IPv6 form.
func isIPv4(g GID) bool {
	return [12]byte(g[:12]) == [12]byte{10: 0xff, 11: 0xff}
}
