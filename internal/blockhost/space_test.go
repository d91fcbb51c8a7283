package blockhost

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
)

func numbered(t *testing.T, n int) block.Format {
	t.Helper()
	f := format(t, 0, 4096)
	binary.LittleEndian.PutUint32(f.Identity[:], uint32(n)+1)
	return f
}

// The number of identities of a tenant is limited. Identities without blocks are removed at once,
// others if there are too many, and those in use stay.
func TestUnusedIdentitiesGo(t *testing.T) {
	h, err := New(Options{CapacityBytes: 16 << 20})
	must(t, err)
	kept, err := h.Space(t.Context(), "a", numbered(t, 0))
	must(t, err)
	for n := range maxSpaces + 100 {
		f := numbered(t, n+1)
		s, err := h.Space(t.Context(), "a", f)
		must(t, err)
		if n%2 == 0 {
			key := block.Key{1}
			must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
		}
		s.Release()
	}
	if n := len(h.tenants["a"].spaces); n != maxSpaces/2+51 { // those with odd numbers are removed
		t.Errorf("%d identities", n)
	}
	var used []*Space
	for n := len(h.tenants["a"].spaces); n < 2*maxSpaces; n++ {
		s, err := h.Space(t.Context(), "a", numbered(t, 3*maxSpaces+n))
		if err != nil {
			wantErr(t, "more identities than a tenant may use", err, errdefs.ErrNoSpace)
			break
		}
		used = append(used, s)
	}
	if n := len(h.tenants["a"].spaces); n != maxSpaces || len(used) != maxSpaces-1 || h.tenants["a"].spaces[kept.format.Identity] != kept {
		t.Errorf("%d identities, %d of them were opened", n, len(used))
	}
	other, err := h.Space(t.Context(), "b", numbered(t, 0))
	must(t, err) // another tenant has a separate bound
	for _, s := range append(used, kept, other) {
		s.Release()
	}
	if n := len(h.tenants["a"].spaces); n != 0 {
		t.Errorf("%d identities without users and blocks", n)
	}
	must(t, h.Close(context.Background()))
}

// At its bound a tenant evicts its own blocks, and not those of others.
func TestBoundOfATenant(t *testing.T) {
	f := format(t, 1, 4096)
	n := classBytes(f.Layout.ImageBytes())
	h, err := New(Options{CapacityBytes: 100 * n, TenantBytes: 3 * n})
	must(t, err)
	a, err := h.Space(t.Context(), "a", f)
	must(t, err)
	b, err := h.Space(t.Context(), "b", f)
	must(t, err)
	must(t, put(b, block.Key{99}, sealed(t, f, block.Key{99}), 0, f.Layout.ImageBytes()))
	for i := range 8 {
		key := block.Key{byte(i + 1)}
		must(t, put(a, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
	}
	if u := h.Usage("a"); u.Blocks != 3 || u.Evictions != 5 || !b.Contains(block.Key{99}) {
		t.Errorf("figures of the tenant %+v", u)
	}
	pins := []Block{}
	for i := 5; i < 8; i++ {
		p, err := a.Get(block.Key{byte(i + 1)})
		must(t, err)
		pins = append(pins, p)
	}
	_, err = a.Write(block.Key{50}, 0, 100)
	wantErr(t, "a block more than the tenant may have in use", err, errdefs.ErrBusy)
	for _, p := range pins {
		p.Release()
	}
	_, err = h.Space(t.Context(), "a", format(t, 2, 4*n))
	wantErr(t, "images longer than the tenant's memory", err, errdefs.ErrNoSpace)
	must(t, h.Close(context.Background()))
}

// Of equally recent blocks the longest is evicted first, but no block stays forever.
func TestEvictionByValue(t *testing.T) {
	small, long := format(t, 1, 4096), format(t, 2, 1<<20)
	h, err := New(Options{CapacityBytes: 4 << 20})
	must(t, err)
	s, err := h.Space(t.Context(), "a", small)
	must(t, err)
	l, err := h.Space(t.Context(), "a", long)
	must(t, err)
	must(t, put(s, block.Key{1}, sealed(t, small, block.Key{1}), 0, small.Layout.ImageBytes()))
	store := func(n int) {
		key := block.Key{byte(n), 2}
		must(t, put(l, key, sealed(t, long, key), 0, long.Layout.ImageBytes()))
	}
	for n := range 4 {
		store(n)
	}
	if !s.Contains(block.Key{1}) || l.Contains(block.Key{0, 2}) {
		t.Error("the short block was evicted before the long one")
	}
	for n := 4; n < 200 && s.Contains(block.Key{1}); n++ {
		store(n)
	}
	if s.Contains(block.Key{1}) {
		t.Error("a block that is not used stays")
	}
	must(t, h.Close(context.Background()))
}

func TestSizeClasses(t *testing.T) {
	for n := int64(1); n < 64<<20; n += 1 + n/7 {
		if c := classBytes(n); c < n || c-n >= max(4096, n/8+1) || c%4096 != 0 || classBytes(c) != c {
			t.Errorf("%d bytes have memory of %d", n, c)
		}
	}
}
