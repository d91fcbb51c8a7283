package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
)

// peerSizes and peerLayouts are the block sizes and arrangements for copies between two devices.
var (
	peerSizes   = []int64{4 << 10, 16 << 10, 64 << 10, 1 << 20}
	peerLayouts = []Layout{BothScattered, BothContiguous}
)

// PeerReport has the results of copies between two devices by streams of the first one. ToDevice
// reads from the second device's memory, ToHost writes to it.
type PeerReport struct {
	Device    string    `json:"device"` // the second device
	Reference Reference `json:"reference"`
	Points    []Point   `json:"points"`
}

func (o *Options) peerPlaces() []place {
	var all []place
	for _, size := range peerSizes {
		if size > o.PeerBytes {
			continue
		}
		for _, l := range peerLayouts {
			for _, d := range []Direction{ToDevice, ToHost} {
				all = append(all, place{Cell{size, int(min(o.PeerBytes/size, MaxCount))}, d, l})
			}
		}
	}
	return all
}

// peers measures copies between two devices. If the devices cannot access each other's memory, the
// report has the reason.
func (b *bench) peers(ctx context.Context) (err error) {
	near, ok := b.dev.(device.Peerer)
	err = fmt.Errorf("device %s does not support peers: %w", b.dev.Info().Name, errdefs.ErrNotSupported)
	if ok {
		err = near.EnablePeer(b.o.Peer)
	}
	if err != nil {
		if errors.Is(err, errdefs.ErrNotSupported) {
			b.rep.Missing = append(b.rep.Missing, Missing{Path: "peers", Reason: err.Error()})
			return nil
		}
		return err
	}
	o, places := b.o, b.o.peerPlaces()
	bytes := max(o.PeerBytes, o.PeerReferenceBytes)
	if err := b.setUp(ctx, o.Peer, bytes, bytes, peerSizes[len(peerSizes)-1], o.PeerReferenceBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.rig.Close()) }()
	who := entries(o.PeerContenders, o.Form)
	b.budget.Part(len(places) * len(who))
	p := &PeerReport{Device: o.Peer.Info().Name, Points: []Point{}}
	b.rep.Peers = p
	defer func() { p.Reference = Reference{ToDevice: b.large.rates(ToDevice), ToHost: b.large.rates(ToHost)} }()
	for len(places) > 0 {
		n := min(len(places), 2*len(peerLayouts)) // places of one size
		points, err := b.measure(ctx, places[:n], who, o.BatchBlocks)
		p.Points = append(p.Points, points...)
		if err != nil {
			return err
		}
		places = places[n:]
	}
	return nil
}
