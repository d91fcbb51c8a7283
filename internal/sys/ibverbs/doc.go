// Package ibverbs binds libibverbs.so.1, the user space library of RDMA devices, without cgo. Load
// opens it and resolves all functions into an API, a table of Go functions. There is no lazy
// resolution and no global state. The functions only convert arguments and results to Go types and
// return an errno. Package rdma/ibv maps them to errors, counts open objects, and follows the rules
// of the verbs. Tests may use an API with their own functions.
//
// # Versions
//
// Most symbols exist in two versions, IBVERBS_1.0 for programs of 2006 and IBVERBS_1.1. A lookup by
// name finds the default version, 1.1, which uses the structures of <infiniband/verbs.h>.
// _ibv_query_gid_ex requires rdma-core 33 (IBVERBS_1.11). ibv_reg_dmabuf_mr, since rdma-core 34
// (IBVERBS_1.12), is optional. A test compiles all offsets, sizes, constants and signatures against
// the header.
//
// # The data path
//
// ibv_post_send, ibv_post_recv, ibv_post_srq_recv, ibv_poll_cq and ibv_req_notify_cq are not
// symbols. The header defines them as inline functions that call function pointers at fixed offsets
// in struct ibv_context. This package does the same.
//
// A call takes at least 80 ns (BenchmarkCall), because it involves the Go scheduler like a system
// call. Therefore one call posts a whole SendChain or RecvChain, or fills a WCArray. These arrays
// are allocated once, outside the Go heap, because the library follows pointers in them. Calls do
// not allocate memory.
//
// # Errors and threads
//
// For a function that reports errors by errno, the goroutine is locked to its thread, and errno is
// cleared before the call and read after it. Some providers return a negative errno. Failures
// without an errno are reported as EIO. For results of type int, only the lower 32 bits of the
// register are used, because the upper half is undefined.
//
// All functions of an API are safe for concurrent use, as in libibverbs. Objects must not be freed
// while another call uses them.
package ibverbs
