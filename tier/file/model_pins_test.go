package file_test

import (
	"errors"
	"os"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// pinState is the expected state of a block's pin.
type pinState uint8

const (
	unpinned pinState = iota
	pinned
	eitherPin // an operation on the pin crashed, or failed on a full disk
)

// pinOne pins or unpins a block.
func (m *model) pinOne(i, k int) {
	l, b := m.lives[i], &m.blocks[k]
	keys := []block.Key{modelKey(k)}
	if m.rng.IntN(3) == 0 {
		err := l.Unpin(m.Context(), keys)
		m.log("%d unpins %d: %v", i, k, err)
		switch {
		case m.crashed(l, err), m.full && errors.Is(err, errdefs.ErrNoSpace):
			b.pin = eitherPin
		default:
			m.must(err)
			b.pin, b.mayRevert = unpinned, false
		}
		return
	}
	n, sure := int64(0), true
	for _, other := range m.blocks {
		sure = sure && other.pin != eitherPin && (other.pin != pinned || other.state != absent)
		if other.pin == pinned {
			n++
		}
	}
	err := l.Pin(m.Context(), keys)
	m.log("%d pins %d: %v", i, k, err)
	exceeds := m.c.bound > 0 && b.pin != pinned && n+1 > int64(m.c.bound)/2
	switch {
	case m.crashed(l, err), m.full && errors.Is(err, errdefs.ErrNoSpace) && !errors.Is(err, file.ErrPinLimit):
		b.pin = eitherPin
	case b.state == absent && errors.Is(err, errdefs.ErrNotFound):
		l.misses++
	case b.state == torn && errors.Is(err, errdefs.ErrNotFound): // it has another length
		l.misses++
	case errors.Is(err, file.ErrPinLimit) && (exceeds || !sure):
	case err == nil && b.state != absent && (!exceeds || !sure):
		b.pin, b.mayRevert = pinned, false
		b.promised = b.state == whole
	default:
		m.Fatalf("block %d is %+v, %d blocks are pinned, and pin returned %v", k, *b, n, err)
	}
}

// dropPin notes that the pin of a damaged block was removed with the block.
func (m *model) dropPin(k int, crashed bool) {
	if b := &m.blocks[k]; b.pin != unpinned && (crashed || m.full) {
		b.pin = eitherPin
	} else {
		b.pin = unpinned
	}
}

// observePins compares the lists of pins with the model.
func (m *model) observePins() {
	process := m.disk.Process()
	defer process.Kill()
	all := make(blockdir.PinSet)
	for _, dir := range m.config(0).Dirs {
		d, err := process.OpenDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		m.must(err)
		set, err := blockdir.ReadPins(d)
		m.must(err)
		for key := range set {
			all[key] = true
		}
	}
	for k := range m.blocks {
		b := &m.blocks[k]
		is := unpinned
		if all[modelKey(k)] {
			is = pinned
		}
		if b.pin != is && b.pin != eitherPin {
			m.Fatalf("block %d is %+v, and its pin is %d", k, *b, is)
		}
		b.mayRevert = b.mayRevert || b.pin == eitherPin
		b.pin = is
	}
}

// pinnedPresent returns the number of pinned blocks that are stored.
func (m *model) pinnedPresent() (n int64) {
	for _, b := range m.blocks {
		if b.state != absent && b.pin == pinned {
			n++
		}
	}
	return n
}
