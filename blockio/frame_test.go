package blockio

import (
	"bytes"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/wire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// wide are the limits of all frame tests.
var wide = Limits{Entries: MaxEntries, Keys: MaxKeys, EntryBytes: MaxEntryBytes, RequestBytes: MaxRequestBytes, Credits: MaxCredits, KeepAliveMillis: 1000}

func key(n byte) (k block.Key) {
	for i := range k {
		k[i] = n + byte(i)
	}
	return k
}

func digest(n byte) block.Digest { return block.Digest(key(n)) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// requests returns a request of each kind.
func requests() map[string]*Request {
	id := IdentityHash(digest(0x40))
	pieces := []Entry{
		{Key: key(1), Identity: id, Length: 4096, Sum: 0x1122334455667788},
		{Key: key(2), Identity: id, Offset: 4096, Length: MaxEntryBytes, FirstShard: 1, EndShard: 3, Sum: 7},
	}
	read := slices.Clone(pieces)
	for i := range read {
		read[i].Sum = 0
	}
	far := slices.Clone(read)
	far[0].Addr, far[0].MemoryKey, far[1].Addr, far[1].MemoryKey = 0x7f00_0000_1000, 0xaabbccdd, 0x7f00_0000_2000, 5
	keys := []KeyEntry{{key(1), id}, {key(2), id}, {key(3), id}}
	return map[string]*Request{
		"store":         {Op: OpStore, ID: 0x0102030405060708, RemainingMillis: 250, Entries: pieces},
		"retrieve":      {Op: OpRetrieve, ID: 2, Phase: true, RemainingMillis: 100, Run: 0x04030201, Entries: read},
		"retrieve-rdma": {Op: OpRetrieve, ID: 3, Addressed: true, RemainingMillis: 100, ResponseAddr: 0x7f00_0000_0040, ResponseKey: 0x99887766, Entries: far},
		"exist":         {Op: OpExist, ID: 4, RemainingMillis: 20, Run: 7, Keys: keys},
		"lease":         {Op: OpLease, ID: 5, RemainingMillis: 20, LeaseMillis: 30000, Keys: keys},
		"renew":         {Op: OpRenew, ID: 6, RemainingMillis: 20, LeaseMillis: 30000, IDs: []uint64{9, 10}},
		"release":       {Op: OpRelease, ID: 7, RemainingMillis: 20, IDs: []uint64{9}},
		"delete":        {Op: OpDelete, ID: 8, RemainingMillis: 20, Keys: keys[:2]},
		"flush":         {Op: OpFlush, ID: 9, RemainingMillis: MaxMillis},
		"stat":          {Op: OpStat, ID: 10, RemainingMillis: 1000},
		"keep-alive":    {Op: OpKeepAlive, ID: 11, RemainingMillis: 1000},
		"cancel":        {Op: OpCancel, ID: 12, RemainingMillis: 200, IDs: []uint64{2}},
		"attach":        {Op: OpAttach, ID: 13, RemainingMillis: 200, Endpoint: endpoint()},
	}
}

// results returns a result of each kind, by the name of its request.
func results() map[string]*Result {
	return map[string]*Result{
		"store": {Op: OpStore, ID: 0x0102030405060708, Status: StatusPartial, Credits: 1, Bytes: 4096, Entries: []EntryResult{
			{Status: StatusOK, Bytes: 4096, Sum: 0x1122334455667788}, {Status: StatusNoSpace},
		}},
		"retrieve": {Op: OpRetrieve, ID: 2, Phase: true, Status: StatusOK, Credits: 2, Bytes: 4096 + MaxEntryBytes, Replicas: 4, Entries: []EntryResult{
			{Status: StatusOK, Bytes: 4096, Sum: 1}, {Status: StatusOK, Bytes: MaxEntryBytes, Sum: 2},
		}},
		"exist":      {Op: OpExist, ID: 4, Status: StatusOK, Credits: 1, Epoch: 1<<40 + 2, Presence: []Presence{{true, true}, {true, false}, {}}},
		"lease":      {Op: OpLease, ID: 5, Status: StatusOK, Credits: 1, LeaseMillis: 30000, LeaseID: 77, Leased: 2},
		"renew":      {Op: OpRenew, ID: 6, Status: StatusPartial, Credits: 1, LeaseMillis: 30000, Statuses: []Status{StatusOK, StatusNotFound}},
		"release":    {Op: OpRelease, ID: 7, Status: StatusOK, Credits: 1, Statuses: []Status{StatusOK}},
		"delete":     {Op: OpDelete, ID: 8, Status: StatusPartial, Credits: 1, Statuses: []Status{StatusLeased, StatusOK}},
		"flush":      {Op: OpFlush, ID: 9, Status: StatusBusy, Credits: 1},
		"stat":       {Op: OpStat, ID: 10, Status: StatusOK, Credits: 1, Stat: Stat{1, 2, 3, 4, 5, 6, 7, 8}},
		"keep-alive": {Op: OpKeepAlive, ID: 11, Status: StatusOK, Credits: 3},
		"cancel":     {Op: OpCancel, ID: 12, Status: StatusOK, Credits: 1},
		"attach":     {Op: OpAttach, ID: 13, Status: StatusOK, Endpoint: endpoint()},
	}
}

func endpoint() rdma.Endpoint {
	return rdma.Endpoint{QPNum: 0x123456, PSN: 0xabcdef, GID: rdma.GID{0: 0xfe, 1: 0x80, 15: 1}, LID: 7, MTU: rdma.MTU4096, RDepth: 16}
}

func hello() *Hello {
	return &Hello{
		ID: 1, RemainingMillis: 5000, Client: [16]byte(bytes.Repeat([]byte{0xc1}, 16)), Limits: DefaultLimits(), Token: []byte("secret"), Epoch: 1 << 40,
		Formats: []Format{{digest(0x40), []int64{4096, 100}}, {digest(0x60), []int64{1 << 20}}},
	}
}

func helloResult() *HelloResult {
	l := DefaultLimits()
	l.Credits = 16
	return &HelloResult{ID: 1, Status: StatusOK, Boot: [16]byte(bytes.Repeat([]byte{0xb0}, 16)), Limits: l, Zone: "eu-1a"}
}

// vectors returns all frames by the names of their golden files.
func vectors(tb testing.TB) map[string][]byte {
	tb.Helper()
	var p Packer
	all := make(map[string][]byte)
	put := func(name string, b []byte, err error) {
		must(tb, err)
		all[name] = b
	}
	for name, r := range requests() {
		b, err := p.Request(nil, r, &wide)
		put(name, b, err)
	}
	for name, r := range results() {
		b, err := p.Result(nil, r, &wide)
		put(name+"-result", b, err)
	}
	b, err := hello().Append(nil)
	put("hello", b, err)
	b, err = helloResult().Append(nil)
	put("hello-result", b, err)
	b, err = (&HelloResult{ID: 1, Status: StatusStale, Epoch: 1<<40 + 1}).Append(nil)
	put("hello-result-stale", b, err)
	return all
}

func TestFramesEqualTheirVectors(t *testing.T) {
	all := vectors(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		file := filepath.Join("testdata", name+".hex")
		var text strings.Builder
		for line := range slices.Chunk(all[name], 32) {
			text.WriteString(hex.EncodeToString(line) + "\n")
		}
		testkit.Generated(t, file, text.String())
	}
	files, err := filepath.Glob("testdata/*.hex")
	must(t, err)
	if len(files) != len(all) {
		t.Errorf("%d golden files for %d frames", len(files), len(all))
	}
	page, err := os.ReadFile("../docs/block-protocol.md")
	must(t, err)
	for name, data := range map[string]uint64{"retrieve": 0, "retrieve-result": 4096 + MaxEntryBytes, "cancel": 0} {
		var sent bytes.Buffer
		w := wire.NewFrameWriter(&sent)
		must(t, w.AppendHead(all[name], data))
		must(t, w.Flush())
		if prefix := "\n    " + hex.EncodeToString(sent.Next(wire.FramePrefixBytes)) + "  " + name + "\n"; !strings.Contains(string(page), prefix) {
			t.Errorf("docs/block-protocol.md has no line %s", prefix)
		}
		for line := range slices.Chunk(all[name], 32) {
			if !strings.Contains(string(page), hex.EncodeToString(line)) {
				t.Errorf("docs/block-protocol.md has no line %x of %s", line, name)
			}
		}
	}
}

func TestFramesAreDecoded(t *testing.T) {
	all := vectors(t)
	var q Request
	var r Result
	for name, want := range requests() {
		must(t, q.Decode(all[name], &wide))
		if d := cmp.Diff(*want, q, equalSlices()); d != "" {
			t.Errorf("%s (-packed +decoded):\n%s", name, d)
		}
		if res := results()[name]; res != nil {
			must(t, r.Decode(all[name+"-result"], &wide))
			if d := cmp.Diff(*res, r, equalSlices()); d != "" {
				t.Errorf("result of %s (-packed +decoded):\n%s", name, d)
			}
			must(t, r.Answers(&q))
		}
	}
	var h Hello
	must(t, h.Decode(all["hello"]))
	if d := cmp.Diff(*hello(), h); d != "" {
		t.Errorf("hello (-packed +decoded):\n%s", d)
	}
	var hr HelloResult
	must(t, hr.Decode(all["hello-result"]))
	must(t, hr.Answers(&h))
	if hr != *helloResult() {
		t.Errorf("result of hello is decoded as %+v", hr)
	}
}

// equalSlices treats empty and nil slices as equal.
func equalSlices() cmp.Option {
	return cmp.FilterPath(func(p cmp.Path) bool {
		vx, vy := p.Last().Values()
		return vx.IsValid() && vx.Kind().String() == "slice" && vx.Len() == 0 && vy.Len() == 0
	}, cmp.Ignore())
}

// No bit of a frame is ignored: changing one bit makes the frame invalid or changes a field.
func TestEveryBitOfAFrameCounts(t *testing.T) {
	for name, b := range vectors(t) {
		for i := range b {
			for n := range 8 {
				b[i] ^= 1 << n
				again, err := repack(b)
				if err == nil && !bytes.Equal(again, b) {
					t.Errorf("%s: bit %d of byte %d is ignored", name, n, i)
				}
				b[i] ^= 1 << n
			}
			if _, err := repack(b[:i]); err == nil {
				t.Errorf("%s: its first %d bytes are a frame", name, i)
			}
		}
	}
}

// repack decodes a frame of any kind, and packs it.
func repack(b []byte) ([]byte, error) {
	var p Packer
	var q Request
	var r Result
	var h Hello
	var hr HelloResult
	if h.Decode(b) == nil {
		return h.Append(nil)
	}
	if hr.Decode(b) == nil {
		return hr.Append(nil)
	}
	if q.Decode(b, &wide) == nil {
		return p.Request(nil, &q, &wide)
	}
	err := r.Decode(b, &wide)
	if err != nil {
		return nil, err
	}
	return p.Result(nil, &r, &wide)
}

func TestRequestsThatMayNotBeSent(t *testing.T) {
	narrow := Limits{Entries: 2, Keys: 3, EntryBytes: MaxEntryBytes, RequestBytes: MaxEntryBytes + 4096, Credits: 1, KeepAliveMillis: 1}
	for what, c := range map[string]struct {
		of     string
		change func(*Request)
	}{
		"no id":                        {"store", func(r *Request) { r.ID = 0 }},
		"no time":                      {"store", func(r *Request) { r.RemainingMillis = 0 }},
		"too much time":                {"store", func(r *Request) { r.RemainingMillis = MaxMillis + 1 }},
		"no entries":                   {"store", func(r *Request) { r.Entries = nil }},
		"too many entries":             {"store", func(r *Request) { r.Entries = append(r.Entries, r.Entries[0]) }},
		"too many bytes":               {"store", func(r *Request) { r.Entries[0].Length++ }},
		"a long entry":                 {"store", func(r *Request) { r.Entries[1].Length++ }},
		"an empty entry":               {"store", func(r *Request) { r.Entries[0].Length = 0 }},
		"an offset that overflows":     {"store", func(r *Request) { r.Entries[0].Offset = ^uint64(0) }},
		"an offset beyond images":      {"store", func(r *Request) { r.Entries[0].Offset = block.MaxImageBytes }},
		"a zero key":                   {"store", func(r *Request) { r.Entries[0].Key = block.Key{} }},
		"no identity":                  {"store", func(r *Request) { r.Entries[0].Identity = 0 }},
		"shards backwards":             {"store", func(r *Request) { r.Entries[1].FirstShard = 4 }},
		"too many shards":              {"store", func(r *Request) { r.Entries[1].EndShard = block.MaxShards + 1 }},
		"keys of another operation":    {"store", func(r *Request) { r.Keys = requests()["exist"].Keys }},
		"a lease of another operation": {"store", func(r *Request) { r.LeaseMillis = 1 }},
		"an address without the flag":  {"retrieve", func(r *Request) { r.Entries[0].Addr = 8 }},
		"a memory key without address": {"retrieve", func(r *Request) { r.Entries[0].MemoryKey = 8 }},
		"a checksum of a retrieve":     {"retrieve", func(r *Request) { r.Entries[0].Sum = 8 }},
		"no address with the flag":     {"retrieve-rdma", func(r *Request) { r.Entries[0].Addr = 0 }},
		"an address that overflows":    {"retrieve-rdma", func(r *Request) { r.Entries[0].Addr = ^r.Entries[0].Addr | r.Entries[0].Addr }},
		"a response key alone":         {"retrieve-rdma", func(r *Request) { r.ResponseAddr = 0 }},
		"too many keys":                {"exist", func(r *Request) { r.Keys = append(r.Keys, r.Keys[0]) }},
		"addresses of exist":           {"exist", func(r *Request) { r.Addressed = true }},
		"a lease of no time":           {"lease", func(r *Request) { r.LeaseMillis = 0 }},
		"a lease of too much time":     {"lease", func(r *Request) { r.LeaseMillis = MaxMillis + 1 }},
		"a zero lease":                 {"renew", func(r *Request) { r.IDs[1] = 0 }},
		"two cancelled requests":       {"cancel", func(r *Request) { r.IDs = []uint64{1, 2} }},
		"a cancelled cancel":           {"cancel", func(r *Request) { r.IDs[0] = r.ID }},
		"ids of stat":                  {"stat", func(r *Request) { r.IDs = []uint64{1} }},
		"hello":                        {"stat", func(r *Request) { r.Op = OpHello }},
		"a run of a store":             {"store", func(r *Request) { r.Run = 1 }},
		"an unknown operation":         {"stat", func(r *Request) { r.Op = ops }},
	} {
		r := requests()[c.of]
		var p Packer
		if _, err := p.Request(nil, r, &narrow); err != nil {
			t.Fatalf("%s: %v", c.of, err)
		}
		c.change(r)
		dst := []byte("abc")
		if b, err := p.Request(dst, r, &narrow); !errors.Is(err, errdefs.ErrInvalid) || string(b) != "abc" {
			t.Errorf("%s: packed as %x, %v", what, b, err)
		}
		var q Request
		if err := q.Decode(r.append(nil), &narrow); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: decoded: %v", what, err)
		}
	}
}

func TestResultsOfOtherRequestsAreRefused(t *testing.T) {
	for what, change := range map[string]func(*Result){
		"id": func(r *Result) { r.ID++ }, "phase": func(r *Result) { r.Phase = !r.Phase }, "op": func(r *Result) { r.Op = OpStore },
		"entries": func(r *Result) { r.Entries = r.Entries[:1] },
		"bytes":   func(r *Result) { r.Entries[0].Bytes-- },
	} {
		r := results()["retrieve"]
		must(t, r.Answers(requests()["retrieve"]))
		change(r)
		if err := r.Answers(requests()["retrieve"]); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("a result with another %s: %v", what, err)
		}
	}
	hot := results()["exist"]
	hot.Replicas = 2
	must(t, hot.Answers(requests()["exist"]))
	if err := hot.Answers(&Request{Op: OpExist, ID: 4, Keys: requests()["exist"].Keys}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("replicas of no run: %v", err)
	}
	lease := results()["lease"]
	lease.Leased = 4
	if err := lease.Answers(requests()["lease"]); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a lease of more keys than requested: %v", err)
	}
}

