package rdma_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/rdma"
)

// enums returns all values of all enumerations. The keys are the prefixes of their names in C.
func enums() map[string][]fmt.Stringer {
	all := make(map[string][]fmt.Stringer)
	for v := rdma.PortNOP; v <= rdma.PortActiveDefer; v++ {
		all["IBV_PORT_"] = append(all["IBV_PORT_"], v)
	}
	for v := rdma.QPSReset; v <= rdma.QPSUnknown; v++ {
		all["IBV_QPS_"] = append(all["IBV_QPS_"], v)
	}
	for v := rdma.WRRDMAWrite; v <= rdma.WRRDMARead; v++ {
		all["IBV_WR_"] = append(all["IBV_WR_"], v)
	}
	for v := rdma.WCSuccess; v <= rdma.WCTMRndvIncomplete; v++ {
		all["IBV_WC_"] = append(all["IBV_WC_"], v)
	}
	for v := rdma.EventCQErr; v <= rdma.EventWQFatal; v++ {
		all["IBV_EVENT_"] = append(all["IBV_EVENT_"], v)
	}
	for v := rdma.MTU256; v <= rdma.MTU4096; v++ {
		all["IBV_MTU_"] = append(all["IBV_MTU_"], v)
	}
	all["IBV_WC_"] = append(all["IBV_WC_"], rdma.WCSend, rdma.WCRDMAWrite, rdma.WCRDMARead, rdma.WCRecv, rdma.WCRecvRDMAWithImm)
	all["IBV_SEND_"] = []fmt.Stringer{rdma.SendFence, rdma.SendSignaled, rdma.SendSolicited, rdma.SendInline}
	all["IBV_ACCESS_"] = []fmt.Stringer{rdma.AccessLocalWrite, rdma.AccessRemoteWrite, rdma.AccessRemoteRead, rdma.AccessRemoteAtomic, rdma.AccessRelaxedOrdering}
	return all
}

// TestValuesAreThoseOfTheVerbs compares every value with its C constant, using a C compiler.
func TestValuesAreThoseOfTheVerbs(t *testing.T) {
	var c strings.Builder
	c.WriteString("#include <infiniband/verbs.h>\n")
	assert := func(name string, v any) { fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, v, name) }
	for prefix, values := range enums() {
		for _, v := range values {
			assert(prefix+v.String(), v)
		}
	}
	assert("IBV_WC_WITH_IMM", rdma.WCWithImm)
	assert("IBV_GID_TYPE_ROCE_V1", rdma.GIDTypeRoCEv1)
	assert("IBV_GID_TYPE_ROCE_V2", rdma.GIDTypeRoCEv2)
	assert("IBV_LINK_LAYER_INFINIBAND", rdma.LinkLayerInfiniBand)
	assert("IBV_LINK_LAYER_ETHERNET", rdma.LinkLayerEthernet)

	cc, err := exec.LookPath("cc")
	if err != nil {
		testkit.Skip(t, "verbs-headers", err.Error())
	}
	compile := func(text string) ([]byte, error) {
		file := filepath.Join(t.TempDir(), "check.c")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), cc, "-fsyntax-only", file).CombinedOutput()
	}
	if _, err := compile("#include <infiniband/verbs.h>\n"); err != nil {
		testkit.Skip(t, "verbs-headers", "no <infiniband/verbs.h>")
	}
	if out, err := compile(c.String()); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		v    fmt.Stringer
		want string
	}{
		{rdma.GID{0: 0xfe, 1: 0x80, 15: 1}, "fe80::1"},
		{rdma.GID{10: 0xff, 11: 0xff, 12: 10, 15: 7}, "::ffff:10.0.0.7"},
		{rdma.GIDTypeRoCEv2, "RoCE v2"},
		{rdma.MTU2048, "2048"},
		{rdma.MTU(9), "0"},
		{rdma.LinkLayerEthernet, "Ethernet"},
		{rdma.WCOpcode(77), "WC(77)"},
		{rdma.WCStatus(99), "WC(99)"},
		{rdma.QPState(99), "QPS(99)"},
		{rdma.AccessLocalWrite | rdma.AccessRemoteRead, "LOCAL_WRITE|REMOTE_READ"},
		{rdma.Access(0), "none"},
		{rdma.SendSignaled | 1<<7, "SIGNALED|0x80"},
	} {
		if got := tt.v.String(); got != tt.want {
			t.Errorf("%#v is %q, not %q", tt.v, got, tt.want)
		}
	}
}
