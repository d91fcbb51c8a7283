package kvcache

import (
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// contentOf42 is the start of plane 3 of the block with hash id 42.
const contentOf42 = "245b48441915e2990a5b42e9"

// latent is the smallest geometry whose image has a page of header and a page of content, 8 KiB in
// total.
var latent = block.Geometry{Model: "test", DType: "bfloat16", Layers: 1, KVHeads: 1, HeadSize: 128, BlockTokens: 16, TPSize: 1, MLA: true}

// layered is a geometry with keys and values, several layers, and planes that are not multiples of
// 16 bytes.
var layered = block.Geometry{Model: "test", DType: "fp8_e4m3", Layers: 3, KVHeads: 1, HeadSize: 67, BlockTokens: 1, TPSize: 1}

// plainDevice hides every optional ability of a device's queues.
type plainDevice struct{ device.Device }

func (d plainDevice) OpenQueue(o device.QueueOptions) (device.Queue, error) {
	q, err := d.Device.OpenQueue(o)
	return plainQueue{q}, err
}

type plainQueue struct{ device.Queue }
