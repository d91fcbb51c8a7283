//go:build !nonic

package kvlane

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream/nic"
)

// Rails returns the NICs as streams take them, with the ports that are active now: for who uses them without a stream.
func (n *NICs) Rails() ([]nic.NIC, error) {
	stack, ok := n.stack.(*nics)
	if !ok {
		return nil, fmt.Errorf("NICs are %T: %w", n.stack, errdefs.ErrInvalid)
	}
	return stack.rails()
}
