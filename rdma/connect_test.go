package rdma_test

import (
	"errors"
	"testing"

	"github.com/kvlane/kvlane/rdma"
	"github.com/kvlane/kvlane/rdma/soft"
)

// TestDefectPathMTUIsOneSides checks that two queue pairs with different maximum packet sizes both
// use the smaller one, with any requested MTU. Larger packets would be dropped.
func TestDefectPathMTUIsOneSides(t *testing.T) {
	d := openNIC(t, soft.PortOptions{GIDs: []rdma.GID{ipv4}}, soft.PortOptions{MTU: rdma.MTU2048, GIDs: []rdma.GID{global}})
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(rdma.CQOptions{Entries: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(cq.Close(), pd.Close()); err != nil {
			t.Error(err)
		}
	}()
	for name, tt := range map[string]struct {
		asked [2]rdma.MTU // requested by the side with port MTU 4096, and by the side with 2048
		want  rdma.MTU
	}{
		"what the ports are for":   {[2]rdma.MTU{}, rdma.MTU2048},
		"each asks for its port's": {[2]rdma.MTU{rdma.MTU4096, rdma.MTU2048}, rdma.MTU2048},
		"one asks for less":        {[2]rdma.MTU{rdma.MTU1024, rdma.MTU2048}, rdma.MTU1024},
		"one asks, one does not":   {[2]rdma.MTU{rdma.MTU1024, 0}, rdma.MTU1024},
	} {
		t.Run(name, func(t *testing.T) {
			var qps [2]rdma.QP
			var ends [2]rdma.Endpoint
			o := [2]rdma.ConnectOptions{{Port: 1, MTU: tt.asked[0]}, {Port: 2, MTU: tt.asked[1]}}
			for i := range qps {
				var err error
				if qps[i], err = pd.CreateQP(rdma.QPOptions{SendCQ: cq, RecvCQ: cq, Caps: rdma.QPCaps{MaxSendWR: 1, MaxSendSGE: 1}}); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := qps[i].Close(); err != nil {
						t.Error(err)
					}
				}()
				if ends[i], err = rdma.LocalEndpoint(d, qps[i], o[i]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range qps {
				if err := rdma.Connect(d, qps[i], o[i], ends[1-i]); err != nil {
					t.Fatal(err)
				}
				info, err := qps[i].Query()
				if err != nil || info.Attr.PathMTU != tt.want {
					t.Errorf("side %d: MTU %s, want %s: %v", i, info.Attr.PathMTU, tt.want, err)
				}
			}
		})
	}
}
