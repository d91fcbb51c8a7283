package ibv

import (
	"bytes"
	"encoding/binary"

	"github.com/kvlane/kvlane/internal/sys/ibverbs"
	"github.com/kvlane/kvlane/rdma"
)

// hostOrder32 converts between network and host byte order.
func hostOrder32(v uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return binary.BigEndian.Uint32(b[:])
}

func hostOrder64(v uint64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}

func deviceInfo(device string, a *ibverbs.DeviceAttr) rdma.DeviceInfo {
	firmware, _, _ := bytes.Cut(a.Firmware[:], []byte{0})
	return rdma.DeviceInfo{
		Provider:          name,
		Name:              device,
		GUID:              hostOrder64(a.NodeGUID),
		Firmware:          string(firmware),
		VendorID:          a.VendorID,
		PartID:            a.VendorPartID,
		Ports:             int(a.PhysicalPortCount),
		MaxMRBytes:        a.MaxMRSize,
		MaxMR:             int(a.MaxMR),
		MaxPD:             int(a.MaxPD),
		MaxQP:             int(a.MaxQP),
		MaxQPWR:           int(a.MaxQPWR),
		MaxSGE:            int(a.MaxSGE),
		MaxSGERead:        int(a.MaxSGERead),
		MaxCQ:             int(a.MaxCQ),
		MaxCQE:            int(a.MaxCQE),
		MaxSRQ:            int(a.MaxSRQ),
		MaxSRQWR:          int(a.MaxSRQWR),
		MaxSRQSGE:         int(a.MaxSRQSGE),
		MaxQPRDAtomic:     int(a.MaxQPRDAtomic),
		MaxQPInitRDAtomic: int(a.MaxQPInitRDAtomic),
	}
}

// Number of lanes by active_width, and gigabits per second of one lane by active_speed. Both are
// single bits (InfiniBand specification, PortInfo). Ethernet devices report the combination nearest
// to their rate.
var (
	lanes       = map[uint8]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
	gbpsPerLane = map[uint8]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}
)

func portInfo(port int, a *ibverbs.PortAttr) rdma.PortInfo {
	return rdma.PortInfo{
		Number:          port,
		State:           rdma.PortState(a.State),
		LinkLayer:       rdma.LinkLayer(a.LinkLayer),
		MaxMTU:          rdma.MTU(a.MaxMTU),
		ActiveMTU:       rdma.MTU(a.ActiveMTU),
		MaxMessageBytes: a.MaxMsgSize,
		GIDs:            int(a.GIDTableLen),
		PKeys:           int(a.PKeyTableLen),
		LID:             a.LID,
		RateGbps:        lanes[a.ActiveWidth] * gbpsPerLane[a.ActiveSpeed],
	}
}
