package tier

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
)

func TestWhyTexts(t *testing.T) {
	at := time.Unix(1000, 0)
	const clock = "1970-01-01T00:16:40Z"
	removed := &Removal{Time: at, Cause: CauseBound, PID: 12, Process: "vllm"}
	memory := InTier{Tier: "cache"}
	below := func(e Explanation) Why { return Why{Tiers: []InTier{memory, {Tier: "file", Explanation: e}}} }
	ready := below(Explanation{State: Ready, Stored: at, Used: at})
	both := Why{Tiers: []InTier{{Tier: "cache", Explanation: Explanation{State: Ready}}, ready.Tiers[1]}, Computed: at}
	gone := below(Explanation{Removed: removed, Recorded: at})
	inMemory := Why{Tiers: []InTier{{Tier: "cache", Explanation: Explanation{Removed: removed}}, {Tier: "file"}}}
	for want, blocks := range map[string][]Why{
		"there is no whole block": nil,
		"the block is stored in tier file since " + clock + ", last used " + clock:                                                             {ready},
		"the block is stored in tier cache; also in tier file; the store advised to compute it at " + clock + ", because loading it is slower": {both},
		"the block was removed from tier file by the size bound at " + clock + ", process 12 (vllm)":                                           {gone},
		"the block was removed from tier cache by the size bound at " + clock + ", process 12 (vllm)":                                          {inMemory},
		"the block is not stored in tier file, and no removal is recorded":                                                                     {below(Explanation{})},
		"the block was never stored in tier file, or removed before " + clock:                                                                  {below(Explanation{Recorded: at})},
		"the block was not stored in tier file when it was last dumped: no space":                                                              {below(Explanation{Refused: "no space", Removed: removed})},
		"the block is damaged in tier file; 3 bytes":                                                                                           {below(Explanation{State: Failed, Reason: "3 bytes"})},
		"the block is not found in tier file: refused; asked a":                                                                                {below(Explanation{Error: "refused", Reason: "asked a"})},
		"the block is being stored in tier file":                                                                                               {below(Explanation{State: Filling})},
		"the block is of no page group of this store: the key has another identity":                                                            {{Other: true}},
		"all 2 blocks are stored": {ready, both},
		"the first 1 of 3 blocks are stored; block 1 was removed from tier file by the size bound at " + clock + ", process 12 (vllm)":                       {ready, gone, gone},
		"the first of 2 blocks is not stored; block 0 is damaged in tier file; stored too: 1 of the later blocks, but a prompt needs all blocks before them": {below(Explanation{State: Failed}), ready},
	} {
		if got := Verdict(blocks); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	text, err := json.Marshal(gone.Tiers[1])
	if want := `{"tier":"file","state":"absent","removed":{"time":"` + at.Format(time.RFC3339) + `","cause":"bound","pid":12,"process":"vllm"},"recorded":"` + at.Format(time.RFC3339) + `"}`; err != nil || string(text) != want {
		t.Errorf("got  %s, %v\nwant %s", text, err, want)
	}
	if c := Cause(200); c.String() != CauseUnknown.String() {
		t.Errorf("a cause of a later build: %s", c)
	}
}

func TestRecentKeepsTheLast(t *testing.T) {
	key := func(n byte) block.Key { return block.Key{n} }
	r := NewRecent[int](3)
	r.Add(1, key(1), key(2))
	r.Add(2, key(1)) // the oldest place is now free for another key
	r.Add(3, key(3), key(4))
	for n, want := range map[byte]int{1: 2, 2: 0, 3: 3, 4: 3, 5: 0} {
		if got, ok := r.Get(key(n)); got != want || ok != (want > 0) {
			t.Errorf("block %d: %d, %t; expected %d", n, got, ok, want)
		}
	}
	for n := range 100 {
		r.Add(n, key(byte(n)))
	}
	if n := len(r.of); n != 3 {
		t.Errorf("%d blocks are kept", n)
	}
}
