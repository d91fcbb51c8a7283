package ibverbs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// compile makes C check the body of a translation unit that includes <infiniband/verbs.h>, which the compiler finds by
// itself or by C_INCLUDE_PATH.
func compile(t *testing.T, body string) {
	t.Helper()
	cc := ""
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			cc = path
			break
		}
	}
	if cc == "" {
		testkit.Skip(t, "verbs-headers", "no C compiler")
	}
	check := func(body string) ([]byte, error) {
		src := filepath.Join(t.TempDir(), "check.c")
		if err := os.WriteFile(src, []byte("#include <stddef.h>\n#include <infiniband/verbs.h>\n"+body), 0o600); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), cc, "-std=gnu11", "-fsyntax-only", "-Werror", src).CombinedOutput()
	}
	if out, err := check(""); err != nil {
		testkit.Skip(t, "verbs-headers", fmt.Sprintf("%s cannot use <infiniband/verbs.h>: %s", cc, firstLines(out, 2)))
	}
	if out, err := check(body); err != nil {
		t.Errorf("%s: %v\n%s", cc, err, firstLines(out, 40))
	}
}

func firstLines(b []byte, n int) []byte {
	lines := bytes.SplitAfterN(b, []byte("\n"), n+1)
	return bytes.Join(lines[:min(n, len(lines))], nil)
}

// layout is where a member of a structure of C is, or the structure's size where no member is named.
type layout struct {
	name, member string
	got          uintptr
}

