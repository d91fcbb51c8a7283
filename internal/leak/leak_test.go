package leak_test

import (
	"maps"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestLiveNamesWhatIsHeldAndForgetsWhatIsGivenBack(t *testing.T) {
	before := leak.Live()
	leak.Add(leak.Queues, 2)
	leak.Add(leak.DeviceBytes, 4096)
	leak.Add(leak.DeviceBytes, -4096)
	leak.Add(leak.Events, -1)
	got := leak.Live()
	leak.Add(leak.Queues, -2)
	leak.Add(leak.Events, 1)
	want := map[string]int64{"queues": 2, "events": -1}
	if !maps.Equal(got, want) {
		t.Errorf("live = %v, want %v", got, want)
	}
	if after := leak.Live(); !maps.Equal(after, before) {
		t.Errorf("after giving everything back: %v, want %v", after, before)
	}
}

func TestEveryKindHasAName(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range []leak.Kind{
		leak.PinnedBytes, leak.RegisteredBytes, leak.DeviceBytes, leak.HostBytes, leak.ImportedBytes, leak.Queues, leak.Events, leak.Handles,
	} {
		if s := k.String(); s == "" || seen[s] {
			t.Errorf("kind %d has the name %q, which is empty or taken", uint8(k), s)
		}
		seen[k.String()] = true
	}
	if got := leak.Kind(200).String(); got != "kind(200)" {
		t.Errorf("unknown kind prints %q", got)
	}
}

func TestAddFromManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				leak.Add(leak.Handles, 3)
				leak.Add(leak.Handles, -3)
			}
		})
	}
	wg.Wait()
	if n := leak.Live()[leak.Handles.String()]; n != 0 {
		t.Errorf("%d handles live, want none", n)
	}
}
