package kvlane

import (
	"context"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// NICs are RDMA NICs that are open outside of an engine, to be measured. Safe for concurrent use.
type NICs struct{ stack nicStack }

// OpenNICs opens the NICs that c selects for dev, or with a nil dev for host memory alone. Bytes of NICs in software are moved
// by copy streams of dev, one for each NIC, which openCopy opens (nil: with default options), or by the CPU where there is no
// device. What is missing is in the error, as with TryNICs. The caller closes the NICs, before dev.
func OpenNICs(dev device.Device, c RDMAConfig, openCopy func() (stream.Stream, error)) (*NICs, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	switch {
	case dev == nil:
		openCopy = nil
	case openCopy == nil:
		openCopy = func() (stream.Stream, error) { return streamcopy.Open(dev, streamcopy.Options{}) }
	}
	stack, err := newNICStack(&c, dev, openCopy)
	if err != nil {
		return nil, err
	}
	return &NICs{stack: stack}, nil
}

// Choices returns the NICs, and why these.
func (n *NICs) Choices() []NICChoice { return n.stack.choices() }

// nicStatter is a nicStack with figures.
type nicStatter interface {
	stats() []stream.NICStats
}

// Stats returns the figures of each NIC, in the order of Choices.
func (n *NICs) Stats() []stream.NICStats {
	if s, ok := n.stack.(nicStatter); ok {
		return s.stats()
	}
	return nil
}

// Register registers memory with all of the NICs, as Engine.Register does.
func (n *NICs) Register(regions ...*mem.Region) error { return n.stack.register(regions...) }

// Unregister takes back Register, as Engine.Unregister does.
func (n *NICs) Unregister(ctx context.Context, regions ...*mem.Region) error {
	return n.stack.unregister(ctx, regions...)
}

// OpenStream opens a stream over all of the NICs, which the caller closes before them.
func (n *NICs) OpenStream() (stream.Stream, error) { return n.stack.openStream() }

// carrier returns what copy streams have of the NICs.
func (n *NICs) carrier() *streamcopy.Carrier {
	return &streamcopy.Carrier{Path: n.stack.path(), Open: n.stack.openStream, Reaches: n.stack.reaches}
}

// soft reports whether the NICs are in software.
func (n *NICs) soft() bool { return n.stack.path() == stream.PathNICSoft }

// Close closes the NICs. It stops at what does not close, says what is left, and may be called again, also while another does.
func (n *NICs) Close(ctx context.Context) error { return n.stack.close(ctx) }
