package main

import (
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/nicchannel"
)

// openChannel implements bench.ChannelOpener with the first of the NICs.
func (n *benchNICs) openChannel(c bench.Contender) (bench.Channel, error) {
	if err := n.ready(c); err != nil {
		return nil, err
	}
	rails, err := n.nics.Rails()
	if err != nil {
		return nil, err
	}
	ch, err := nicchannel.Open(nicchannel.Options{Registry: rails[0].Registry, Connect: rails[0].Connect})
	if err != nil {
		return nil, err // return a nil interface, not a nil *Channel
	}
	return ch, nil
}
