package kvlane

import (
	"context"
	"errors"

	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// What tests of planning need: the profile that an engine with the options plans with, and what it is stored under.
var (
	Profile    = (*StreamConfig).profile
	ProfileKey = profileKey
)

// brokenNICs are NICs that could be used when the engine was opened, and over which no stream can be opened any more.
type brokenNICs struct {
	nicStack
	err error
}

func (b brokenNICs) openStream() (stream.Stream, error) { return nil, b.err }

func (b brokenNICs) register(...*mem.Region) error { return nil }

func (b brokenNICs) unregister(context.Context, ...*mem.Region) error { return nil }

func (b brokenNICs) close(context.Context) error { return nil }

// ChooseBroken has e choose whether to take NICs over which no stream can be opened.
func (e *Engine) ChooseBroken(ctx context.Context, err error) {
	e.chooseNICs(ctx, brokenNICs{err: err})
}

// TryOwnNICs tries the NICs that e has, and returns the rates of loads and dumps by them and by copy streams, in 1e9 bytes a
// second.
func (e *Engine) TryOwnNICs(ctx context.Context) ([]float64, error) {
	rig := &trialRig{}
	loads, dumps, err := e.tryNICs(ctx, e.nics, rig)
	err = errors.Join(err, rig.close(ctx))
	return []float64{loads.nic, loads.copies, dumps.nic, dumps.copies}, err
}

// NICIsFaster reports whether NICs are taken where they and copy streams have these rates.
func NICIsFaster(nic, copies float64) bool { return trial{nic: nic, copies: copies}.byNIC() }

// OpenStoreStreamWith opens a stream for the store on an engine whose NICs answer err.
func (e *Engine) OpenStoreStreamWith(err error) (stream.Stream, error) {
	before := e.nics
	e.nics = brokenNICs{err: err}
	defer func() { e.nics = before }()
	return e.openStoreStream(true)
}

// SetGDR changes what an open engine was configured with.
func SetGDR(e *Engine, g GDR) { e.cfg.Store.GDR = g }
