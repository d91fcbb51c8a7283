package archtest

// rpcrdmaMutants are the defects of RPC over RDMA and of the memory behind it.
var rpcrdmaMutants = []mutant{
	defect("mem", "TestDefectRegionNFails",
		"mem/arena.go", "errors.Join(err, a.drop(context.Background(), r))", "err"),
	defect("mem", "TestDefectRegionNFails",
		"mem/arena.go", "		a.fail(fmt.Errorf(\"acquire a block: add a region of %d bytes: %w\", a.o.RegionBytes, err))\n		return\n",
		"		panic(err)\n"),
	defect("mem", "TestDefectLockDuringRegistration",
		"mem/arena.go", "	r, err := a.open()\n	a.mu.Lock()\n", "	a.mu.Lock()\n	r, err := a.open()\n"),
	defect("mem", "TestArenaTrims",
		"mem/arena.go", "	if r.isUnused() {\n		a.markUnused(r)\n	}\n}\n", "}\n"),
}
