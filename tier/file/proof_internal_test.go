package file

import (
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// While the times of blocks were being renewed, a dump wrote those blocks again: the file already
// had its new time, but the proof still had the old one.
func TestDefectRenewedFileIsUnknown(t *testing.T) {
	var p proofs
	p.init()
	key, start := block.Key{8: 1, 16: 2}, time.Unix(1000, 0)
	at := func(seconds int) dirfs.Info {
		return dirfs.Info{Inode: 7, Modified: start.Add(time.Duration(seconds) * time.Second)}
	}
	known := func(seconds int, want bool) {
		t.Helper()
		if whole, synced := p.has(key, at(seconds)); whole != want || synced != want {
			t.Errorf("the file with time %d is known: %v, synced: %v, want %v", seconds, whole, synced, want)
		}
	}
	p.add(key, at(0), true)
	p.renew(key, at(0), at(1).Modified)
	known(0, true)
	known(1, true)
	p.add(key, at(0), false) // from a reader that opened the file before the renewal
	known(1, true)
	p.renew(key, at(1), at(2).Modified)
	known(1, true)
	known(2, true)
	known(0, false)
	p.renew(key, at(9), at(3).Modified) // a different file
	known(3, false)
}
