// Package ibverbs binds libibverbs.so.1, the user space library of RDMA devices, without cgo. Load
// opens it and resolves every function into an API, a table of Go functions. There is no later
// resolution and no global state. The functions are thin: they take and return Go values, and
// return an errno. Package rdma/ibv maps them to errors, counts open objects, and follows the
// rules of the verbs. Tests may fill an API with their own functions.
//
// # Versions
//
// Most symbols exist twice, as IBVERBS_1.0 for programs of 2006 and as IBVERBS_1.1. A lookup by
// name finds the default version, 1.1, whose structures are those of <infiniband/verbs.h> and of
// this package. _ibv_query_gid_ex came with rdma-core 33 (IBVERBS_1.11). ibv_reg_dmabuf_mr, of
// rdma-core 34 (IBVERBS_1.12), may be missing. The test of the layouts compiles all offsets,
// sizes, constants and signatures against the header.
//
// # The data path
//
// ibv_post_send, ibv_post_recv, ibv_post_srq_recv, ibv_poll_cq and ibv_req_notify_cq are not
// symbols. The header has them as inline functions that call through pointers at fixed places of
// struct ibv_context, and this package does the same.
//
// A call costs at least about 80 ns (BenchmarkCall), as it goes through the scheduler like a
// system call. So the data path uses arrays: one call posts a SendChain or RecvChain, and one call
// fills a WCArray. They are host memory outside of the Go heap, allocated once, because the
// library follows pointers in them. A call allocates nothing.
//
// # Errors and threads
//
// For a function that reports errors by errno, the goroutine is locked to its thread, and errno is
// cleared before the call and read after it. Some providers return a negative errno, and some fail
// without one, which becomes EIO. Results of C's type int leave the upper half of the register
// undefined and are cut to 32 bits.
//
// All functions of an API are safe for concurrent use, as in libibverbs. Objects must not be freed
// while another call uses them.
package ibverbs
