package object

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Lengths of names in bytes. Anchors and parts only group objects, so they are shortened.
const (
	anchorBytes = 16
	partBytes   = 8
)

// versionFolder is the folder of all blocks of this build's format version.
var versionFolder = fmt.Sprintf("v%d/", block.FormatVersion)

// folderName returns the folder of a store. It is the identity of the only page group, or a hash of
// all identities.
func folderName(formats block.Formats) string {
	if len(formats) == 1 {
		return versionFolder + formats[0].Identity.String()
	}
	var ids [][]byte
	for _, f := range formats {
		ids = append(ids, f.Identity[:])
	}
	slices.SortFunc(ids, bytes.Compare)
	var sum block.Digest
	blake3.DeriveKey("github.com/kvlane/kvlane 2026-11 object folder v1", bytes.Join(ids, nil), sum[:])
	return versionFolder + sum.String()
}

// place is the place of a block. The names of its run and part end in a slash.
type place struct {
	run, part, name string
	alone           bool // it has no anchor
}

// place returns the place of a block. A block without an anchor is a run of its own.
func (t *Tier) place(key block.Key) place {
	anchor, part, ok := t.anchors.Load().Part(key)
	if !ok {
		t.unanchored.Add(1)
		anchor, part = key, key
	}
	anchor, part = t.c.Formats.Untagged(anchor), t.c.Formats.Untagged(part)
	p := place{alone: !ok}
	p.run = t.folder + hex.EncodeToString(anchor[:anchorBytes]) + "/"
	p.part = p.run + hex.EncodeToString(part[:partBytes]) + "/"
	p.name = p.part + key.String()
	return p
}

// keyOf returns the key in the name of an object below a folder, and false for other objects.
func keyOf(folder, name string) (key block.Key, ok bool) {
	rest, below := strings.CutPrefix(name, folder)
	parts := strings.Split(rest, "/")
	if !below || len(parts) != 3 || len(parts[0]) != 2*anchorBytes || len(parts[1]) != 2*partBytes {
		return key, false
	}
	key, err := block.ParseKey(parts[2])
	return key, err == nil && key.String() == parts[2]
}

// markerName returns the name of the marker of a folder.
func markerName(folder string) string { return folder + blockdir.MarkerName }
