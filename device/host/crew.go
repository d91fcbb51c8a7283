package host

import (
	"errors"
	"runtime"
	"sync"

	"github.com/kvlane/kvlane/device/internal/kernel"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

const (
	// most is the maximum number of goroutines that share work; GOMAXPROCS may lower it. A few
	// goroutines saturate the memory bus.
	most = 8
	// share is the minimum number of bytes for another goroutine, which takes a few microseconds to
	// start.
	share = 512 << 10
	// pieceBytes is the maximum length of a piece that is not divided further.
	pieceBytes = 1 << 20
)

// crew holds the machines that run a queue's work in parallel.
type crew []kernel.Machine

func (c *crew) muster() {
	*c = make(crew, most)
	for i := range *c {
		(*c)[i].Memory = space{}
	}
	(*c)[0].Divide = c.divide
}

// divide calls f for the range 0 to n, which stands for this number of bytes. It splits the range
// into parallel parts if it is large enough.
func (c crew) divide(n, bytes uint64, f func(m *kernel.Machine, from, to uint64) error) error {
	parts := min(uint64(runtime.GOMAXPROCS(0)), most, n, bytes/share)
	if parts < 2 {
		return f(&c[0], 0, n)
	}
	var errs [most]error
	var others sync.WaitGroup
	part := func(i uint64) {
		errs[i] = guarded(func() error { return f(&c[i], n*i/parts, n*(i+1)/parts) })
	}
	for i := uint64(1); i < parts; i++ {
		others.Go(func() { part(i) })
	}
	part(0)
	others.Wait()
	return errors.Join(errs[:]...)
}

// guarded returns the error of f, or an error if f accesses an address without memory.
func guarded(f func() error) error {
	return hostmem.Guard(f, func(at mem.CPUAddr) error { return errIllegal("touch memory", mem.DevAddr(at), 1) })
}

func (c crew) launch(k *kernel.Kernel, a *kernel.Args, ctas int) error {
	c[0].CTAs = ctas
	return guarded(func() error { return k.Run(&c[0], a) })
}

// cut appends p to pieces, in parts of at most pieceBytes.
func cut(pieces []kernel.Piece, p kernel.Piece) []kernel.Piece {
	for ; p.N > pieceBytes; p = (kernel.Piece{Dst: p.Dst + pieceBytes, Src: p.Src + pieceBytes, N: p.N - pieceBytes}) {
		pieces = append(pieces, kernel.Piece{Dst: p.Dst, Src: p.Src, N: pieceBytes})
	}
	if p.N > 0 { // an empty piece needs no check
		pieces = append(pieces, p)
	}
	return pieces
}

// copy copies the pieces. bytes is their total length.
func (c crew) copy(pieces []kernel.Piece, bytes uint64) error {
	return guarded(func() error {
		return c.divide(uint64(len(pieces)), bytes, func(m *kernel.Machine, from, to uint64) error {
			for _, p := range pieces[from:to] {
				if err := m.Memory.Copy("copy", p); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// fill sets n bytes to v.
func (c crew) fill(at mem.DevAddr, n uint64, v byte) error {
	return guarded(func() error {
		const block = 32 << 10 // fits in the CPU's cache
		if n == 0 {
			return nil
		}
		b, err := space{}.Bytes("fill", at, n)
		if err != nil {
			return err
		}
		head := b[:min(n, block)]
		for i := range head {
			head[i] = v
		}
		for done := len(head); done < len(b); {
			done += copy(b[done:], head)
		}
		return nil
	})
}
