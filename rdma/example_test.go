package rdma_test

import (
	"fmt"
	"io"

	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// A queue pair that is connected to itself writes from one half of a buffer to the other. Two
// requests are posted as one chain with one completion.
func Example() {
	buffer := must(hostmem.Alloc(8192))
	copy(buffer, "keys and values")

	provider := must(soft.New(soft.Options{}))
	dev := must(provider.Open("soft0"))
	pd := must(dev.AllocPD())
	mr := must(pd.RegMR(mem.All(must(hostmem.Region(buffer))), rdma.MROptions{Access: rdma.AccessLocalWrite | rdma.AccessRemoteWrite}))
	cq := must(dev.CreateCQ(rdma.CQOptions{Entries: 16}))
	qp := must(pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: 16, MaxSendSGE: 1}}))
	self := must(rdma.LocalEndpoint(dev, qp, rdma.ConnectOptions{}))
	check(rdma.Connect(dev, qp, rdma.ConnectOptions{}, self))

	m := mr.Info()
	must(qp.PostSend([]rdma.SendWR{
		{Opcode: rdma.WRRDMAWrite, RKey: m.RKey, RemoteAddr: m.Addr + 4096, SGEs: []rdma.SGE{m.SGE(0, 8)}},
		{Opcode: rdma.WRRDMAWrite, RKey: m.RKey, RemoteAddr: m.Addr + 4104, SGEs: []rdma.SGE{m.SGE(8, 7)}, WRID: 2, Flags: rdma.SendSignaled},
	}))
	var wc [1]rdma.WC
	for must(cq.Poll(wc[:])) == 0 {
	}
	check(wc[0].Err())
	fmt.Printf("request %d: %s: %s\n", wc[0].WRID, wc[0].Status, buffer[4096:4096+15])

	for _, c := range []io.Closer{qp, cq, mr, pd, dev, provider} {
		check(c.Close())
	}
	check(hostmem.Free(buffer))
	// Output: request 2: SUCCESS: keys and values
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
