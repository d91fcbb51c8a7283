package soft

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/rdma"
)

// nic is the state of a software NIC that exists even while no Device is open: its ports, queue
// pair numbers and memory keys.
type nic struct {
	prov  *Provider
	info  rdma.DeviceInfo
	o     DeviceOptions
	ports []*port
	keys  keyTable

	cqs, pds, mrs, qps, srqs quota

	mu      sync.Mutex
	nextQP  uint32
	byNum   map[uint32]*qp
	devices map[*Device]struct{} // open devices of this NIC
}

type port struct {
	nic    *nic
	number int
	o      PortOptions
	active atomic.Bool
}

// firstQPNum is the first number that the specification does not reserve.
const firstQPNum = 0x11

const qpNumMask = 1<<24 - 1

func newNIC(p *Provider, index int) *nic {
	o := p.o.Devices[index]
	n := &nic{
		prov: p, info: o.limits(index), o: o,
		nextQP: firstQPNum, byNum: make(map[uint32]*qp), devices: make(map[*Device]struct{}),
	}
	for i := range n.info.Ports {
		pt := &port{nic: n, number: i + 1}
		if i < len(o.Ports) {
			pt.o = o.Ports[i]
		}
		setDefault(&pt.o.MTU, rdma.MTU4096)
		setDefault(&pt.o.MaxMessageBytes, defaultMaxMessageBytes)
		setDefault(&pt.o.GIDType, rdma.GIDTypeRoCEv2)
		if pt.o.GIDs == nil {
			pt.o.GIDs = defaultGIDs(index, i)
		}
		pt.active.Store(!pt.o.Down)
		for _, g := range pt.o.GIDs {
			if g != (rdma.GID{}) {
				p.ports[g] = pt
			}
		}
		n.ports = append(n.ports, pt)
	}
	return n
}

// defaultGIDs returns two GIDs for a port: fe80::<port>:<device> and 10.98.<port>.<device> as an
// IPv6 address. Ports and devices are counted from 1.
func defaultGIDs(device, port int) []rdma.GID {
	d, p := byte(device+1), byte(port+1)
	return []rdma.GID{
		{0: 0xfe, 1: 0x80, 13: p, 15: d},
		{10: 0xff, 11: 0xff, 12: 10, 13: 98, 14: p, 15: d},
	}
}

// port returns the port with that number.
func (n *nic) port(call string, number int) (*port, error) {
	if number < 1 || number > len(n.ports) {
		return nil, rdma.NewError(call, fmt.Sprintf("port=%d", number), unix.EINVAL, fmt.Sprintf("%s has ports 1 to %d", n.info.Name, len(n.ports)))
	}
	return n.ports[number-1], nil
}

// hasGID reports whether gid is one of the port's.
func (p *port) hasGID(gid rdma.GID) bool {
	for _, g := range p.o.GIDs {
		if g == gid {
			return true
		}
	}
	return false
}

// register assigns the next free number to a queue pair.
func (n *nic) register(q *qp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.byNum[n.nextQP] != nil || n.nextQP < firstQPNum {
		n.nextQP = (n.nextQP + 1) & qpNumMask
	}
	q.num = n.nextQP
	n.byNum[q.num] = q
	n.nextQP = (n.nextQP + 1) & qpNumMask
}

func (n *nic) delist(q *qp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byNum, q.num)
}

// find returns the queue pair with that number, or nil.
func (n *nic) find(num uint32) *qp {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byNum[num]
}

// notify sends an event that concerns the whole NIC to all of its open devices.
func (n *nic) notify(e rdma.AsyncEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for d := range n.devices {
		d.events.put(e)
	}
}
