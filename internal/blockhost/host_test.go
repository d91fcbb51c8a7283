package blockhost

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func format(t *testing.T, n byte, shards ...int64) block.Format {
	t.Helper()
	l, err := block.NewLayout(shards)
	must(t, err)
	return block.Format{Identity: block.Digest{n}, Layout: l}
}

func sealed(t *testing.T, f block.Format, key block.Key) []byte {
	t.Helper()
	b := make([]byte, f.Layout.ImageBytes())
	for i := range f.Layout.Shards() {
		copy(b[f.Layout.ShardOff(i):], key[:])
	}
	must(t, f.Seal(b, key))
	return b
}

func put(s *Space, key block.Key, image []byte, off, n int64) error {
	w, err := s.Write(key, off, n)
	if err != nil {
		return err
	}
	copy(w.Bytes(), image[off:off+n])
	return w.Done()
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestPiecesOfAnImage(t *testing.T) {
	h, err := New(Options{CapacityBytes: 1 << 20})
	must(t, err)
	f, key := format(t, 1, 4096), block.Key{1}
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	image := sealed(t, f, key)
	n := int64(len(image))
	first, err := s.Write(key, 0, 4096)
	must(t, err)
	_, err = s.Write(key, 4000, 200)
	wantErr(t, "a piece that overlaps another", err, errdefs.ErrBusy)
	_, err = s.Write(key, 0, 4096)
	wantErr(t, "a piece that is being written", err, errdefs.ErrBusy)
	_, err = s.Write(key, n-1, 2)
	wantErr(t, "a piece beyond the image", err, errdefs.ErrInvalid)
	wantErr(t, "delete an incomplete block", s.Delete(t.Context(), key), errdefs.ErrBusy)
	first.Abort()
	must(t, put(s, key, image, 0, 4096))
	must(t, put(s, key, image, 0, 4096)) // a second time
	_, err = s.Get(key)
	wantErr(t, "an incomplete block", err, errdefs.ErrNotFound)
	must(t, put(s, key, image, 4096, n-4096))
	b, err := s.Get(key)
	must(t, err)
	if !bytes.Equal(b.Bytes(), image) {
		t.Error("the bytes differ")
	}
	wantErr(t, "a complete block", put(s, key, image, 0, 4096), errdefs.ErrExists)
	must(t, s.Delete(t.Context(), key)) // the pin keeps its memory
	wantErr(t, "close with a pin", h.Close(context.Background()), errdefs.ErrBusy)
	if !bytes.Equal(b.Bytes(), image) {
		t.Error("the bytes of a deleted, pinned block differ")
	}
	b.Release()
	must(t, h.Close(context.Background()))
}

func TestTenantsAndLayoutsAreApart(t *testing.T) {
	h, err := New(Options{CapacityBytes: 1 << 20})
	must(t, err)
	f, key := format(t, 1, 4096), block.Key{1}
	a, err := h.Space(t.Context(), "a", f)
	must(t, err)
	b, err := h.Space(t.Context(), "b", f)
	must(t, err)
	must(t, put(a, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
	if !a.Contains(key) || b.Contains(key) {
		t.Error("the block of a tenant is not its own")
	}
	if u := h.Usage("b"); u != (Usage{}) {
		t.Errorf("figures of a tenant without blocks: %+v", u)
	}
	_, err = h.Space(t.Context(), "a", format(t, 1, 8192))
	wantErr(t, "an identity with another layout", err, errdefs.ErrMismatch)
	_, err = h.Space(t.Context(), "a", format(t, 2, 2<<20))
	wantErr(t, "images longer than the memory", err, errdefs.ErrNoSpace)
	must(t, h.Close(context.Background()))
}

func TestLeasesHaveHalfOfTheMemory(t *testing.T) {
	f := format(t, 1, 4096)
	h, err := New(Options{CapacityBytes: 4 * f.Layout.ImageBytes()})
	must(t, err)
	s, err := h.Space(t.Context(), "a", f)
	must(t, err)
	var leases []Block
	for i := range 4 {
		key := block.Key{byte(i + 1)}
		must(t, put(s, key, sealed(t, f, key), 0, f.Layout.ImageBytes()))
		b, err := s.Lease(t.Context(), key)
		if i < 2 {
			must(t, err)
			leases = append(leases, b)
			for range 5 { // a block counts once
				b, err := s.Lease(t.Context(), key)
				must(t, err)
				leases = append(leases, b)
			}
			wantErr(t, "delete a leased block", s.Delete(t.Context(), key), ErrLeased)
		} else {
			wantErr(t, "a lease beyond half of the memory", err, errdefs.ErrBusy)
		}
	}
	for _, b := range leases {
		b.Release()
	}
	if u := h.Usage("a"); u.Leased != 0 {
		t.Errorf("%d blocks are leased", u.Leased)
	}
	must(t, h.Close(context.Background()))
}

// Goroutines store, read and delete blocks of three lengths in memory for a few blocks. Blocks that
// are found must have the right bytes, and the bound must hold.
func TestManyUsersOfLittleMemory(t *testing.T) {
	formats := []block.Format{format(t, 1, 4096), format(t, 2, 20000), format(t, 3, 100, 9000)}
	h, err := New(Options{CapacityBytes: 4 * formats[1].Layout.ImageBytes()})
	must(t, err)
	var users sync.WaitGroup
	for g := range 4 {
		users.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 2000 {
				f := formats[r.IntN(3)]
				s, err := h.Space(t.Context(), "a", f)
				if err != nil {
					t.Error(err)
					return
				}
				key := block.Key{byte(1 + r.IntN(6))}
				b, err := s.Get(key)
				switch {
				case err == nil && b.Bytes()[f.Layout.ShardOff(0)] != key[0]:
					t.Errorf("block %s has the bytes of %d", key, b.Bytes()[f.Layout.ShardOff(0)])
					b.Release()
				case err == nil:
					b.Release()
					if r.IntN(4) == 0 {
						_ = s.Delete(t.Context(), key)
					}
				default:
					image := sealed(t, f, key)
					half := int64(len(image) / 2)
					_ = put(s, key, image, 0, half) // other goroutines write it too
					_ = put(s, key, image, half, int64(len(image))-half)
				}
				h.mu.Lock()
				if h.used > h.o.CapacityBytes {
					t.Errorf("%d bytes, of %d", h.used, h.o.CapacityBytes)
				}
				h.mu.Unlock()
			}
		})
	}
	users.Wait()
	if u := h.Usage("a"); u.Hits == 0 || u.Evictions == 0 || u.Stores == 0 {
		t.Errorf("figures %+v", u)
	}
	must(t, h.Close(context.Background()))
	if u := h.Usage("a"); u.Blocks != 0 || u.Bytes != 0 {
		t.Errorf("figures of an empty host %+v", u)
	}
}
