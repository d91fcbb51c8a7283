package blockio

import "github.com/kvlane/kvlane/rdma"

const (
	endpointBytes = 32
	max24         = 1<<24 - 1
)

// endpoints returns the number of endpoints that a frame with e has.
func endpoints(e *rdma.Endpoint) int {
	if *e == (rdma.Endpoint{}) {
		return 0
	}
	return 1
}

func validEndpoint(e *rdma.Endpoint) error {
	if e.QPNum == 0 || e.QPNum > max24 || e.PSN > max24 || e.MTU.Bytes() == 0 {
		return invalid("queue pair %d with packet number %d and MTU %d", e.QPNum, e.PSN, e.MTU)
	}
	return nil
}

func appendEndpoint(dst []byte, e *rdma.Endpoint) []byte {
	dst = le.AppendUint32(dst, e.QPNum)
	dst = le.AppendUint32(dst, e.PSN)
	dst = append(dst, e.GID[:]...)
	dst = le.AppendUint16(dst, e.LID)
	dst = append(dst, byte(e.MTU), e.RDepth)
	return le.AppendUint32(dst, 0)
}

// decodeEndpoint decodes the endpoint that is all of b.
func decodeEndpoint(e *rdma.Endpoint, b []byte) error {
	if len(b) != endpointBytes || le.Uint32(b[28:]) != 0 {
		return invalid("endpoint of %d bytes, with bytes that are not zero", len(b))
	}
	*e = rdma.Endpoint{
		QPNum: le.Uint32(b), PSN: le.Uint32(b[4:]), GID: rdma.GID(b[8:24]), LID: le.Uint16(b[24:]), MTU: rdma.MTU(b[26]), RDepth: b[27],
	}
	return nil
}
