package ibverbs

import (
	"testing"
	"unsafe"

	"github.com/kvlane/kvlane/internal/sys/headertest"
	"github.com/kvlane/kvlane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var header = headertest.Header{Feature: "verbs-headers", Include: "#include <infiniband/verbs.h>", Struct: true}

func layouts() map[string]uintptr {
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
	return map[string]uintptr{
		"ibv_context.ops.poll_cq":       offContextPollCQ,
		"ibv_context.ops.req_notify_cq": offContextReqNotifyCQ,
		"ibv_context.ops.post_srq_recv": offContextPostSRQRecv,
		"ibv_context.ops.post_send":     offContextPostSend,
		"ibv_context.ops.post_recv":     offContextPostRecv,
		"ibv_context.async_fd":          offContextAsyncFD,
		"ibv_context.num_comp_vectors":  offContextVectors,
		"ibv_qp.context":                offObjectContext,
		"ibv_cq.context":                offObjectContext,
		"ibv_srq.context":               offObjectContext,
		"ibv_mr.lkey":                   offMRLKey,
		"ibv_mr.rkey":                   offMRRKey,
		"ibv_comp_channel.fd":           offChannelFD,
		"ibv_cq.cqe":                    offCQEntries,
		"ibv_qp.qp_num":                 offQPNum,

		"ibv_sge":                         unsafe.Sizeof(sge),
		"ibv_sge.addr":                    unsafe.Offsetof(sge.Addr),
		"ibv_sge.length":                  unsafe.Offsetof(sge.Length),
		"ibv_sge.lkey":                    unsafe.Offsetof(sge.LKey),
		"ibv_send_wr":                     unsafe.Sizeof(send),
		"ibv_send_wr.wr_id":               unsafe.Offsetof(send.WRID),
		"ibv_send_wr.next":                unsafe.Offsetof(send.next),
		"ibv_send_wr.sg_list":             unsafe.Offsetof(send.sgList),
		"ibv_send_wr.num_sge":             unsafe.Offsetof(send.numSGE),
		"ibv_send_wr.opcode":              unsafe.Offsetof(send.Opcode),
		"ibv_send_wr.send_flags":          unsafe.Offsetof(send.Flags),
		"ibv_send_wr.imm_data":            unsafe.Offsetof(send.Imm),
		"ibv_send_wr.wr.rdma.remote_addr": unsafe.Offsetof(send.RemoteAddr),
		"ibv_send_wr.wr.rdma.rkey":        unsafe.Offsetof(send.RKey),
		"ibv_recv_wr":                     unsafe.Sizeof(recv),
		"ibv_recv_wr.wr_id":               unsafe.Offsetof(recv.WRID),
		"ibv_recv_wr.next":                unsafe.Offsetof(recv.next),
		"ibv_recv_wr.sg_list":             unsafe.Offsetof(recv.sgList),
		"ibv_recv_wr.num_sge":             unsafe.Offsetof(recv.numSGE),
		"ibv_wc":                          unsafe.Sizeof(wc),
		"ibv_wc.wr_id":                    unsafe.Offsetof(wc.WRID),
		"ibv_wc.status":                   unsafe.Offsetof(wc.Status),
		"ibv_wc.opcode":                   unsafe.Offsetof(wc.Opcode),
		"ibv_wc.vendor_err":               unsafe.Offsetof(wc.VendorErr),
		"ibv_wc.byte_len":                 unsafe.Offsetof(wc.ByteLen),
		"ibv_wc.imm_data":                 unsafe.Offsetof(wc.Imm),
		"ibv_wc.qp_num":                   unsafe.Offsetof(wc.QPNum),
		"ibv_wc.wc_flags":                 unsafe.Offsetof(wc.Flags),
		"ibv_async_event":                 unsafe.Sizeof(ev),
		"ibv_async_event.element":         unsafe.Offsetof(ev.Element),
		"ibv_async_event.event_type":      unsafe.Offsetof(ev.Type),

		"ibv_device_attr":                     unsafe.Sizeof(dev),
		"ibv_device_attr.node_guid":           unsafe.Offsetof(dev.NodeGUID),
		"ibv_device_attr.max_mr_size":         unsafe.Offsetof(dev.MaxMRSize),
		"ibv_device_attr.vendor_id":           unsafe.Offsetof(dev.VendorID),
		"ibv_device_attr.vendor_part_id":      unsafe.Offsetof(dev.VendorPartID),
		"ibv_device_attr.max_qp":              unsafe.Offsetof(dev.MaxQP),
		"ibv_device_attr.max_qp_wr":           unsafe.Offsetof(dev.MaxQPWR),
		"ibv_device_attr.max_sge":             unsafe.Offsetof(dev.MaxSGE),
		"ibv_device_attr.max_sge_rd":          unsafe.Offsetof(dev.MaxSGERead),
		"ibv_device_attr.max_cq":              unsafe.Offsetof(dev.MaxCQ),
		"ibv_device_attr.max_cqe":             unsafe.Offsetof(dev.MaxCQE),
		"ibv_device_attr.max_mr":              unsafe.Offsetof(dev.MaxMR),
		"ibv_device_attr.max_pd":              unsafe.Offsetof(dev.MaxPD),
		"ibv_device_attr.max_qp_rd_atom":      unsafe.Offsetof(dev.MaxQPRDAtomic),
		"ibv_device_attr.max_qp_init_rd_atom": unsafe.Offsetof(dev.MaxQPInitRDAtomic),
		"ibv_device_attr.max_srq":             unsafe.Offsetof(dev.MaxSRQ),
		"ibv_device_attr.max_srq_wr":          unsafe.Offsetof(dev.MaxSRQWR),
		"ibv_device_attr.max_srq_sge":         unsafe.Offsetof(dev.MaxSRQSGE),
		"ibv_device_attr.phys_port_cnt":       unsafe.Offsetof(dev.PhysicalPortCount),
		"ibv_port_attr":                       unsafe.Sizeof(port),
		"ibv_port_attr.state":                 unsafe.Offsetof(port.State),
		"ibv_port_attr.max_mtu":               unsafe.Offsetof(port.MaxMTU),
		"ibv_port_attr.active_mtu":            unsafe.Offsetof(port.ActiveMTU),
		"ibv_port_attr.gid_tbl_len":           unsafe.Offsetof(port.GIDTableLen),
		"ibv_port_attr.max_msg_sz":            unsafe.Offsetof(port.MaxMsgSize),
		"ibv_port_attr.pkey_tbl_len":          unsafe.Offsetof(port.PKeyTableLen),
		"ibv_port_attr.lid":                   unsafe.Offsetof(port.LID),
		"ibv_port_attr.active_width":          unsafe.Offsetof(port.ActiveWidth),
		"ibv_port_attr.active_speed":          unsafe.Offsetof(port.ActiveSpeed),
		"ibv_port_attr.link_layer":            unsafe.Offsetof(port.LinkLayer),
		"ibv_gid_entry":                       unsafe.Sizeof(gid),
		"ibv_gid_entry.gid":                   unsafe.Offsetof(gid.GID),
		"ibv_gid_entry.gid_index":             unsafe.Offsetof(gid.Index),
		"ibv_gid_entry.gid_type":              unsafe.Offsetof(gid.Type),

		"ibv_qp_cap":                     unsafe.Sizeof(qcap),
		"ibv_qp_cap.max_send_wr":         unsafe.Offsetof(qcap.MaxSendWR),
		"ibv_qp_cap.max_recv_wr":         unsafe.Offsetof(qcap.MaxRecvWR),
		"ibv_qp_cap.max_send_sge":        unsafe.Offsetof(qcap.MaxSendSGE),
		"ibv_qp_cap.max_recv_sge":        unsafe.Offsetof(qcap.MaxRecvSGE),
		"ibv_qp_cap.max_inline_data":     unsafe.Offsetof(qcap.MaxInlineData),
		"ibv_qp_init_attr":               unsafe.Sizeof(init),
		"ibv_qp_init_attr.send_cq":       unsafe.Offsetof(init.SendCQ),
		"ibv_qp_init_attr.recv_cq":       unsafe.Offsetof(init.RecvCQ),
		"ibv_qp_init_attr.srq":           unsafe.Offsetof(init.SRQ),
		"ibv_qp_init_attr.cap":           unsafe.Offsetof(init.Cap),
		"ibv_qp_init_attr.qp_type":       unsafe.Offsetof(init.Type),
		"ibv_qp_init_attr.sq_sig_all":    unsafe.Offsetof(init.SigAll),
		"ibv_ah_attr":                    unsafe.Sizeof(ah),
		"ibv_ah_attr.grh.dgid":           unsafe.Offsetof(ah.DGID),
		"ibv_ah_attr.grh.flow_label":     unsafe.Offsetof(ah.FlowLabel),
		"ibv_ah_attr.grh.sgid_index":     unsafe.Offsetof(ah.SGIDIndex),
		"ibv_ah_attr.grh.hop_limit":      unsafe.Offsetof(ah.HopLimit),
		"ibv_ah_attr.grh.traffic_class":  unsafe.Offsetof(ah.TrafficClass),
		"ibv_ah_attr.dlid":               unsafe.Offsetof(ah.DLID),
		"ibv_ah_attr.sl":                 unsafe.Offsetof(ah.SL),
		"ibv_ah_attr.is_global":          unsafe.Offsetof(ah.IsGlobal),
		"ibv_ah_attr.port_num":           unsafe.Offsetof(ah.Port),
		"ibv_qp_attr":                    unsafe.Sizeof(attr),
		"ibv_qp_attr.qp_state":           unsafe.Offsetof(attr.State),
		"ibv_qp_attr.path_mtu":           unsafe.Offsetof(attr.PathMTU),
		"ibv_qp_attr.rq_psn":             unsafe.Offsetof(attr.RQPSN),
		"ibv_qp_attr.sq_psn":             unsafe.Offsetof(attr.SQPSN),
		"ibv_qp_attr.dest_qp_num":        unsafe.Offsetof(attr.DestQPNum),
		"ibv_qp_attr.qp_access_flags":    unsafe.Offsetof(attr.AccessFlags),
		"ibv_qp_attr.cap":                unsafe.Offsetof(attr.Cap),
		"ibv_qp_attr.ah_attr":            unsafe.Offsetof(attr.AH),
		"ibv_qp_attr.pkey_index":         unsafe.Offsetof(attr.PKeyIndex),
		"ibv_qp_attr.max_rd_atomic":      unsafe.Offsetof(attr.MaxRDAtomic),
		"ibv_qp_attr.max_dest_rd_atomic": unsafe.Offsetof(attr.MaxDestRDAtomic),
		"ibv_qp_attr.min_rnr_timer":      unsafe.Offsetof(attr.MinRNRTimer),
		"ibv_qp_attr.port_num":           unsafe.Offsetof(attr.Port),
		"ibv_qp_attr.timeout":            unsafe.Offsetof(attr.Timeout),
		"ibv_qp_attr.retry_cnt":          unsafe.Offsetof(attr.RetryCount),
		"ibv_qp_attr.rnr_retry":          unsafe.Offsetof(attr.RNRRetry),
		"ibv_qp_attr.rate_limit":         unsafe.Offsetof(attr.RateLimit),
		"ibv_srq_init_attr":              unsafe.Sizeof(srq),
		"ibv_srq_init_attr.attr.max_wr":  unsafe.Offsetof(srq.Attr) + unsafe.Offsetof(srq.Attr.MaxWR),
		"ibv_srq_init_attr.attr.max_sge": unsafe.Offsetof(srq.Attr) + unsafe.Offsetof(srq.Attr.MaxSGE),
	}
}

func TestLayoutsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, header.Layouts(layouts()))
}

