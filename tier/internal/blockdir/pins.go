package blockdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// The names of the list of a directory's pinned blocks.
const (
	PinsName = "kvlane.pins"
	PinsTemp = "kvlane.pins.tmp" // temporary name, used under the directory's lock
)

const (
	pinsTitle = "kvlane pinned blocks 1"
	// MaxPins is the maximum number of pinned blocks of a directory.
	MaxPins = 1 << 16
	// pinBytes is the length of an entry: a key, a space, a checksum and the end of the line.
	pinBytes = 2*len(block.Key{}) + 1 + 8 + 1
	maxPins  = int64(64 + MaxPins*pinBytes) // bytes of the file
)

// PinSet is a set of pinned blocks.
type PinSet map[block.Key]bool

// Bytes returns the total length of the blocks' images.
func (s PinSet) Bytes(formats block.Formats) (n int64) {
	for key := range s {
		n += formats.ImageBytes(key)
	}
	return n
}

// sumOfPin returns the checksum of an entry.
func sumOfPin(key block.Key) uint32 { return uint32(xxh3.Hash(append([]byte(pinsTitle), key[:]...))) }

// Encode returns the content of kvlane.pins: a title with the number of entries, and a line for
// each entry with a key and a checksum.
func (s PinSet) Encode() []byte {
	lines := make([]string, 0, len(s))
	for key := range s {
		lines = append(lines, fmt.Sprintf("%s %08x\n", key, sumOfPin(key)))
	}
	slices.Sort(lines)
	return fmt.Appendf(nil, "%s %d\n%s", pinsTitle, len(s), strings.Join(lines, ""))
}

// ParsePins parses kvlane.pins. If the content is not what Encode wrote, ParsePins returns the
// intact entries and ErrCorrupt.
func ParsePins(b []byte) (PinSet, error) {
	set := make(PinSet)
	_, rest, _ := strings.Cut(string(b), "\n")
	for line := range strings.Lines(rest) {
		key, sum, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		k, err := block.ParseKey(key)
		if err == nil && sum == fmt.Sprintf("%08x", sumOfPin(k)) && len(set) < MaxPins {
			set[k] = true
		}
	}
	if !bytes.Equal(set.Encode(), b) {
		return set, fmt.Errorf("%s: %d entries are intact, and others are damaged or missing: %w", PinsName, len(set), errdefs.ErrCorrupt)
	}
	return set, nil
}

// ReadPins reads the pins of a directory. A missing file is an empty set. If the file is damaged,
// ReadPins returns the intact entries and ErrCorrupt.
func ReadPins(d dirfs.Dir) (_ PinSet, err error) {
	f, err := d.Open(PinsName, os.O_RDONLY)
	if errors.Is(err, dirfs.ErrIrregular) {
		return make(PinSet), fmt.Errorf("read %s: %w: %w", PinsName, errdefs.ErrCorrupt, err)
	}
	if Gone(err) {
		return make(PinSet), nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxPins))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", PinsName, err)
	}
	return ParsePins(b)
}

// WritePins replaces the pins of a directory durably. The caller holds the directory's lock.
func WritePins(d dirfs.Dir, set PinSet) error {
	if err := Remove(d, PinsTemp); err != nil {
		return err
	}
	if _, err := WriteFile(d, PinsTemp, set.Encode(), true); err != nil {
		return fmt.Errorf("write %s: %w", PinsName, err)
	}
	if err := d.Rename(PinsTemp, PinsName, true); err != nil {
		return fmt.Errorf("write %s: %w", PinsName, errors.Join(err, Remove(d, PinsTemp)))
	}
	return SyncRoot(d)
}

// Pinned is the result of Pin and Unpin for a directory.
type Pinned struct {
	Selected []block.Key // of the selected blocks; for Unpin, of those that were pinned
	Keys     []block.Key // of the blocks whose pins have changed
	Bytes    int64       // of their images
	Total    Totals      // of the pinned blocks afterwards
}

// ErrPinLimit is returned if more blocks would be pinned than the limit allows.
var ErrPinLimit = fmt.Errorf("the limit of pins: %w", errdefs.ErrNoSpace)

// PinLimit limits the pins of a directory.
type PinLimit struct {
	Formats block.Formats
	// Bound is the bound of the directory in bytes, of which half may be pinned; zero: no limit.
	Bound int64
	// Others is the number of pinned bytes in other directories with the same bound.
	Others int64
	// Has reports whether a block is stored. The pins of missing blocks are removed if the limit is
	// exceeded.
	Has func(key block.Key) (bool, error)
}

