package file

import (
	"fmt"

	"github.com/kvlane/kvlane/stream"
)

// crossing is parts whose copies between their chunks and the device are one batch of the inner stream.
type crossing struct {
	parts  []*part
	ticket *stream.Ticket
}

// While crossings are under way, what can cross next is gathered, as a chunk by itself is copied in less time than it takes to
// be told so. crossings is how many there are at once, so that one is copied while what follows it is submitted, and
// crossingBytes how much chunks one may have, so that chunks come free while others are copied.
const (
	crossings     = 2
	crossingBytes = 8 << 20
)

// copy copies between p's chunk and its pieces: by the CPU, or in a crossing, which takeCopied looks for.
func (b *batch) copy(p *part) {
	if p.device {
		b.waiting = append(b.waiting, p)
		return
	}
	for i := range p.list.Dst {
		copy(p.list.Dst[i].Bytes(), p.list.Src[i].Bytes())
	}
	b.copied(p)
}

// cross has the inner stream copy what waits for it.
func (b *batch) cross() {
	most := int(max(crossingBytes/b.stream.opts.ChunkBytes, 1))
	for len(b.waiting) > 0 && len(b.crossing) < crossings {
		first, n := b.waiting[0], 1
		for ; n < min(len(b.waiting), most) && b.waiting[n].write == first.write; n++ {
			first.list.Dst = append(first.list.Dst, b.waiting[n].list.Dst...)
			first.list.Src = append(first.list.Src, b.waiting[n].list.Src...)
		}
		c := crossing{parts: b.waiting[:n]}
		b.waiting = b.waiting[n:]
		var err error
		if c.ticket, err = b.stream.opts.Copy.Submit(b.ctx, &first.list); err != nil {
			b.lose(c, err)
			continue
		}
		b.crossing = append(b.crossing, c)
	}
}

// lose lets go of what the inner stream did not copy.
func (b *batch) lose(c crossing, err error) {
	b.fail(fmt.Errorf("copy between staging memory and the device: %w", err))
	for _, p := range c.parts {
		b.release(p)
	}
}

// takeCopied begins what can cross, takes what has crossed, and returns what tells that more has.
func (b *batch) takeCopied() <-chan struct{} {
	for {
		b.cross()
		if len(b.crossing) == 0 {
			return nil
		}
		head := b.crossing[0]
		select {
		case <-head.ticket.Done():
		default:
			return head.ticket.Done()
		}
		b.crossing = b.crossing[1:]
		if err := head.ticket.Err(); err != nil {
			b.lose(head, err)
			continue
		}
		for _, p := range head.parts {
			b.copied(p)
		}
	}
}