// If there is no header, the checksum of the header's layouts detects an accidental change of a
// structure.
func TestLayoutsAreThoseOfRDMACore44(t *testing.T) {
	headertest.Sum(t, layouts(), "2faa0874")
}

func TestConstantsAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, headertest.Constants(map[string]int64{
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
	}))
}

// The parameters and results of each bound symbol and of each function of the data path. The C
// compiler rejects an incompatible prototype. Parentheses surround names that the header also
// defines as macros.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	header.Compile(t, headertest.Signatures(map[string]string{
		"(ibv_get_device_list)":                        "struct ibv_device **(*f)(int *)",
		"ibv_free_device_list":                         "void (*f)(struct ibv_device **)",
		"ibv_get_device_name":                          "const char *(*f)(struct ibv_device *)",
		"ibv_open_device":                              "struct ibv_context *(*f)(struct ibv_device *)",
		"ibv_close_device":                             "int (*f)(struct ibv_context *)",
		"ibv_query_device":                             "int (*f)(struct ibv_context *, struct ibv_device_attr *)",
		"(ibv_query_port)":                             "int (*f)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *)",
		"_ibv_query_gid_ex":                            "int (*f)(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t)",
		"ibv_get_async_event":                          "int (*f)(struct ibv_context *, struct ibv_async_event *)",
		"ibv_ack_async_event":                          "void (*f)(struct ibv_async_event *)",
		"ibv_alloc_pd":                                 "struct ibv_pd *(*f)(struct ibv_context *)",
		"ibv_dealloc_pd":                               "int (*f)(struct ibv_pd *)",
		"ibv_reg_mr_iova2":                             "struct ibv_mr *(*f)(struct ibv_pd *, void *, size_t, uint64_t, unsigned)",
		"ibv_reg_dmabuf_mr":                            "struct ibv_mr *(*f)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)",
		"ibv_dereg_mr":                                 "int (*f)(struct ibv_mr *)",
		"ibv_create_comp_channel":                      "struct ibv_comp_channel *(*f)(struct ibv_context *)",
		"ibv_destroy_comp_channel":                     "int (*f)(struct ibv_comp_channel *)",
		"ibv_create_cq":                                "struct ibv_cq *(*f)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int)",
		"ibv_destroy_cq":                               "int (*f)(struct ibv_cq *)",
		"ibv_get_cq_event":                             "int (*f)(struct ibv_comp_channel *, struct ibv_cq **, void **)",
		"ibv_ack_cq_events":                            "void (*f)(struct ibv_cq *, unsigned)",
		"ibv_create_qp":                                "struct ibv_qp *(*f)(struct ibv_pd *, struct ibv_qp_init_attr *)",
		"ibv_destroy_qp":                               "int (*f)(struct ibv_qp *)",
		"ibv_modify_qp":                                "int (*f)(struct ibv_qp *, struct ibv_qp_attr *, int)",
		"ibv_query_qp":                                 "int (*f)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)",
		"ibv_create_srq":                               "struct ibv_srq *(*f)(struct ibv_pd *, struct ibv_srq_init_attr *)",
		"ibv_destroy_srq":                              "int (*f)(struct ibv_srq *)",
		"((struct ibv_context_ops *)0)->poll_cq":       "int (*f)(struct ibv_cq *, int, struct ibv_wc *)",
		"((struct ibv_context_ops *)0)->req_notify_cq": "int (*f)(struct ibv_cq *, int)",
		"((struct ibv_context_ops *)0)->post_srq_recv": "int (*f)(struct ibv_srq *, struct ibv_recv_wr *, struct ibv_recv_wr **)",
		"((struct ibv_context_ops *)0)->post_send":     "int (*f)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **)",
		"((struct ibv_context_ops *)0)->post_recv":     "int (*f)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **)",
	}))
}