// Add adds keys to the set. It returns ErrPinLimit, and adds none, if they exceed the limit.
func (l *PinLimit) Add(set PinSet, keys []block.Key) error {
	more := make(PinSet)
	for _, key := range keys {
		if !set[key] {
			more[key] = true
		}
	}
	exceeds := func() error {
		have, want := set.Bytes(l.Formats)+l.Others, more.Bytes(l.Formats)
		switch {
		case len(set)+len(more) > MaxPins:
			return fmt.Errorf("%d blocks are pinned, %d more are selected, and a directory may have %d: %w",
				len(set), len(more), MaxPins, ErrPinLimit)
		case l.Bound > 0 && have+want > l.Bound/2:
			return fmt.Errorf("%d bytes are pinned, %d more are selected, and %d bytes may be pinned, half of the bound: %w",
				have, want, l.Bound/2, ErrPinLimit)
		}
		return nil
	}
	if len(more) > 0 && exceeds() != nil {
		for key := range set {
			if has, err := l.Has(key); err == nil && !has {
				delete(set, key)
			}
		}
		if err := exceeds(); err != nil {
			return err
		}
	}
	maps.Copy(set, more)
	return nil
}

// keyPins holds pins of keys in memory, as usage.KeyLocks does.
type keyPins interface {
	Pin(key block.Key) bool
	Unpin(keys []block.Key) bool
}

// Pins is a process's copy of the pins of a directory. It is safe for concurrent use.
type Pins struct {
	locks  keyPins       // has a pin of each block
	access chan struct{} // holds an element during an access to the file; guards info
	info   dirfs.Info    // of the file that was read last

	mu  sync.Mutex
	set PinSet
}

// NewPins returns a copy without pins.
func NewPins(locks keyPins) *Pins {
	return &Pins{locks: locks, access: make(chan struct{}, 1), set: make(PinSet)}
}

// Has reports whether the block is pinned.
func (p *Pins) Has(key block.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set[key]
}

// Total returns the number of pinned blocks, and their bytes.
func (p *Pins) Total(formats block.Formats) Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Totals{int64(len(p.set)), p.set.Bytes(formats)}
}

// Refresh reads the pins of the directory if another process has changed them. It reports whether a
// block lost its pin. If the file is damaged, the intact entries are in force, and Refresh returns
// ErrCorrupt once.
func (p *Pins) Refresh(d dirfs.Dir) (unpinned bool, err error) {
	p.access <- struct{}{}
	defer func() { <-p.access }()
	info, err := d.Stat(PinsName)
	if Gone(err) {
		info, err = dirfs.Info{}, nil
	}
	if err != nil || info.Inode == p.info.Inode && info.Bytes == p.info.Bytes && info.Modified.Equal(p.info.Modified) {
		return false, err
	}
	set, err := ReadPins(d)
	if err != nil && !errors.Is(err, errdefs.ErrCorrupt) {
		return false, err
	}
	unpinned, complete := p.become(set)
	if complete {
		p.info = info
	}
	return unpinned, err
}

// Update changes the pins of the directory durably, and reports whether a block lost its pin. The
// caller holds the directory's lock. If change returns an error, nothing changes. Damaged entries
// are removed.
func (p *Pins) Update(d dirfs.Dir, change func(set PinSet) error) (unpinned bool, err error) {
	p.access <- struct{}{}
	defer func() { <-p.access }()
	set, err := updatePins(d, change)
	if err != nil {
		return false, err
	}
	p.info = dirfs.Info{} // Refresh reads the new file
	unpinned, _ = p.become(set)
	return unpinned, nil
}

// ChangePins implements Pins.Update for a directory that no process has open.
func ChangePins(d dirfs.Dir, formats block.Formats, change func(set PinSet) (selected []block.Key, err error)) (p Pinned, err error) {
	var old PinSet
	set, err := updatePins(d, func(set PinSet) (err error) {
		old = maps.Clone(set)
		p.Selected, err = change(set)
		return err
	})
	for key := range old {
		if !set[key] {
			p.Keys = append(p.Keys, key)
		}
	}
	for key := range set {
		if !old[key] {
			p.Keys = append(p.Keys, key)
		}
	}
	for _, key := range p.Keys {
		p.Bytes += formats.ImageBytes(key)
	}
	p.Total = Totals{int64(len(set)), set.Bytes(formats)}
	return p, err
}

func updatePins(d dirfs.Dir, change func(set PinSet) error) (PinSet, error) {
	set, err := ReadPins(d)
	damaged := errors.Is(err, errdefs.ErrCorrupt)
	if err != nil && !damaged {
		return nil, err
	}
	old := maps.Clone(set)
	if err := change(set); err != nil {
		return nil, err
	}
	if damaged || !maps.Equal(old, set) {
		err = WritePins(d, set)
	}
	return set, err
}

// become changes the set in memory. complete is false if a block that is being removed could not be
// pinned.
func (p *Pins) become(set PinSet) (unpinned, complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	complete = true
	for key := range set {
		switch {
		case p.set[key]:
		case p.locks.Pin(key):
			p.set[key] = true
		default:
			complete = false
		}
	}
	var gone []block.Key
	for key := range p.set {
		if !set[key] {
			gone = append(gone, key)
			delete(p.set, key)
		}
	}
	return p.locks.Unpin(gone), complete
}
