package cuda

func (s *symbols) bindPeers(a *API) {
	can, enable := s.Need("cuDeviceCanAccessPeer"), s.Need("cuCtxEnablePeerAccess")
	a.DeviceCanAccessPeer = func(dev, peer DeviceID) (bool, Result) {
		v, r := s.out(can, uintptr(dev), uintptr(peer))
		return uint32(v) != 0, r
	}
	a.CtxEnablePeerAccess = func(peer Context) Result { return s.do(enable, uintptr(peer), 0) }
}
