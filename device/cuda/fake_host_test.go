package cuda

import "github.com/kvlane/kvlane/internal/sys/cuda"

func (f *fake) hostMemory(a *cuda.API) {
	a.MemHostRegister = func(addr, bytes uint64, _ uint32) cuda.Result {
		r := f.enter("cuMemHostRegister_v2", contextRelaxed)
		if r == cuda.Success && f.maxHost > 0 && bytes > f.maxHost {
			return cuda.ErrorOutOfMemory
		}
		if r == cuda.Success {
			f.set(func() { f.add("registration", addr); f.hosts[addr] = bytes })
		}
		return r
	}
	a.MemHostUnregister = func(addr uint64) cuda.Result {
		r := f.gone("registration", addr, f.enter("cuMemHostUnregister", contextRelaxed))
		if r == cuda.Success {
			f.set(func() { delete(f.hosts, addr) })
		}
		return r
	}
	a.MemHostGetDevicePointer = func(addr uint64) (cuda.DevicePtr, cuda.Result) {
		r := f.enter("cuMemHostGetDevicePointer_v2", contextRelaxed)
		f.mu.Lock()
		defer f.mu.Unlock()
		return cuda.DevicePtr(addr ^ fakeHost + f.gap*uint64(len(f.hosts)-1)), r
	}
}

// fakeHost is set in device addresses of host memory.
const fakeHost = 1 << 60

// one fails the test if the bytes at p span several host registrations, because a driver may refuse
// such copies.
func (f *fake) one(p cuda.DevicePtr, bytes uint64) {
	if p&fakeHost == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	at := uint64(p) ^ fakeHost
	for addr, n := range f.hosts {
		if at >= addr && at+bytes <= addr+n {
			return
		}
	}
	f.tb.Errorf("%d bytes at %#x are in no single registration", bytes, p)
}
