package gateway_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// A flag that does not answer the request in progress ends the connection, and the call fails. Only
// the right number, phase and length complete it.
func TestFlagsThatDoNotAnswer(t *testing.T) {
	none := func([]byte, *blockio.Request) {}
	for what, c := range map[string]struct {
		change func(flag []byte, q *blockio.Request)
		imm    uint32 // added to that of the request
		ok     bool
	}{
		"the right flag": {change: none, ok: true},
		"another phase": {change: func(f []byte, q *blockio.Request) {
			binary.LittleEndian.PutUint64(f, blockio.CompletionWord(q.ID, !q.Phase))
		}},
		"another number": {change: func(f []byte, q *blockio.Request) {
			binary.LittleEndian.PutUint64(f, blockio.CompletionWord(q.ID+1, q.Phase))
		}},
		"no word":          {change: func(f []byte, _ *blockio.Request) { clear(f[:8]) }},
		"a long result":    {change: func(f []byte, _ *blockio.Request) { binary.LittleEndian.PutUint32(f[8:], 1<<20) }},
		"no result":        {change: func(f []byte, _ *blockio.Request) { binary.LittleEndian.PutUint32(f[8:], 0) }},
		"an unknown call":  {change: none, imm: 1},
		"a changed result": {change: func(f []byte, _ *blockio.Request) { f[blockio.FlagHeadBytes+4] ^= 1 }},
	} {
		t.Run(what, func(t *testing.T) {
			f := softFabric(t, soft.Options{})
			s, dial := f.rogue(t)
			start := time.Now()
			_, ended, cancel, _ := f.retrieve(t, dial)
			defer cancel()
			q, l, p := <-s.got, blockio.DefaultLimits(), blockio.Packer{}
			r := blockio.Result{Op: q.Op, ID: q.ID, Phase: q.Phase, Status: blockio.StatusNotFound, Credits: 1}
			body, err := p.Result(nil, &r, &l)
			must(t, err)
			flag := s.memory.Bytes()[:blockio.FlagHeadBytes+len(body)]
			binary.LittleEndian.PutUint64(flag, blockio.CompletionWord(q.ID, q.Phase))
			binary.LittleEndian.PutUint32(flag[8:], uint32(len(body)))
			copy(flag[blockio.FlagHeadBytes:], body)
			c.change(flag, q)
			s.post(t, rdma.SendWR{
				Opcode: rdma.WRRDMAWriteWithImm, Flags: rdma.SendSolicited, Imm: uint32(q.ID) + c.imm,
				RKey: q.ResponseKey, RemoteAddr: uint64(q.ResponseAddr), SGEs: []rdma.SGE{s.info.SGE(0, uint32(len(flag)))},
			})
			if err := <-ended; errors.Is(err, errdefs.ErrNotFound) != c.ok || err == nil || errors.Is(err, errdefs.ErrCanceled) {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		})
	}
}
