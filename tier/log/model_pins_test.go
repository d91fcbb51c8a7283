package log_test

import (
	"errors"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
	"github.com/kvlane/kvlane/tier/log"
)

// pinState is the expected state of a block's pin.
type pinState uint8

const (
	unpinned pinState = iota
	pinned
	eitherPin // an operation on the pin crashed, or a power failure may have lost the block
)

// pinSome pins or unpins a block, once in n calls.
func (m *model) pinSome(n int) {
	m.Helper()
	if m.pinRng == nil || m.pinRng.IntN(n) > 0 {
		return
	}
	m.observe() // the last step may have evicted the block
	k := m.pinRng.IntN(modelKeys)
	keys := []block.Key{m.keys[k]}
	if m.pinRng.IntN(3) == 0 {
		err := m.tr.Unpin(m.Context(), keys)
		m.addHistory("unpins %d: %v", k, err)
		if m.pins[k] = unpinned; errors.Is(err, faultfs.ErrCrashed) {
			m.pins[k], m.crashed = eitherPin, true
		} else if err != nil {
			m.Fatal(err)
		}
		return
	}
	have := int64(0)
	for _, p := range m.pins {
		if p != unpinned {
			have++
		}
	}
	err := m.tr.Pin(m.Context(), keys)
	m.addHistory("pins %d: %v", k, err)
	b := &m.blocks[k]
	exceeds := m.c.MaxBytes > 0 && m.pins[k] == unpinned && (have+1)*m.f.Layout.ImageBytes() > m.c.MaxBytes/2
	switch {
	case err == nil && !exceeds && (b.stored || b.unsure):
		m.pins[k] = pinned
		// Under FsyncNever a copy in another segment may not be durable.
		b.promised = b.promised || b.stored && m.c.Fsync != log.FsyncNever
	case errors.Is(err, errdefs.ErrNotFound) && (!b.stored || b.unsure):
	case errors.Is(err, file.ErrPinLimit) && exceeds:
	case errors.Is(err, faultfs.ErrCrashed):
		m.pins[k], m.crashed = eitherPin, true
	default:
		m.Fatalf("block %d is %+v, %d blocks are pinned, and pin returned %v", k, *b, have, err)
	}
}

// observePins compares the list of pins with the model.
func (m *model) observePins() {
	m.Helper()
	process := m.Process()
	defer process.Kill()
	d, err := process.OpenDir(m.c.Dir)
	if err != nil {
		m.Fatal(err)
	}
	set, err := blockdir.ReadPins(d)
	if err != nil {
		m.Fatal(err)
	}
	for k, key := range m.keys {
		is := unpinned
		if set[key] {
			is = pinned
		}
		torn := m.failed && m.c.Fsync == log.FsyncNever && is == unpinned // perhaps: its pin goes
		if m.pins[k] != is && m.pins[k] != eitherPin && !torn {
			m.Fatalf("block %d is %+v, its pin was %d and is %d", k, m.blocks[k], m.pins[k], is)
		}
		m.pins[k] = is
	}
	if st := m.tr.Stats(); st.Pinned != int64(len(set)) && !m.crashed {
		m.Fatalf("%d blocks are pinned, and %d are counted", len(set), st.Pinned)
	}
}