func layouts() []layout {
	var (
		sge  SGE
		send SendWR
		recv RecvWR
		wc   WC
		ev   AsyncEvent
		dev  DeviceAttr
		port PortAttr
		gid  GIDEntry
		qcap QPCap
		init QPInitAttr
		ah   AHAttr
		attr QPAttr
		srq  srqInitAttr
	)
	return []layout{
		{"ibv_context", "ops.poll_cq", offContextPollCQ},
		{"ibv_context", "ops.req_notify_cq", offContextReqNotifyCQ},
		{"ibv_context", "ops.post_srq_recv", offContextPostSRQRecv},
		{"ibv_context", "ops.post_send", offContextPostSend},
		{"ibv_context", "ops.post_recv", offContextPostRecv},
		{"ibv_context", "async_fd", offContextAsyncFD},
		{"ibv_context", "num_comp_vectors", offContextVectors},
		{"ibv_qp", "context", offObjectContext},
		{"ibv_cq", "context", offObjectContext},
		{"ibv_srq", "context", offObjectContext},
		{"ibv_mr", "lkey", offMRLKey},
		{"ibv_mr", "rkey", offMRRKey},
		{"ibv_comp_channel", "fd", offChannelFD},
		{"ibv_cq", "cqe", offCQEntries},
		{"ibv_qp", "qp_num", offQPNum},

		{"ibv_sge", "", unsafe.Sizeof(sge)},
		{"ibv_sge", "addr", unsafe.Offsetof(sge.Addr)},
		{"ibv_sge", "length", unsafe.Offsetof(sge.Length)},
		{"ibv_sge", "lkey", unsafe.Offsetof(sge.LKey)},
		{"ibv_send_wr", "", unsafe.Sizeof(send)},
		{"ibv_send_wr", "wr_id", unsafe.Offsetof(send.WRID)},
		{"ibv_send_wr", "next", unsafe.Offsetof(send.next)},
		{"ibv_send_wr", "sg_list", unsafe.Offsetof(send.sgList)},
		{"ibv_send_wr", "num_sge", unsafe.Offsetof(send.numSGE)},
		{"ibv_send_wr", "opcode", unsafe.Offsetof(send.Opcode)},
		{"ibv_send_wr", "send_flags", unsafe.Offsetof(send.Flags)},
		{"ibv_send_wr", "imm_data", unsafe.Offsetof(send.Imm)},
		{"ibv_send_wr", "wr.rdma.remote_addr", unsafe.Offsetof(send.RemoteAddr)},
		{"ibv_send_wr", "wr.rdma.rkey", unsafe.Offsetof(send.RKey)},
		{"ibv_recv_wr", "", unsafe.Sizeof(recv)},
		{"ibv_recv_wr", "wr_id", unsafe.Offsetof(recv.WRID)},
		{"ibv_recv_wr", "next", unsafe.Offsetof(recv.next)},
		{"ibv_recv_wr", "sg_list", unsafe.Offsetof(recv.sgList)},
		{"ibv_recv_wr", "num_sge", unsafe.Offsetof(recv.numSGE)},
		{"ibv_wc", "", unsafe.Sizeof(wc)},
		{"ibv_wc", "wr_id", unsafe.Offsetof(wc.WRID)},
		{"ibv_wc", "status", unsafe.Offsetof(wc.Status)},
		{"ibv_wc", "opcode", unsafe.Offsetof(wc.Opcode)},
		{"ibv_wc", "vendor_err", unsafe.Offsetof(wc.VendorErr)},
		{"ibv_wc", "byte_len", unsafe.Offsetof(wc.ByteLen)},
		{"ibv_wc", "imm_data", unsafe.Offsetof(wc.Imm)},
		{"ibv_wc", "qp_num", unsafe.Offsetof(wc.QPNum)},
		{"ibv_wc", "wc_flags", unsafe.Offsetof(wc.Flags)},
		{"ibv_async_event", "", unsafe.Sizeof(ev)},
		{"ibv_async_event", "element", unsafe.Offsetof(ev.Element)},
		{"ibv_async_event", "event_type", unsafe.Offsetof(ev.Type)},

		{"ibv_device_attr", "", unsafe.Sizeof(dev)},
		{"ibv_device_attr", "node_guid", unsafe.Offsetof(dev.NodeGUID)},
		{"ibv_device_attr", "max_mr_size", unsafe.Offsetof(dev.MaxMRSize)},
		{"ibv_device_attr", "vendor_id", unsafe.Offsetof(dev.VendorID)},
		{"ibv_device_attr", "vendor_part_id", unsafe.Offsetof(dev.VendorPartID)},
		{"ibv_device_attr", "max_qp", unsafe.Offsetof(dev.MaxQP)},
		{"ibv_device_attr", "max_qp_wr", unsafe.Offsetof(dev.MaxQPWR)},
		{"ibv_device_attr", "max_sge", unsafe.Offsetof(dev.MaxSGE)},
		{"ibv_device_attr", "max_sge_rd", unsafe.Offsetof(dev.MaxSGERead)},
		{"ibv_device_attr", "max_cq", unsafe.Offsetof(dev.MaxCQ)},
		{"ibv_device_attr", "max_cqe", unsafe.Offsetof(dev.MaxCQE)},
		{"ibv_device_attr", "max_mr", unsafe.Offsetof(dev.MaxMR)},
		{"ibv_device_attr", "max_pd", unsafe.Offsetof(dev.MaxPD)},
		{"ibv_device_attr", "max_qp_rd_atom", unsafe.Offsetof(dev.MaxQPRDAtomic)},
		{"ibv_device_attr", "max_qp_init_rd_atom", unsafe.Offsetof(dev.MaxQPInitRDAtomic)},
		{"ibv_device_attr", "max_srq", unsafe.Offsetof(dev.MaxSRQ)},
		{"ibv_device_attr", "max_srq_wr", unsafe.Offsetof(dev.MaxSRQWR)},
		{"ibv_device_attr", "max_srq_sge", unsafe.Offsetof(dev.MaxSRQSGE)},
		{"ibv_device_attr", "phys_port_cnt", unsafe.Offsetof(dev.PhysicalPortCount)},
		{"ibv_port_attr", "", unsafe.Sizeof(port)},
		{"ibv_port_attr", "state", unsafe.Offsetof(port.State)},
		{"ibv_port_attr", "max_mtu", unsafe.Offsetof(port.MaxMTU)},
		{"ibv_port_attr", "active_mtu", unsafe.Offsetof(port.ActiveMTU)},
		{"ibv_port_attr", "gid_tbl_len", unsafe.Offsetof(port.GIDTableLen)},
		{"ibv_port_attr", "max_msg_sz", unsafe.Offsetof(port.MaxMsgSize)},
		{"ibv_port_attr", "pkey_tbl_len", unsafe.Offsetof(port.PKeyTableLen)},
		{"ibv_port_attr", "lid", unsafe.Offsetof(port.LID)},
		{"ibv_port_attr", "active_width", unsafe.Offsetof(port.ActiveWidth)},
		{"ibv_port_attr", "active_speed", unsafe.Offsetof(port.ActiveSpeed)},
		{"ibv_port_attr", "link_layer", unsafe.Offsetof(port.LinkLayer)},
		{"ibv_gid_entry", "", unsafe.Sizeof(gid)},
		{"ibv_gid_entry", "gid", unsafe.Offsetof(gid.GID)},
		{"ibv_gid_entry", "gid_index", unsafe.Offsetof(gid.Index)},
		{"ibv_gid_entry", "gid_type", unsafe.Offsetof(gid.Type)},

		{"ibv_qp_cap", "", unsafe.Sizeof(qcap)},
		{"ibv_qp_cap", "max_send_wr", unsafe.Offsetof(qcap.MaxSendWR)},
		{"ibv_qp_cap", "max_recv_wr", unsafe.Offsetof(qcap.MaxRecvWR)},
		{"ibv_qp_cap", "max_send_sge", unsafe.Offsetof(qcap.MaxSendSGE)},
		{"ibv_qp_cap", "max_recv_sge", unsafe.Offsetof(qcap.MaxRecvSGE)},
		{"ibv_qp_cap", "max_inline_data", unsafe.Offsetof(qcap.MaxInlineData)},
		{"ibv_qp_init_attr", "", unsafe.Sizeof(init)},
		{"ibv_qp_init_attr", "send_cq", unsafe.Offsetof(init.SendCQ)},
		{"ibv_qp_init_attr", "recv_cq", unsafe.Offsetof(init.RecvCQ)},
		{"ibv_qp_init_attr", "srq", unsafe.Offsetof(init.SRQ)},
		{"ibv_qp_init_attr", "cap", unsafe.Offsetof(init.Cap)},
		{"ibv_qp_init_attr", "qp_type", unsafe.Offsetof(init.Type)},
		{"ibv_qp_init_attr", "sq_sig_all", unsafe.Offsetof(init.SigAll)},
		{"ibv_ah_attr", "", unsafe.Sizeof(ah)},
		{"ibv_ah_attr", "grh.dgid", unsafe.Offsetof(ah.DGID)},
		{"ibv_ah_attr", "grh.flow_label", unsafe.Offsetof(ah.FlowLabel)},
		{"ibv_ah_attr", "grh.sgid_index", unsafe.Offsetof(ah.SGIDIndex)},
		{"ibv_ah_attr", "grh.hop_limit", unsafe.Offsetof(ah.HopLimit)},
		{"ibv_ah_attr", "grh.traffic_class", unsafe.Offsetof(ah.TrafficClass)},
		{"ibv_ah_attr", "dlid", unsafe.Offsetof(ah.DLID)},
		{"ibv_ah_attr", "sl", unsafe.Offsetof(ah.SL)},
		{"ibv_ah_attr", "is_global", unsafe.Offsetof(ah.IsGlobal)},
		{"ibv_ah_attr", "port_num", unsafe.Offsetof(ah.Port)},
		{"ibv_qp_attr", "", unsafe.Sizeof(attr)},
		{"ibv_qp_attr", "qp_state", unsafe.Offsetof(attr.State)},
		{"ibv_qp_attr", "path_mtu", unsafe.Offsetof(attr.PathMTU)},
		{"ibv_qp_attr", "rq_psn", unsafe.Offsetof(attr.RQPSN)},
		{"ibv_qp_attr", "sq_psn", unsafe.Offsetof(attr.SQPSN)},
		{"ibv_qp_attr", "dest_qp_num", unsafe.Offsetof(attr.DestQPNum)},
		{"ibv_qp_attr", "qp_access_flags", unsafe.Offsetof(attr.AccessFlags)},
		{"ibv_qp_attr", "cap", unsafe.Offsetof(attr.Cap)},
		{"ibv_qp_attr", "ah_attr", unsafe.Offsetof(attr.AH)},
		{"ibv_qp_attr", "pkey_index", unsafe.Offsetof(attr.PKeyIndex)},
		{"ibv_qp_attr", "max_rd_atomic", unsafe.Offsetof(attr.MaxRDAtomic)},
		{"ibv_qp_attr", "max_dest_rd_atomic", unsafe.Offsetof(attr.MaxDestRDAtomic)},
		{"ibv_qp_attr", "min_rnr_timer", unsafe.Offsetof(attr.MinRNRTimer)},
		{"ibv_qp_attr", "port_num", unsafe.Offsetof(attr.Port)},
		{"ibv_qp_attr", "timeout", unsafe.Offsetof(attr.Timeout)},
		{"ibv_qp_attr", "retry_cnt", unsafe.Offsetof(attr.RetryCount)},
		{"ibv_qp_attr", "rnr_retry", unsafe.Offsetof(attr.RNRRetry)},
		{"ibv_qp_attr", "rate_limit", unsafe.Offsetof(attr.RateLimit)},
		{"ibv_srq_init_attr", "", unsafe.Sizeof(srq)},
		{"ibv_srq_init_attr", "attr.max_wr", unsafe.Offsetof(srq.Attr) + unsafe.Offsetof(srq.Attr.MaxWR)},
		{"ibv_srq_init_attr", "attr.max_sge", unsafe.Offsetof(srq.Attr) + unsafe.Offsetof(srq.Attr.MaxSGE)},
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for _, l := range layouts() {
		what := fmt.Sprintf("offsetof(struct %s, %s)", l.name, l.member)
		if l.member == "" {
			what = fmt.Sprintf("sizeof(struct %s)", l.name)
		}
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", what, l.got, what)
	}
	compile(t, c.String())
}

// Where there is no header, a change of a structure by mistake is found by the sum of what the header said.
func TestLayoutsAreThoseOfRDMACore44(t *testing.T) {
	const want = "b807204e"
	sum := uint32(1)
	for _, l := range layouts() {
		sum = sum*31 + uint32(l.got)
	}
	if got := fmt.Sprintf("%x", sum); got != want {
		t.Errorf("the offsets and sizes sum up to %s, %s when they were compared with the header", got, want)
	}
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for name, got := range map[string]int64{
		"IBV_QP_STATE":              int64(MaskState),
		"IBV_QP_ACCESS_FLAGS":       int64(MaskAccessFlags),
		"IBV_QP_PKEY_INDEX":         int64(MaskPKeyIndex),
		"IBV_QP_PORT":               int64(MaskPort),
		"IBV_QP_AV":                 int64(MaskAV),
		"IBV_QP_PATH_MTU":           int64(MaskPathMTU),
		"IBV_QP_TIMEOUT":            int64(MaskTimeout),
		"IBV_QP_RETRY_CNT":          int64(MaskRetryCount),
		"IBV_QP_RNR_RETRY":          int64(MaskRNRRetry),
		"IBV_QP_RQ_PSN":             int64(MaskRQPSN),
		"IBV_QP_MAX_QP_RD_ATOMIC":   int64(MaskMaxQPRDAtomic),
		"IBV_QP_MIN_RNR_TIMER":      int64(MaskMinRNRTimer),
		"IBV_QP_SQ_PSN":             int64(MaskSQPSN),
		"IBV_QP_MAX_DEST_RD_ATOMIC": int64(MaskMaxDestRDAtomic),
		"IBV_QP_CAP":                int64(MaskCap),
		"IBV_QP_DEST_QPN":           int64(MaskDestQPN),
		"IBV_QPT_RC":                int64(QPTypeRC),
	} {
		fmt.Fprintf(&c, "_Static_assert(%s == %d, \"%s\");\n", name, got, name)
	}
	compile(t, c.String())
}

// The parameters and results that are bound, for each symbol that is looked up and for each function of the data path. An
// incompatible prototype does not compile. The parentheses are around names that the header also defines as macros.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	var c strings.Builder
	for i, f := range []struct{ result, name, params string }{
		{"struct ibv_device **", "(ibv_get_device_list)", "int *"},
		{"void ", "ibv_free_device_list", "struct ibv_device **"},
		{"const char *", "ibv_get_device_name", "struct ibv_device *"},
		{"struct ibv_context *", "ibv_open_device", "struct ibv_device *"},
		{"int ", "ibv_close_device", "struct ibv_context *"},
		{"int ", "ibv_query_device", "struct ibv_context *, struct ibv_device_attr *"},
		{"int ", "(ibv_query_port)", "struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *"},
		{"int ", "_ibv_query_gid_ex", "struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t"},
		{"int ", "ibv_get_async_event", "struct ibv_context *, struct ibv_async_event *"},
		{"void ", "ibv_ack_async_event", "struct ibv_async_event *"},
		{"struct ibv_pd *", "ibv_alloc_pd", "struct ibv_context *"},
		{"int ", "ibv_dealloc_pd", "struct ibv_pd *"},
		{"struct ibv_mr *", "ibv_reg_mr_iova2", "struct ibv_pd *, void *, size_t, uint64_t, unsigned"},
		{"struct ibv_mr *", "ibv_reg_dmabuf_mr", "struct ibv_pd *, uint64_t, size_t, uint64_t, int, int"},
		{"int ", "ibv_dereg_mr", "struct ibv_mr *"},
		{"struct ibv_comp_channel *", "ibv_create_comp_channel", "struct ibv_context *"},
		{"int ", "ibv_destroy_comp_channel", "struct ibv_comp_channel *"},
		{"struct ibv_cq *", "ibv_create_cq", "struct ibv_context *, int, void *, struct ibv_comp_channel *, int"},
		{"int ", "ibv_destroy_cq", "struct ibv_cq *"},
		{"int ", "ibv_get_cq_event", "struct ibv_comp_channel *, struct ibv_cq **, void **"},
		{"void ", "ibv_ack_cq_events", "struct ibv_cq *, unsigned"},
		{"struct ibv_qp *", "ibv_create_qp", "struct ibv_pd *, struct ibv_qp_init_attr *"},
		{"int ", "ibv_destroy_qp", "struct ibv_qp *"},
		{"int ", "ibv_modify_qp", "struct ibv_qp *, struct ibv_qp_attr *, int"},
		{"int ", "ibv_query_qp", "struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *"},
		{"struct ibv_srq *", "ibv_create_srq", "struct ibv_pd *, struct ibv_srq_init_attr *"},
		{"int ", "ibv_destroy_srq", "struct ibv_srq *"},
		{"int ", "((struct ibv_context_ops *)0)->poll_cq", "struct ibv_cq *, int, struct ibv_wc *"},
		{"int ", "((struct ibv_context_ops *)0)->req_notify_cq", "struct ibv_cq *, int"},
		{"int ", "((struct ibv_context_ops *)0)->post_srq_recv", "struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **"},
		{"int ", "((struct ibv_context_ops *)0)->post_send", "struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **"},
		{"int ", "((struct ibv_context_ops *)0)->post_recv", "struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **"},
	} {
		fmt.Fprintf(&c, "void check%d(void) { %s(*f)(%s) = %s; (void)f; }\n", i, f.result, f.params, f.name)
	}
	compile(t, c.String())
}