func TestResultsThatMayNotBeSent(t *testing.T) {
	for what, c := range map[string]struct {
		of     string
		change func(*Result)
	}{
		"one replica":                {"exist", func(r *Result) { r.Replicas = 1 }},
		"too many replicas":          {"exist", func(r *Result) { r.Replicas = MaxReplicas + 1 }},
		"replicas of a store":        {"store", func(r *Result) { r.Replicas = 2 }},
		"an epoch of a store":        {"store", func(r *Result) { r.Epoch = 1 }},
		"ok with a failed entry":     {"store", func(r *Result) { r.Status = StatusOK }},
		"partial without a failure":  {"retrieve", func(r *Result) { r.Status = StatusPartial }},
		"failed with entries":        {"retrieve", func(r *Result) { r.Status = StatusBusy }},
		"another sum of bytes":       {"retrieve", func(r *Result) { r.Bytes++ }},
		"ok without bytes":           {"store", func(r *Result) { r.Entries[0].Bytes = 0 }},
		"a partial entry":            {"store", func(r *Result) { r.Entries[1].Status = StatusPartial }},
		"no status":                  {"flush", func(r *Result) { r.Status = 0 }},
		"a partial flush":            {"flush", func(r *Result) { r.Status = StatusPartial }},
		"too many credits":           {"flush", func(r *Result) { r.Credits = MaxCredits + 1 }},
		"durable and not present":    {"exist", func(r *Result) { r.Presence[0].Present = false }},
		"a lease without an id":      {"lease", func(r *Result) { r.LeaseID = 0 }},
		"a lease without time":       {"lease", func(r *Result) { r.LeaseMillis = 0 }},
		"a lease of nothing":         {"lease", func(r *Result) { r.Leased, r.LeaseID = 0, 0 }},
		"figures of a flush":         {"flush", func(r *Result) { r.Stat.Blocks = 1 }},
		"the statuses of a lease":    {"lease", func(r *Result) { r.Statuses = []Status{StatusOK} }},
		"ok with a failed release":   {"delete", func(r *Result) { r.Status = StatusOK }},
		"an ok store with no result": {"store", func(r *Result) { r.Entries, r.Bytes = nil, 0 }},
	} {
		r := results()[c.of]
		before := r.append(nil)
		c.change(r)
		var p Packer
		if b, err := p.Result(nil, r, &wide); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: packed as %x, %v", what, b, err)
		}
		var d Result // a field that the frame does not contain is not decoded
		if err := d.Decode(r.append(nil), &wide); !errors.Is(err, errdefs.ErrInvalid) && !bytes.Equal(before, r.append(nil)) {
			t.Errorf("%s: decoded: %v", what, err)
		}
	}
}

