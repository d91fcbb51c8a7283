package file

import (
	"fmt"

	"github.com/kvlane/kvlane/stream"
)

// crossing is a set of parts that one batch of the inner stream copies between chunks and device.
type crossing struct {
	parts  []*part
	ticket *stream.Ticket
}

// Parts are collected while crossings are in flight, because the copy of one chunk takes less time
// than its completion. crossings is the number in flight at once: one is copied while the next is
// submitted. crossingBytes limits the chunks of a crossing, so that chunks become free while others
// are copied.
const (
	crossings     = 2
	crossingBytes = 8 << 20
)

// copy copies between p's chunk and its pieces. The CPU copies host memory. A part with device
// memory is queued for a crossing.
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

// cross submits waiting parts to the inner stream.
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

// lose fails the batch and releases the chunks of a crossing that was not copied.
func (b *batch) lose(c crossing, err error) {
	b.fail(fmt.Errorf("copy between staging memory and the device: %w", err))
	for _, p := range c.parts {
		b.release(p)
	}
}

// takeCopied submits crossings, and continues the parts of completed ones, in order. It returns the
// channel of the oldest crossing in flight, or nil.
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
