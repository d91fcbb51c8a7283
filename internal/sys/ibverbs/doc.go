// Package ibverbs binds libibverbs.so.1, the user space of RDMA devices, without cgo. Load opens it and resolves every
// function into an API, a table of Go functions that its owner holds: nothing is resolved later, and nothing is global.
// The functions are thin: they take and return Go values and answer an errno. Mapping those to errors, counting what is
// open, and the rules of the verbs are the business of package rdma/ibv. A test may fill an API with functions of its own.
//
// # Versions
//
// Most symbols exist twice, as IBVERBS_1.0 for programs of 2006 and as IBVERBS_1.1. Looking one up by its name finds the
// default version, 1.1, whose structures are those of <infiniband/verbs.h> and of this package. _ibv_query_gid_ex came
// with rdma-core 33 (IBVERBS_1.11); ibv_reg_dmabuf_mr, with rdma-core 34 (IBVERBS_1.12), may be missing. The test of the
// layouts compiles all offsets, sizes, constants and signatures used here against the header.
//
// # The data path
//
// ibv_post_send, ibv_post_recv, ibv_post_srq_recv, ibv_poll_cq and ibv_req_notify_cq are no symbols: the header has them
// as inline functions that call through pointers at fixed places of struct ibv_context, and so does this package.
//
// A call costs about 80 ns however little it does (BenchmarkCall), as it goes through the scheduler like a system call. So the
// data path takes arrays: a SendChain or RecvChain goes down in one call, and a WCArray comes up in one. They are host
// memory outside of the Go heap, made once: the device's library follows pointers in them, and a call allocates nothing.
//
// # Errors and threads
//
// A function that answers by errno is called with the goroutine locked to its thread, on which errno is cleared before and
// read after. Some providers answer a negative errno, some fail without one: that is EIO here. Results of C's type int
// leave the upper half of the register undefined and are cut to 32 bits.
//
// All functions of an API are safe for concurrent use, as libibverbs is. Freeing what another call is using is not.
package ibverbs
