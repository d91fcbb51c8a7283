package remote_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/tier/remote"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func members(weights ...int) (list []metadata.Member) {
	for i, w := range weights {
		list = append(list, metadata.Member{Name: fmt.Sprintf("host-%d:9000", i), Weight: w})
	}
	return list
}

const runs = 20000

// place returns the names of the servers of all runs.
func place(list []metadata.Member) (names []string) {
	p := remote.NewPlacement(list)
	for i := range runs {
		names = append(names, list[p.Server(tiertest.Key(i))].Name)
	}
	return names
}

func TestPlacementFollowsWeights(t *testing.T) {
	for _, weights := range [][]int{{1}, {1, 1, 1, 1}, {1, 2, 5}, {7, 7, 7, 7, 7, 7, 7, 7}, {1, 1 << 16}} {
		list, total := members(weights...), 0
		count := make(map[string]int)
		for _, name := range place(list) {
			count[name]++
		}
		for _, w := range weights {
			total += w
		}
		for i, w := range weights {
			share := float64(w) / float64(total)
			want, got := share*runs, float64(count[list[i].Name])
			if sigma := math.Sqrt(want * (1 - share)); math.Abs(got-want) > 5*sigma+1 {
				t.Errorf("weights %v: server %d has %.0f of %d runs, want %.0f", weights, i, got, runs, want)
			}
		}
	}
}

func TestPlacementMovesLittle(t *testing.T) {
	list := members(1, 2, 3, 4)
	before := place(list)
	// A server is removed: only its runs move.
	for i, name := range place(append(members(1, 2), list[3])) {
		if before[i] != list[2].Name && name != before[i] {
			t.Fatalf("run %d moved from %s to %s, but %s was removed", i, before[i], name, list[2].Name)
		}
	}
	// A server is added, or its weight grows: runs move only to it.
	for what, after := range map[string][]string{"host-4:9000": place(members(1, 2, 3, 4, 5)), "host-1:9000": place(members(1, 6, 3, 4))} {
		moved := 0
		for i, name := range after {
			if name != before[i] {
				moved++
				if name != what {
					t.Fatalf("run %d moved from %s to %s, want only moves to %s", i, before[i], name, what)
				}
			}
		}
		if moved == 0 || moved > runs/2 {
			t.Errorf("%d of %d runs moved to %s", moved, runs, what)
		}
	}
	// The order of the list does not matter.
	list[0], list[3] = list[3], list[0]
	for i, name := range place(list) {
		if name != before[i] {
			t.Fatalf("run %d is at %s in another order, and was at %s", i, name, before[i])
		}
	}
}

// Placement is part of the format of the servers' contents: it never changes.
func TestPlacementIsFixed(t *testing.T) {
	p, got := remote.NewPlacement(members(1, 2, 3)), ""
	for i := range 40 {
		got += fmt.Sprint(p.Server(tiertest.Key(i)))
	}
	const want = "2211222121222121201120111121201221112112"
	if got != want {
		t.Errorf("servers %s, want %s", got, want)
	}
}
