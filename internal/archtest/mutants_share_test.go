package archtest

// shareMutants has the defects of memory shared between processes.
var shareMutants = []mutant{
	{"share", "TestRequirement2Socket", []edit{{
		"share/socket.go", "		} else if errors.Is(err, unix.ECONNREFUSED) {\n", "		} else if errors.Is(err, unix.ENOTDIR) {\n",
	}}},
	{"share", "TestRequirement2Socket", []edit{{
		"share/socket.go", "st.Mode&0o077 != 0 {", "st.Mode&0o007 != 0 {",
	}}},
	{"share", "TestRequirement2Users", []edit{{
		"share/server.go", "err != nil || !slices.Contains(s.o.Allow, int(cred.Uid)) {", "err != nil || slices.Contains(s.o.Allow, -1-int(cred.Uid)) {",
	}}},
	{"share", "TestRequirement2Users", []edit{{
		"share/link.go", "	if !slices.Contains(users, int(cred.Uid)) {\n", "	if slices.Contains(users, -1-int(cred.Uid)) {\n",
	}}},
	{"share", "TestRequirement2Bounds", []edit{{
		"share/server.go", "	_ = c.SetDeadline(time.Now().Add(s.o.RequestTimeout))\n", "",
	}}},
	{"share", "TestRequirement4NothingIsLeftOpen", []edit{{
		"share/importer.go", "	if cerr := closeFiles(h); err == nil && cerr != nil {\n", "	if cerr := error(nil); err == nil && cerr != nil {\n",
	}}},
	{"share", "TestRequirement4RogueExporter", []edit{{
		"share/link.go", "			for _, fd := range files {\n				err = errors.Join(err, unix.Close(fd))\n			}\n", "			err = errors.Join(err)\n",
	}}},
	{"share", "TestRequirement4UnsealedFile", []edit{{
		"internal/sys/hostmem/shared.go", "seals&unix.F_SEAL_SHRINK == 0 || ", "",
	}}},
	{"share", "TestRequirement5Unwinds", []edit{{
		"share/importer.go", "		err = errors.Join(err, hostmem.Free(m.bytes))\n		m.bytes = nil\n", "		m.bytes = nil\n",
	}}},
	{"share", "TestRequirement7Identity", []edit{{
		"share/importer.go", "		return m.err == nil && m.origin.Lost() == nil\n", "		return m.err == nil\n",
	}}},
	{"share", "TestRequirement7Identity", []edit{{
		"share/export.go", "		refuse(c, why)\n		_ = c.CloseWrite() // at once, where Close waits for who reads\n		_ = c.Close()\n", "		_ = c\n",
	}}},
	{"share", "TestRequirement7Identity", []edit{{
		"mem/extent.go", "	return e.Region.origin.Lost()\n", "	return nil\n",
	}}},
	{"share", "TestRequirement7ForkedExporter", []edit{{
		"share/link.go", "	return err == nil && n == 1\n", "	return err == nil && n > 1\n",
	}}},
	{"share", "TestRequirement7Cache", []edit{{
		"share/importer.go", "	last := m.refs == 0\n", "	last := m.refs >= 0\n",
	}}},
	{"share", "TestRequirement8Copies", []edit{{
		"device/sim/peer.go", "		return false // another device imported it\n", "		return true\n",
	}}},
	{"share", "TestRequirement8GoodOnlyIfLive", []edit{{
		"stream/copy/complete.go", "	if err == nil {\n		err = o.live()\n	}\n", "",
	}}},
	{"device/cuda", "TestImportMemory", []edit{{
		"device/cuda/peer.go", "		return false // another device imported it, and has access alone\n", "		return true\n",
	}}},
	{"device/cuda", "TestImportMemory", []edit{{
		"device/cuda/memory.go", "func (a *allocation) piecemeal() bool { return a.handle != 0 && !a.imported }", "func (a *allocation) piecemeal() bool { return a.handle != 0 }",
	}}},
	{"device/cuda", "TestExportForeignMemory", []edit{{
		"device/cuda/share.go", "	if !a.holds(r) {\n", "	if a.size == 0 {\n",
	}}},
}
