package archtest

// transferMutants has the defects of transfers between processes.
var transferMutants = []mutant{
	{"transfer/mooncake", "TestWrongTasks", []edit{{
		"transfer/mooncake/segment.go", "	return addr >= b.Addr && length <= b.Length && addr-b.Addr <= b.Length-length\n", "	return addr >= b.Addr && addr+length <= b.Addr+b.Length\n",
	}}},
	{"transfer/mooncake", "TestHostileRequests", []edit{{
		"transfer/mooncake/memory.go", "at < 0 || length == 0 || m.regions[at].gone || !m.regions[at].holds(addr, length) {", "at < 0 || m.regions[at].gone || addr-m.regions[at].Addr > m.regions[at].Length {",
	}, {
		"transfer/mooncake/session.go", "	if h.length == 0 || s.o.Memory.Check(h.addr, h.length) != nil {\n", "	if s.o.Memory.Check(h.addr, min(h.length, 1)) != nil {\n",
	}}},
	{"transfer/mooncake", "TestRejectionMidBody", []edit{{
		"transfer/mooncake/session.go", "	hangUp(f.Conn, rejectTime)\n", "",
	}}},
	{"transfer/mooncake", "TestRemoveWaitsForTransfers", []edit{{
		"transfer/mooncake/memory.go", "	h.users++\n", "",
	}, {
		"transfer/mooncake/memory.go", "	if h.users--; h.gone && h.users == 0 {\n		close(h.idle)\n	}\n", "",
	}}},
	{"transfer/mooncake", "TestHostileHandshakes", []edit{{
		"transfer/mooncake/handshake.go", "	if n == 0 || n > maxFrame {\n", "	if n == 0 {\n",
	}}},
	{"transfer/mooncake", "TestInitiatorBytes", []edit{{
		"transfer/mooncake/lane.go", "			if !v2 { // the byte comes", "			if v2 && !v2 { // the byte comes",
	}}},
	{"transfer/mooncake", "TestRejectionIsOfOneTask", []edit{{
		"transfer/mooncake/lane.go", "			refused, under = under[0], under[1:]\n			again, under =", "			refused, under = under[0], under[1:]\n			_, under =",
	}}},
}
