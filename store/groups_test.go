package store_test

import (
	"testing"

	"github.com/kvlane/kvlane/store"
)

// TestModelOfGroups is TestModel with several page groups of different geometry, whose planes lie in the same memory; each task has
// blocks of all of them.
func TestModelOfGroups(t *testing.T) {
	t.Parallel()
	runModels(t, []modelConfig{
		{name: "two groups,cache-tiny", groups: 2, slots: 3, layerwise: true},
		{name: "two groups,cache,file,no leaves", groups: 2, dirs: 1, layerwise: true},
		{name: "two groups,device,cache-tiny,file,some sums", groups: 2, planeBytes: leafy, slots: 3, dirs: 1, sums: 2, layerwise: true},
		{name: "two groups,device,cache,wrong transfers", groups: 2, planeBytes: leafy, sums: 1, layerwise: true, corrupt: true},
		{name: "three groups,device,cache,two directories,planned paths", groups: 3, planeBytes: leafy, dirs: 2, layerwise: true, planned: true},
		{name: "three groups,cache-tiny,file,the stream's sums,faults", groups: 3, planeBytes: leafy, slots: 3, dirs: 1, faults: true, layerwise: true},
		{name: "always,two groups,cache,file,faults", policy: store.VerifyAlways, groups: 2, planeBytes: leafy, dirs: 1, faults: true, layerwise: true},
	})
}
