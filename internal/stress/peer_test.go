package stress

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/transfer"
)

const (
	peerBytes = 1 << 20
	peerConns = 64      // connections of the transfer server
	peerHeap  = 1 << 30 // limit of the heap of this process, including the server
)

// peers serves memory to a peer that checks its transfers, and to hostile peers that are silent,
// slow, or send large requests. Neither memory nor connections may run out.
func (r *round) peers(rng *rand.Rand) {
	target, there, closeTarget := r.party(transfer.Options{Conns: peerConns, Stall: time.Second}, 2*peerBytes)
	defer closeTarget()
	for i, name := range []string{"kv", "harmed"} { // hostile peers write to the second half
		s, err := target.Publish(r.Context(), name)
		if err != nil {
			r.Error(err)
			return
		}
		half := mem.RegionSpec{Kind: mem.KindHost, Device: mem.NoDevice, Len: peerBytes, CPU: there.CPU() + mem.CPUAddr(i)*peerBytes, Bytes: there.Bytes()[i*peerBytes:][:peerBytes:peerBytes]}
		region, err := mem.NewRegion(half)
		if err == nil {
			_, err = s.Register(r.Context(), region, transfer.RegisterOptions{})
		}
		if err != nil {
			r.Error(err)
			return
		}
	}
	var hostile sync.WaitGroup
	defer hostile.Wait()
	for _, purpose := range []byte{1, 2, 2} {
		seeded := rand.New(rand.NewPCG(rng.Uint64(), 4))
		hostile.Go(func() { r.hostilePeer(target, purpose, seeded) })
	}
	for r.dead.Err() == nil && time.Now().Before(r.until) {
		r.goodPeer(target.Address(), rng)
		var heap runtime.MemStats
		if runtime.ReadMemStats(&heap); heap.HeapAlloc > peerHeap {
			r.Errorf("%d bytes are allocated while hostile peers are served", heap.HeapAlloc)
		}
	}
}

// party opens an engine with memory, and returns a function that closes both.
func (r *round) party(o transfer.Options, bytes int64) (*transfer.Engine, *mem.Region, func()) {
	b, err := hostmem.Alloc(bytes)
	if err != nil {
		r.Fatal(err)
	}
	region, err := hostmem.Region(b)
	if err != nil {
		r.Fatal(err)
	}
	e, err := transfer.Open(o)
	if err != nil {
		r.Fatal(err)
	}
	return e, region, func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		if err := errors.Join(e.Close(ctx), hostmem.Free(b)); err != nil {
			r.Errorf("close a transfer engine: %v", err)
		}
	}
}

// goodPeer opens the segment, writes it and reads it back. Hostile peers may delay but not prevent
// that.
func (r *round) goodPeer(address string, rng *rand.Rand) {
	e, here, closeEngine := r.party(transfer.Options{}, peerBytes)
	defer closeEngine()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	began := time.Now()
	to, err := e.OpenSegment(ctx, address+"/kv")
	for err != nil && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		to, err = e.OpenSegment(ctx, address+"/kv")
	}
	if err != nil {
		r.Errorf("open a segment while hostile peers are served: %v", err)
		return
	}
	want := make([]byte, peerBytes)
	for i := 0; i < len(want); i += 8 {
		binary.LittleEndian.PutUint64(want[i:], rng.Uint64())
	}
	copy(here.Bytes(), want)
	for _, op := range []transfer.Op{transfer.Write, transfer.Read} {
		b, err := e.Submit(ctx, []transfer.Task{{Op: op, Segment: to, Local: mem.All(here)}}, transfer.SubmitOptions{Timeout: grace})
		if err == nil {
			<-b.Done()
			err = b.Err()
		}
		if err != nil {
			r.Errorf("%s while hostile peers are served: %v", op, err)
			return
		}
		if op == transfer.Write {
			clear(here.Bytes())
		}
	}
	if !bytes.Equal(here.Bytes(), want) {
		r.Error("the bytes read differ from those written")
	}
	r.tally.waited("Transfer", time.Since(began))
	r.tally.add("transfers beside hostile peers", 1)
}

// hostilePeer opens connections for control (1) or data (2) and keeps them open. Most are silent.
// Some data connections start a request of a million pieces, whose bytes arrive slowly or never.
func (r *round) hostilePeer(target *transfer.Engine, purpose byte, rng *rand.Rand) {
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	from, to := make([]byte, 16), target.Identity()
	binary.LittleEndian.PutUint64(from, rng.Uint64()|1)
	for number := uint64(1); r.dead.Err() == nil && time.Now().Before(r.until); number++ {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		if len(open) > 2*peerConns {
			_ = open[0].Close()
			open = open[1:]
		}
		c, err := net.Dial("tcp", target.Address())
		if err != nil {
			continue
		}
		open = append(open, c)
		hello := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(nil, 0x7274_766b), 1)
		hello = append(append(append(hello, purpose, 0), from...), to[:]...)
		_ = c.SetDeadline(r.until)
		if _, err := c.Write(binary.LittleEndian.AppendUint64(hello, number)); err != nil {
			continue
		}
		if _, err := io.ReadFull(c, make([]byte, 24)); err != nil {
			r.tally.add("hostile peers put off", 1)
			continue
		}
		if purpose == 2 && rng.IntN(4) == 0 {
			_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond)) // the server may not answer at once
			_, _ = c.Write(largeRequest())
			r.tally.add("harm large request", 1)
		} else {
			r.tally.add("harm silent connection", 1)
		}
		for _, slow := range open {
			_ = slow.SetDeadline(time.Now().Add(time.Millisecond))
			_, _ = slow.Write([]byte{0})
		}
	}
}

// largeRequest returns the header of a write of a million pieces.
func largeRequest() []byte {
	const planes, pages = 1 << 16, 16
	b := []byte{2, 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, planes)
	b = binary.LittleEndian.AppendUint64(b, 1)
	b = binary.LittleEndian.AppendUint64(b, 2) // the second segment
	b = binary.LittleEndian.AppendUint64(b, planes*pages)
	b = binary.LittleEndian.AppendUint64(b, pages)
	for i := range uint64(planes) {
		b = binary.LittleEndian.AppendUint64(b, 8*i)
		b = binary.LittleEndian.AppendUint64(b, 0)
		b = binary.LittleEndian.AppendUint64(b, 1)
	}
	return append(b, make([]byte, 4*pages)...)
}
