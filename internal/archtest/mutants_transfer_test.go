package archtest

// transferMutants has the defects of transfers between processes.
var transferMutants = []mutant{
	defect("transfer", "TestFenceBeforeAnotherTry",
		"transfer/group.go", "	if err := g.to.p.settle(ctx); err != nil {\n", "	if err := ctx.Err(); err != nil {\n",
		"transfer/peer.go", "		p.e.start(p.fence)\n", "		_ = p.fence\n"),
	defect("transfer", "TestRestartedPeer",
		"transfer/serve.go", "	if h.to != (share.Identity{}) && h.to != e.id {\n", "	if h.to != h.to {\n",
		"transfer/peer.go", "		if err == nil && id != p.id {\n", "		if err == nil && id != id {\n"),
	defect("transfer", "TestUnregister",
		"transfer/segment.go", "	s.next += (r.Len() + align - 1) / align * align\n", "	_ = align\n"),
	defect("transfer", "TestNotify",
		"transfer/notify.go", "	if _, ok := b.had[k]; ok {\n", "	if _, ok := b.had[k]; ok && q == nil {\n"),
	defect("transfer", "TestImportedMemoryIsWithdrawn",
		"transfer/group.go", "	case r.path != PathTCP && g.b.o.Path == PathNone:\n", "	case r.path == PathNone:\n"),
	defect("transfer", "TestHostile",
		"transfer/memory/table.go", "		uint64(n) > t.spans[i].end()-at {\n", "		uint64(n) > t.spans[i].end() {\n"),
	defect("transfer/memory", "TestTable",
		"transfer/memory/table.go", "		uint64(n) > t.spans[i].end()-at {\n", "		uint64(n) > t.spans[i].end() {\n"),
	defect("transfer/memory", "TestMixedLists",
		"transfer/memory/mover.go", "		if p.done += n; p.done == e.Len {\n			p.list, p.done = p.list[1:], 0\n		}\n", "		if p.list[0] = e.Sub(n, e.Len-n); n == e.Len {\n			p.list = p.list[1:]\n		}\n"),
	defect("transfer/memory", "TestRemoveWaits",
		"transfer/memory/table.go", "	case <-s.idle:\n	case <-ctx.Done():\n", "	default:\n	case <-ctx.Done():\n"),
	defect("transfer/metadata", "TestLeases",
		"transfer/metadata/server.go", "	if !ok || e.over(s.clock.Now()) {\n", "	if !ok {\n"),
}
