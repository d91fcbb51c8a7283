package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// benchNICs are the NICs of a copy benchmark, or the reason for which there are none. It implements
// bench.Memory.
type benchNICs struct {
	nics *gdr.NICs // nil: none
	soft bool
	why  error // reason for which no NIC can be used
}

// openNICs opens the NICs if a contender may need them. Missing NICs are an error only if flags
// name them. Software NICs move bytes with streams of openCopy.
func (f *benchFlags) openNICs(dev device.Device, openCopy func() (stream.Stream, error)) (*benchNICs, error) {
	n := &benchNICs{soft: f.rdma.soft()}
	all := len(f.run.Contenders) == 0
	if !all && !slices.ContainsFunc(f.run.Contenders, bench.Contender.NIC) {
		n.why = fmt.Errorf("no path by NICs is measured: %w", errdefs.ErrNotSupported)
		return n, nil
	}
	c, err := f.rdma.config()
	if err != nil {
		return nil, err
	}
	nics, err := gdr.Open(dev, c, openCopy)
	switch {
	case err == nil:
		n.nics = nics
	case refused(err):
		return nil, &usageError{err}
	case n.soft || len(c.NICs) > 0:
		return nil, fmt.Errorf("open NICs: %w", err)
	default:
		n.why = fmt.Errorf("%w: %w", errdefs.ErrNotSupported, err)
	}
	return n, nil
}

// use sets the NICs in o.
func (n *benchNICs) use(o *bench.Options) {
	o.SoftNIC, o.Memory = n.soft, n
	o.OpenChannel = n.openChannel
}

// describe returns the names of the NICs and the reasons for their selection.
func (n *benchNICs) describe() []string {
	if n.nics == nil {
		return nil
	}
	var list []string
	for _, c := range n.nics.Choices() {
		name := c.Name
		if n.soft {
			name += " (in software)"
		}
		list = append(list, name+": "+c.Reason)
	}
	return list
}

// Register implements bench.Memory. If hardware NICs cannot access the memory, they are not
// measured.
func (n *benchNICs) Register(regions ...*mem.Region) error {
	if n.nics == nil {
		return nil
	}
	err := n.nics.Register(regions...)
	if errors.Is(err, errdefs.ErrNotSupported) && !n.soft {
		n.why, err = err, nil
	}
	return err
}

// Unregister implements bench.Memory.
func (n *benchNICs) Unregister(ctx context.Context, regions ...*mem.Region) error {
	if n.nics == nil {
		return nil
	}
	return n.nics.Unregister(ctx, regions...)
}

// ready returns nil if the NICs can be used to measure c.
func (n *benchNICs) ready(c bench.Contender) error {
	switch {
	case n.why != nil:
		return n.why
	case c.Soft() && !n.soft:
		return fmt.Errorf("NICs in software are measured with --rdma-provider soft: %w", errdefs.ErrNotSupported)
	case !c.Soft() && n.soft:
		return fmt.Errorf("NICs of the machine are measured without --rdma-provider soft: %w", errdefs.ErrNotSupported)
	}
	return nil
}

// openStream opens a stream over the NICs.
func (n *benchNICs) openStream(c bench.Contender) (stream.Stream, error) {
	if err := n.ready(c); err != nil {
		return nil, err
	}
	return n.nics.OpenStream()
}

func (n *benchNICs) close(ctx context.Context) error {
	if n.nics == nil {
		return nil
	}
	ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
	defer cancel()
	return n.nics.Close(ctx)
}
