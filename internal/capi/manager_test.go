package capi_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/capi"
)

func manage(t *testing.T, lib *capi.Library, blocks int, dir string) capi.Handle {
	t.Helper()
	config, err := json.Marshal(map[string]any{"ranks": []json.RawMessage{configuration(t, dir, nil)}, "blocks": blocks})
	if err != nil {
		t.Fatal(err)
	}
	m, err := lib.OpenManager(config)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// named returns the names of blocks, one letter each.
func named(letters string) *capi.Names {
	n := &capi.Names{HashBytes: 4, N: len(letters)}
	for _, c := range letters {
		n.Hashes = append(n.Hashes, byte(c), 0, 1, 2)
	}
	return n
}

// evicted returns the letters of the blocks that a job evicts.
func evicted(t *testing.T, lib *capi.Library, job capi.Handle) string {
	t.Helper()
	_, n, err := lib.JobSize(job)
	if err != nil {
		t.Fatal(err)
	}
	groups, hashes := make([]uint32, n), make([]byte, 4*n)
	if err := lib.JobEvicted(job, groups, hashes, 4); err != nil {
		t.Fatal(err)
	}
	var letters []byte
	for i := range n {
		letters = append(letters, hashes[4*i])
	}
	return string(letters)
}

// A worker executes the manager's jobs, from store to eviction.
func TestManagerAndItsWorker(t *testing.T) {
	lib, dir := capi.New(), t.TempDir()
	p := start(t, lib, configuration(t, dir, nil), pages)
	m := manage(t, lib, 2, dir)
	lookup := func(letters string) []uint8 {
		t.Helper()
		states := make([]uint8, len(letters))
		p.must(lib.ManagerLookup(m, named(letters), states))
		return states
	}
	keys := func(letters string) []kvlane.Key {
		t.Helper()
		n := named(letters)
		keys := make([]kvlane.Key, n.N)
		p.must(lib.Keys(p.engine, 0, n.Hashes, n.HashBytes, keys))
		return keys
	}
	store := func(letters string) capi.Handle {
		t.Helper()
		chosen := make([]uint8, len(letters))
		job, err := lib.ManagerStore(m, named(letters), chosen)
		p.must(err)
		if gone := evicted(t, lib, job); gone != "" {
			stay, err := lib.Drop(p.engine, keys(gone))
			if err != nil || stay != 0 {
				t.Fatal(stay, err)
			}
		}
		p.dump(keys(letters))
		return job
	}
	job := store("ab")
	if got := lookup("abc"); !slices.Equal(got, []uint8{1, 1, 0}) {
		t.Errorf("states while the blocks are stored: %v", got)
	}
	want(t, "results of others", lib.JobEnd(job, make([]uint8, 3)), capi.Invalid)
	p.must(lib.JobEnd(job, nil))
	want(t, "an end again", lib.JobEnd(job, nil), capi.Invalid)
	p.must(lib.ManagerTouch(m, named("ab")))
	job = store("c")
	p.must(lib.JobEnd(job, nil))
	if got := lookup("abc"); !slices.Equal(got, []uint8{2, 3, 2}) { // b is the end of its prefix, so it is evicted before a
		t.Errorf("in memory and in files: %v", got)
	}
	p.must(lib.ManagerComputed(m, 1000, 1))
	if n, err := lib.ManagerWorth(m, named("abc"), lookup("abc"), 96, 0); n != 3 || err != nil {
		t.Errorf("%d of 3 blocks are worth loading, %v", n, err)
	}
	_, err := lib.ManagerWorth(m, named("abc"), lookup("abc"), -1, 0)
	want(t, "a number of tokens", err, capi.Invalid)
	want(t, "a time", lib.ManagerComputed(m, 1000, 0), capi.Invalid)
	_, err = lib.ManagerLoad(m, named("abc"))
	want(t, "a load of three where two have room", err, capi.Busy)
	load, err := lib.ManagerLoad(m, named("ab"))
	p.must(err)
	task, err := lib.Load(p.engine, 0, p.cache, keys("ab"), upTo(2), 0, nil)
	p.must(err)
	p.must(lib.Wait(task, capi.Done, patience))
	p.must(lib.JobLoaded(load, 0.1, 0.2))
	want(t, "a load in a negative time", lib.JobLoaded(load, -1, 0), capi.Invalid)
	want(t, "a wait that is no number", lib.JobLoaded(load, 1, nan()), capi.Invalid)
	p.must(lib.JobEnd(load, []uint8{0, 1}))
	p.must(lib.ManagerForget(m, named("a")))
	p.must(lib.ManagerReset(m))
	chosen := make([]uint8, 2)
	job, err = lib.ManagerStore(m, named("bd"), chosen, named("a"))
	p.must(err)
	if gone := evicted(t, lib, job); !slices.Equal(chosen, []uint8{1, 1}) || len(gone) == 0 {
		t.Errorf("stores %v, drops %q", chosen, gone)
	}
	want(t, "closing with a job", lib.CloseManager(m, 0), capi.Busy)
	p.must(lib.JobEnd(job, []uint8{1, 1}))
	var stats map[string]any
	b, err := lib.ManagerStats(m)
	p.must(err)
	p.must(json.Unmarshal(b, &stats))
	if stats["forgotten"] != 4.0 || stats["jobs"] != 0.0 || stats["blocks"] != 0.0 {
		t.Errorf("%s", b)
	}
	p.must(lib.CloseManager(m, patience))
	want(t, "a manager that is closed", lib.ManagerReset(m), capi.Closed)
}

// A worker that cannot load a direct job directly reports the blocks that entered its cache.
func TestDirectJobOfAManager(t *testing.T) {
	lib, dir := capi.New(), t.TempDir()
	p := start(t, lib, configuration(t, dir, nil), pages)
	config, err := json.Marshal(map[string]any{"ranks": []json.RawMessage{configuration(t, dir, nil)}, "direct": true})
	p.must(err)
	m, err := lib.OpenManager(config)
	p.must(err)
	keys := make([]kvlane.Key, 1)
	n := named("a")
	p.must(lib.Keys(p.engine, 0, n.Hashes, n.HashBytes, keys))
	p.dump(keys)
	if stay, err := lib.Drop(p.engine, keys); stay != 0 || err != nil {
		t.Fatal(stay, err)
	}
	for _, direct := range []bool{true, false} { // the second request goes through the pools
		job, err := lib.ManagerLoad(m, n)
		p.must(err)
		if got, err := lib.JobDirect(job); got != direct || err != nil {
			t.Errorf("the job is direct: %t, %v, want %t", got, err, direct)
		}
		task, err := lib.Load(p.engine, 0, p.cache, keys, upTo(1), map[bool]uint32{true: capi.Bypass, false: capi.Promote}[direct], nil)
		p.must(err)
		p.must(lib.Wait(task, capi.Done, patience))
		p.must(lib.JobEnd(job, []uint8{capi.Pooled}))
		job, err = lib.ManagerStore(m, named(""), nil)
		p.must(err)
		if gone, want := evicted(t, lib, job), map[bool]string{true: "a", false: ""}[direct]; gone != want {
			t.Errorf("after a direct job %t the workers drop %q, want %q", direct, gone, want)
		}
		p.must(lib.JobEnd(job, nil))
	}
	want(t, "no job", func() error { _, err := lib.JobDirect(m); return err }(), capi.Invalid)
	p.must(lib.CloseManager(m, patience))
}

func TestManagerRefusesWhatIsWrong(t *testing.T) {
	lib := capi.New()
	for _, config := range []string{
		`[]`, `{`, `{"rank": 1}`, `{"ranks": [{}]}`, `{"ranks": 1}`, `{"ranks": [], "blocks": 2}`, `{"blocks": -1}`,
		`{"ranks": [{"modell": {}}]}`,
	} {
		_, err := lib.OpenManager([]byte(config))
		want(t, config, err, capi.Invalid)
	}
	m := manage(t, lib, 0, t.TempDir())
	for what, n := range map[string]*capi.Names{
		"no hash":      {N: 1, HashBytes: 0},
		"half a hash":  {N: 1, HashBytes: 4, Hashes: []byte{1, 2}},
		"groups":       {N: 1, HashBytes: 1, Hashes: []byte{1}, Groups: []uint32{0, 0}},
		"such a group": {N: 1, HashBytes: 1, Hashes: []byte{1}, Groups: []uint32{7}},
	} {
		want(t, what, lib.ManagerLookup(m, n, make([]uint8, 1)), capi.Invalid)
		_, err := lib.ManagerLoad(m, n)
		want(t, what, err, capi.Invalid)
		_, err = lib.ManagerStore(m, n, make([]uint8, 1))
		want(t, what, err, capi.Invalid)
		want(t, what, lib.ManagerForget(m, n), capi.Invalid)
		want(t, what, lib.ManagerTouch(m, n), capi.Invalid)
	}
	_, err := lib.ManagerLoad(m, named("a"))
	want(t, "a load of what is not there", err, capi.NotFound)
	if err := lib.CloseManager(m, patience); err != nil {
		t.Error(err)
	}
}