func TestHelloOfAnotherVersionIsAMismatch(t *testing.T) {
	b := vectors(t)["hello"]
	b[0] = 2
	var h Hello
	var v *VersionError
	if err := h.Decode(b); !errors.Is(err, errdefs.ErrMismatch) || !errors.As(err, &v) || v.Version != 2 {
		t.Errorf("hello of version 2: %v", err)
	}
	two := hello()
	two.Formats[1].Identity = two.Formats[0].Identity
	if _, err := two.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("an identity declared twice: %v", err)
	}
	answer := helloResult()
	answer.Limits.Keys = DefaultLimits().Keys + 1
	if err := answer.Answers(hello()); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("limits above the proposed: %v", err)
	}
	for _, zone := range []string{"a b", "\n", "\u00e9", strings.Repeat("z", MaxZoneBytes+1)} {
		answer = helloResult()
		answer.Zone = zone
		if _, err := answer.Append(nil); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
}

func TestStatusesAreErrors(t *testing.T) {
	for s := StatusOK; s < statuses; s++ {
		if got := StatusOf(s.Err()); s != StatusLeased && s != StatusPartial && got != s {
			t.Errorf("the error of %v has status %v", s, got)
		}
	}
	if err := statuses.Err(); !errors.Is(err, errdefs.ErrMismatch) {
		t.Errorf("an unknown status is %v", err)
	}
}

func TestPackingAllocatesNothing(t *testing.T) {
	var p Packer
	r, dst := requests()["retrieve"], make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		b, err := p.Request(dst, r, &wide)
		if err != nil || len(b) == 0 {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("packing allocates %v times", n)
	}
}
