package archtest

// remoteMutants are defects of the tier of block servers.
var remoteMutants = []mutant{
	defect("tier/remote", "TestBreakerOfASilentServer",
		"tier/remote/server.go", "	permit.Fail(err)\n", "	permit.Succeed()\n"),
	defect("tier/remote", "TestBreakerOfASilentServer",
		"tier/remote/server.go", "	case err == nil || answered(err):\n", "	case err == nil || answered(err) || within.Err() != nil:\n"),
	defect("tier/remote", "TestServersFailAndComeBack",
		"tier/remote/server.go", "context.WithTimeout(ctx, timeout)", "context.WithTimeout(ctx, 300*timeout)"),
	defect("tier/remote", "TestServersFailAndComeBack",
		"tier/remote/tier.go", "	case errors.Is(err, tier.ErrUnavailable), errors.Is(err, errdefs.ErrBusy):\n", "	case errors.Is(err, errdefs.ErrBusy):\n"),
	defect("tier/remote", "TestPlacementFollowsWeights",
		"tier/remote/placement.go", "-math.Log(u) / s.weight", "-math.Log(u)"),
	defect("tier/remote", "TestPlacementMovesLittle",
		"tier/remote/placement.go", "xxh3.HashSeed(anchor[:], s.seed)", "xxh3.HashSeed(anchor[:], s.seed+uint64(len(p.servers)))"),
	defect("tier/remote", "TestRunsAreInOneServer",
		"tier/remote/tier.go", "	if !ok {\n		t.unanchored.Add(1)\n", "	if !ok || true {\n		t.unanchored.Add(1)\n"),
	defect("tier/remote", "TestWritesAreBounded",
		"tier/remote/tier.go", "		t.dropped.Add(1)\n", ""),
	defect("tier", "TestAnchorsOfRuns",
		"tier/anchors.go", "(r.index + 1) % RunBlocks", "r.index + 1"),
	defect("tier", "TestAnchorsOfRuns",
		"tier/anchors.go", "n.index%PartBlocks == 0", "n.index == 0"),
	defect("store/index", "TestPlacedTierKnowsAnchors",
		"store/index/lease.go", "	l.x.anchors.Prompt(l.keys)\n", ""),
	defect("store/index", "TestPlacedTierKnowsAnchors",
		"store/index/index.go", "	x.anchors.Follow(before, keys)\n", ""),
}
