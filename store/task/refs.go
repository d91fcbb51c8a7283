package task

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/pages"
)

// Refs is a task's copy of its refs. It reuses its memory. The zero value is ready for Set.
type Refs struct {
	Refs     []pages.Ref
	Keys     []block.Key // by ref
	Groups   []uint8     // by ref: page group
	checker  pages.Checker
	selected []block.Key
}

// Set copies and validates refs. If unique is set, each page may be named only once.
func (r *Refs) Set(m *pages.Map, p *pages.Pages, refs []pages.Ref, unique bool) error {
	r.Refs = append(r.Refs[:0], refs...)
	r.Keys, r.Groups = r.Keys[:0], r.Groups[:0]
	for i := range refs {
		r.Keys = append(r.Keys, refs[i].Key)
		// Check will refuse keys of no group.
		r.Groups = append(r.Groups, uint8(m.Formats.Group(refs[i].Key)))
	}
	r.checker.Reset(m, p, unique)
	return r.checker.Check(refs, r.Groups)
}

// KeysOf returns the keys of refs. The result is valid until the next call.
func (r *Refs) KeysOf(items []int32) []block.Key {
	first := int(items[0])
	for k, i := range items {
		if int(i) != first+k { // rare: the refs are not contiguous
			r.selected = r.selected[:0]
			for _, i := range items {
				r.selected = append(r.selected, r.Keys[i])
			}
			return r.selected
		}
	}
	return r.Keys[first:][:len(items)]
}
