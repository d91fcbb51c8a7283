package ibverbs

import "syscall"

// operation returns the function pointer at offset off in the context of the queue at q. The inline
// functions in the header do the same.
func operation(q uintptr, off uintptr) uintptr {
	return *member[uintptr](*member[uintptr](q, offObjectContext), off)
}

// bindDataPath binds the functions of the data path. They must neither allocate nor lock threads.
// They return errors in their results instead of errno.
func (s *symbols) bindDataPath(a *API) {
	a.PollCQ = func(q CQ, w *WCArray, n int) int {
		f := s.get()
		r := f.call(operation(uintptr(q), offContextPollCQ), uintptr(q), uintptr(min(n, len(w.wcs))), w.address())
		s.put(f)
		return int(int32(uint32(r)))
	}
	a.ReqNotifyCQ = func(q CQ, solicitedOnly bool) syscall.Errno {
		solicited := uintptr(0)
		if solicitedOnly {
			solicited = 1
		}
		f := s.get()
		r := f.call(operation(uintptr(q), offContextReqNotifyCQ), uintptr(q), solicited)
		s.put(f)
		return result(r)
	}
	a.PostSend = func(q QP, c *SendChain) (int, syscall.Errno) {
		return post(s, operation(uintptr(q), offContextPostSend), uintptr(q), &c.chain)
	}
	a.PostRecv = func(q QP, c *RecvChain) (int, syscall.Errno) {
		return post(s, operation(uintptr(q), offContextPostRecv), uintptr(q), &c.chain)
	}
	a.PostSRQRecv = func(q SRQ, c *RecvChain) (int, syscall.Errno) {
		return post(s, operation(uintptr(q), offContextPostSRQRecv), uintptr(q), &c.chain)
	}
}

// post calls fn: int (queue, first work request, pointer to the first refused request).
func post[W request](s *symbols, fn, queue uintptr, c *chain[W]) (int, syscall.Errno) {
	if c.used == 0 {
		return 0, 0
	}
	f := s.get()
	defer s.put(f)
	errno := result(f.call(fn, queue, c.address(0), f.outPtr(0)))
	if errno == 0 {
		return c.used, 0
	}
	return c.index(f.out[0]), errno
}
