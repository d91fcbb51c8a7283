package file

import (
	"path/filepath"
	"sync"

	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// OpenFolders has the tiers of this process that share a bound: see Config.OpenFolders. The zero
// value is ready. It is safe for concurrent use.
type OpenFolders struct {
	mu    sync.Mutex
	areas map[string]*area // by the path of a directory
}

func folderPath(root string) string { return filepath.Dir(root) + "/" + filepath.Base(root) }

// add adds the directories of t. It does nothing for nil.
func (o *OpenFolders) add(t *Tier) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.areas == nil {
		o.areas = make(map[string]*area)
	}
	for _, d := range t.dirs {
		o.areas[folderPath(d.root)] = d.area
	}
}

// remove removes the directories of t. It does nothing for nil.
func (o *OpenFolders) remove(t *Tier) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range t.dirs {
		if o.areas[folderPath(d.root)] == d.area {
			delete(o.areas, folderPath(d.root))
		}
	}
}

// read sets the size of a folder that is open in this process, without reading its record. It
// reports whether it is open. Otherwise n.read must read the record again.
func (o *OpenFolders) read(n *neighbour) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	other := o.areas[n.path()]
	o.mu.Unlock()
	if other == nil {
		if n.local {
			*n = neighbour{parent: n.parent, name: n.name}
		}
		return false
	}
	bytes := other.storedBytes()
	n.record = blockdir.Record{Bytes: bytes, Peak: max(bytes, other.space.demand())}
	n.local, n.known, n.inUse, n.answered, n.checked, n.cold = true, true, true, true, false, nil
	return true
}
