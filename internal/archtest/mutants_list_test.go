package archtest

// mutants has the defects of published streams over NICs, in the order of docs/hardware-support.md.
var mutants = []mutant{
	{"stream/nic", "TestDefectDroppedCallbackAnsweredOK", []edit{{
		"stream/nic/complete.go",
		"	if wc.Status != rdma.WCSuccess {\n",
		"	if wc.Status == rdma.WCSuccess && s.lost {\n",
	}}},
	{"stream/nic", "TestDefectWaitWithoutDeadline", []edit{{
		"stream/nic/fail.go",
		"		s.watching = true\n		s.watchdog.Reset(s.opts.Timeout)\n",
		"",
	}}},
	{"stream/nic", "TestDefectFullRingLeavesHalfABatch", []edit{{
		"stream/nic/issue.go",
		"				return worked, false\n",
		"				o.End(fmt.Errorf(\"no room\"))\n				return worked, true\n",
	}}},
	{"rdma/registry", "TestDefectRangeTableReadWithoutLock", []edit{{
		"rdma/registry/registry.go",
		"slices.DeleteFunc(slices.Clone(*g.table.Load()), func",
		"slices.DeleteFunc(*g.table.Load(), func",
	}}},
	{"rdma/registry", "TestDefectRangeTableReadWithoutLock", []edit{{
		"rdma/registry/registry.go",
		"slices.Concat(*g.table.Load(), ms)",
		"append(*g.table.Load(), ms...)",
	}}},
	{"rdma/registry", "TestDefectDeregistrationInFlight", []edit{{
		"rdma/registry/register.go",
		"		select {\n		case <-m.idle:\n		case <-ctx.Done():\n",
		"		select {\n		case <-m.idle:\n		default:\n			return g.deregister(m)\n		case <-ctx.Done():\n",
	}}},
	{"stream/nic", "TestDefectDeregistrationInFlight", []edit{{
		"stream/nic/manifest.go",
		"		m.held = append(m.held, h)\n",
		"		h.Release()\n",
	}}},
	{"stream/nic", "TestDefectRegistrationPerTransfer", []edit{{
		"stream/nic/manifest.go",
		"errors.Is(err, errdefs.ErrNotFound) && s.opts.RegisterOnUse {",
		"errors.Is(err, errdefs.ErrNotFound) {",
	}}},
	{"stream/nic", "TestDefectRegistrationPerTransfer", []edit{
		{"stream/nic/manifest.go", "import (\n", "import (\n	\"context\"\n"},
		{
			"stream/nic/manifest.go",
			"		h, err := l.reg.Acquire(e, Access)\n",
			"		if s.opts.RegisterOnUse {\n			_ = l.reg.Unregister(context.Background(), r)\n		}\n		h, err := l.reg.Acquire(e, Access)\n",
		},
	}},
	{"stream/nic", "TestDefectContextDomainAndRegistrationPerStream", []edit{{
		"rdma/channel/channel.go",
		"		if p.QP, err = c.nic.PD().CreateQP(",
		"		pd, err := dev.AllocPD()\n		if err != nil {\n			return err\n		}\n		if p.QP, err = pd.CreateQP(",
	}}},
	{"stream/nic", "TestDefectPortGIDAndMTUHardCoded", []edit{{
		"rdma/channel/channel.go",
		"c.connect.Port, c.connect.GIDIndex, c.connect.MTU = port.Number, port.GIDIndex, port.MTU",
		"_, c.connect.Port, c.connect.GIDIndex, c.connect.MTU = port, 1, 0, rdma.MTU4096",
	}}},
	{"stream/nic", "TestDefectOneReadOutstanding", []edit{{
		"rdma/connect.go",
		"MaxRDAtomic: min(depth(info.MaxQPInitRDAtomic), remote.RDepth)",
		"MaxRDAtomic: 1",
	}}},
	{"stream/nic", "TestDefectSignalAndDoorbellPerCopy", []edit{{
		"stream/nic/pair.go",
		"		n := min(q.built-q.Posted(), q.mask+1-from)\n",
		"		n := uint64(1)\n",
	}}},
	{"stream/nic", "TestDefectNoSplitAtMaxMessage", []edit{{
		"stream/nic/rail.go",
		"min(s.opts.RequestBytes, l.MessageBytes)",
		"s.opts.RequestBytes",
	}}},
	{"stream/nic", "TestDefectStatusAndVendorErrorDropped", []edit{{
		"stream/nic/error.go",
		"Status: wc.Status, Opcode: wc.Opcode, VendorErr: wc.VendorErr,",
		"Status: rdma.WCGeneralErr, Opcode: wc.Opcode,",
	}}},
	{"rdma/registry", "TestDefectNoDMABufRegistration", []edit{{
		"rdma/registry/register.go",
		"	mr, why = g.registerDMABuf(e, o)\n",
		"	why = errdefs.ErrNotSupported\n",
	}}},
	{"rdma/registry", "TestDefectNoDMABufRegistration", []edit{{
		"rdma/registry/register.go",
		"g.pd.RegDMABufMR(e, fd, off, o)",
		"g.pd.RegDMABufMR(e, fd, 0*off, o)",
	}}},
	{"gdr", "TestDefectNoDMABufRegistration", []edit{{
		"gdr/nics.go",
		"		o.Exporter, _ = dev.(device.DMABufExporter) // not every device exports memory\n",
		"",
	}}},
	{"stream/nic", "TestDefectGPUWritesNotFlushed", []edit{{
		"stream/nic/tell.go",
		"o.uses.writes()&bit&^s.visible != 0",
		"bit == 0",
	}}},
	{"gdr", "TestDefectGPUWritesNotFlushed", []edit{{
		"gdr/nics.go",
		"RegisterOnUse: n.cfg.RegisterOnUse, Flush: n.flush}",
		"RegisterOnUse: n.cfg.RegisterOnUse}",
	}}},
	{"gdr", "TestDefectGPUWritesNotFlushed", []edit{{
		"gdr/nics.go",
		"		if n.flush, err = flusher(dev); err != nil {\n			return nil, err\n		}\n",
		"",
	}}},
}
