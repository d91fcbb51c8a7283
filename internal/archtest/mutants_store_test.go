package archtest

// storeMutants has the defects that attacks on the store, its directories and the streams below it have shown.
var storeMutants = []mutant{
	// Links, FIFOs and what else others plant.
	{"internal/dirfs", "TestNothingButRegularFilesIsOpened", []edit{{
		"internal/dirfs/os.go", "flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|", "flag|unix.O_NOFOLLOW|",
	}}},
	{"internal/dirfs", "TestNothingButRegularFilesIsOpened", []edit{{
		"internal/dirfs/os.go", "flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|", "flag|unix.O_NONBLOCK|",
	}}},
	{"internal/dirfs", "TestNoPartOfANameMayBeALink", []edit{{
		"internal/dirfs/os.go", "unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)", "unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)",
	}}},
	{"tier/file", "TestDefectLinksAreFollowed", []edit{{
		"internal/dirfs/os.go", "unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)", "unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)",
	}}},
	{"tier/file", "TestDefectLinksAreFollowed", []edit{{
		"tier/internal/blockdir/folder.go", "d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)", "d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)",
	}, {
		"tier/internal/blockdir/marker.go", "temp := MarkerTemp + \".\" + NewID()", "temp := MarkerTemp",
	}}},
	{"tier/file", "TestDefectFolderAmongTemporaryFilesStopsOpening", []edit{{
		"tier/file/session.go", "		if left += l; err != nil && l == 0 {\n			left++\n		}\n", "		if left += l; err != nil {\n			return files, left, err\n		}\n",
	}}},
	{"tier/file", "TestDefectLockOpenWhenRemoved", []edit{{
		"tier/file/session.go", "	err := s.lock.Close()\n	_, _, rerr := removeSession(s.dir, s.name)\n", "	_, _, rerr := removeSession(s.dir, s.name)\n	err := s.lock.Close()\n",
	}}},
	// Collecting that goes on.
	{"tier/file", "TestDefectWritingStallsAfterAFailedRound", []edit{{
		"tier/file/collect.go", "			again = a.clock.After(pause)\n", "",
	}}},
	{"tier/file", "TestDefectRoundRemovesForWhatIsWrittenMeanwhile", []edit{{
		"tier/file/collect.go", "r.freed >= enough || ", "enough < 0 || ",
	}}},
	{"tier/file", "TestDefectOneFileThatStaysStopsEviction", []edit{{
		"tier/file/collect.go", "		if r.remove(&c) {\n			listed = false\n		}\n", "		if !r.remove(&c) {\n			a.cold = nil\n			return nil\n		}\n		listed = false\n",
	}}},
	{"tier/file", "TestDefectCandidatesRemovedByOthersStallWriting", []edit{{
		"tier/file/collect.go", "			again = a.clock.After(pause)\n", "",
	}, {
		"tier/file/collect.go", "	case blockdir.Gone(err):\n		return true\n", "	case blockdir.Gone(err):\n		return false\n",
	}, {
		"tier/file/get.go", "		a.space.missing()\n", "",
	}}},
	{"tier/file", "TestDefectWaitForRoomHasNoEnd", []edit{{
		"tier/file/area.go", "			patience = ticker.Chan()\n", "",
	}}},
	{"tier/file", "TestDefectWaitForRoomHasNoEnd", []edit{{
		"tier/file/area.go", "		err := full(failure)\n		a.pause.Begin(a.clock.Now(), err)\n", "		err := full(failure)\n",
	}}},
	{"tier/file", "TestDefectWriteWaitsForAListing", []edit{{
		"tier/file/count.go", "		keys, _, err := listBucket(d, i)\n", "		a.space.mu.Lock()\n		keys, _, err := listBucket(d, i)\n		a.space.mu.Unlock()\n",
	}}},
	{"tier/file", "TestFullDiskMakesRoomWithinTheBound", []edit{{
		"tier/file/put.go", "full := try == roomTries || !a.space.shrink(t.clock.Now())", "full := true",
	}}},
	{"tier/file", "TestDefectFullDiskFailsEveryLaterWrite", []edit{{
		"tier/file/put.go", "		if full {\n			a.pause.Begin(t.clock.Now(), err)\n", "		if full {\n",
	}}},
	{"tier/file", "TestDefectRemovedTemporaryFolderFailsEveryWrite", []edit{{
		"tier/file/put.go", "	if blockdir.Gone(err) {\n		if rerr", "	if blockdir.Gone(err) && try > 0 {\n		if rerr",
	}, {
		"tier/file/put.go", "	s := d.session.Load()\n	info, err", "	s, try := d.session.Load(), 0\n	info, err",
	}}},
	{"tier/file", "TestDefectCountsOfAnUnboundedTierStayWrong", []edit{{
		"tier/file/collect.go", "f := a.failure.Load(); n != used || *f != nil {", "f := a.failure.Load(); n < used || *f != nil {",
	}}},
	// Copies that are there already.
	{"tier/file", "TestDefectDamagedCopyIsTakenForStored", []edit{{
		"tier/file/put.go", "	if !whole {\n		info, err = t.examine(ctx, d, key, info)\n	}\n", "	if !whole {\n		err = t.plausible(key, info)\n	}\n",
	}}},
	{"store", "TestDefectDumpTakesDamagedCopiesForStored", []edit{{
		"tier/file/tier.go", "kept[i] = whole && (synced", "kept[i] = !whole || (synced",
	}}},
	{"store", "TestDefectUnreadableFileIsNeverHealed", []edit{{
		"tier/file/put.go", "	return false, &unreadable{info, err}, nil\n", "	return true, nil, nil\n",
	}}},
	{"tier/file", "TestDefectUnreadableOnceLosesADurableBlock", []edit{{
		"tier/file/put.go", "	return false, &unreadable{info, err}, nil\n", "	return false, nil, t.quarantineFile(d, key, info)\n",
	}}},
	{"tier/file", "TestDefectUnreadableOnceIsLostWithWhatReplacesIt", []edit{{
		"tier/file/put.go", "!replace && serr == nil && now.Inode == info.Inode", "serr == nil && now.Inode == info.Inode",
	}}},
	{"tier/file", "TestDefectDirectoryMadeByAnotherMeanwhile", []edit{{
		"tier/file/dir.go", "			if _, err := d.readMarker(c); blockdir.Gone(err) {\n", "			if _, err := d.readMarker(c); err == nil || blockdir.Gone(err) {\n",
	}}},
	// Hosts that share a directory.
	{"tier/file", "TestDefectStaleHandlesFailAWrite", []edit{{
		"tier/file/put.go", "	if blockdir.Gone(err) {\n		if rerr", "	if errors.Is(err, unix.ENOENT) {\n		if rerr",
	}}},
	{"tier/file", "TestDefectTwoHostsMakeADirectory", []edit{{
		"tier/file/dir.go", "errors.Is(err, unix.EEXIST) { // another host", "errors.Is(err, unix.ENOTDIR) { // another host",
	}}},
	// Blocks that are read without being verified.
	{"store", "TestDefectUnverifiedBlockIsNotTrusted", []edit{{
		"store/fetch.go", "	return raw, nil\n", "	return s.publish(fill)\n",
	}}},
	{"store", "TestDefectDamagedFileIsFoundOnTheWay", []edit{{
		"store/unproven.go", "if !t.raw || it.wrong > 0 || it.cause != nil {", "if !t.raw || it == nil {",
	}}},
	{"store", "TestDefectManyLoadsOfADamagedFile", []edit{{
		"store/unproven.go", "if !t.raw || it.wrong > 0 || it.cause != nil {", "if !t.raw || it == nil {",
	}}},
	{"store", "TestDefectWaitsForRoomAddUp", []edit{{
		"store/write.go", "		s.full[at].Store(true)\n", "",
	}}},
	// What is durable.
	{"tier/file", "TestDefectPutMakesDurableWhatIsThere", []edit{{
		"tier/file/put.go", "		err = t.makeDurable(d, key, info)\n", "",
	}}},
	{"tier/file", "TestDefectFolderThatIsNotSyncedYet", []edit{{
		"tier/file/put.go", "	if err := blockdir.SyncRoot(d); err != nil {\n		return err\n	}\n	b.durable", "	b.durable",
	}}},
	{"tier/file", "TestDefectFreshRoot", []edit{{
		"tier/file/dir.go", "		err = c.FS.SyncParents(d.root)\n", "",
	}}},
	{"tier/file", "TestDefectLookupIsNotReadyBeforeItIsDurable", []edit{{
		"tier/file/put.go", "		t.owners.Publish(key)\n", "",
	}}},
	{"tier/file", "TestDefectLateUnsyncedPutUndoesASyncedOne", []edit{{
		"tier/file/put.go", "	err = d.Rename(temp, name, replace)\n	if blockdir.Gone", "	err = d.Rename(temp, name, true)\n	if blockdir.Gone",
	}}},
	// Verifying.
	{"tier/file", "TestDefectVerifyHangsOrStopsAtWhatItShouldFind", []edit{{
		"tier/file/verify.go", "	if err != nil {\n		v.unjudged(name, err)\n		return\n	}\n	if bad", "	if err != nil {\n		return\n	}\n	if bad",
	}}},
	{"tier/file", "TestDefectReadOnlyMountCannotBeVerified", []edit{{
		"tier/internal/blockdir/lock.go", "	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) {\n		if lock", "	if Gone(err) {\n		if lock",
	}}},
	// The store.
	{"store", "TestDefectAlwaysFindsABitFlippedBetweenTheCheckAndTheCopy", []edit{{
		"store/loadcopy.go", "if it.checked && t.s.cfg.Verify != VerifyAlways {", "if it.checked {",
	}}},
	{"store", "TestDefectPublishedWhenLastIndexShardLands", []edit{{
		"store/dumplayers.go", "	for k := 0; k < t.s.shards && g.err == nil; {\n", "	for k := 0; k < t.s.shards && g.err == nil; {\n		if len(t.arrivals) > 0 && t.arrivals[len(t.arrivals)-1].shard == t.s.shards-1 {\n			break\n		}\n",
	}}},
	{"store", "TestDefectLoadRefusesALeaseOfOtherKeys", []edit{{
		"store/index/lease.go", "if i := l.lacks(keys); i >= 0 {", "if i := l.lacks(keys); i < -1 {",
	}}},
	// Page groups.
	{"block", "TestDefectKeyOfAnotherGroupVerifies", []edit{{
		"block/formats.go", "		copy(key[KeyBytes-tagBytes:], tag[:])\n", "		_ = tag\n",
	}}},
	{".", "TestDefectKeyOfAnotherGroupHits", []edit{{
		"store/pages.go", "		if g < 0 {\n", "		if g < 0 {\n			g = 0\n		}\n		if g < 0 {\n",
	}}},
	{".", "TestDefectPageOfTwoGroups", []edit{{
		"store/pages.go", "			if p.share(layers[o], layers[g]) {\n", "			if g < o {\n",
	}}},
	// Order with streams of the host program.
	{".", "TestDumpComesAfterRecordedWork", []edit{{
		"hoststream.go", "	return s.WaitEvent(ctx, e)\n", "	_ = e\n	return nil\n",
	}}},
	{".", "TestHostStreamsGetAllAhead", []edit{{
		"engine.go", "Prepare: e.cfg.HostStreams", "Prepare: false",
	}}},
	{"store", "TestReplacedStreamWaitsForRecordedWorkToo", []edit{{
		"store/lane.go", "if err = precede(ctx, st, after); err == nil {", "if err = precede(ctx, st, after[:len(after)*(1-try)]); err == nil {",
	}}},
	{"store", "TestDumpBehindRecordedWorkHoldsFewSlots", []edit{{
		"store/dumplayers.go", "	t.s.layerSlots.Release(want)\n", "",
	}, {
		"store/dumplayers.go", "t.s.layerSlots.Acquire(wait, want)", "wait.Err()",
	}}},
	{"store", "TestLoadTellsItsProgress", []edit{{
		"store/load.go", "		t.progress.advance(n)\n", "",
	}}},
	{"store", "TestLoadThatIsWaitedForExpires", []edit{{
		"store/progress.go", "	p.to.Set(err)\n	p.s.count", "	p.s.count",
	}}},
	// What has landed.
	{"stream/copy", "TestConformanceSim/kernel/what_has_landed", []edit{{
		"stream/copy/move/parts.go", "	for p.landed < p.N && p.Landed(p.landed) {", "	for p.landed < p.N {",
	}}},
	{"store", "TestWrongShardIsCopiedAgainWithThoseBehindIt", []edit{{
		"store/loadcopy.go", "			case w != nil && (missing < 0 || w.part < missing):", "			case w != nil && w.part < missing:",
	}}},
	{"store", "TestDamagedSlotIsFoundUnderDevicePolicy", []edit{{
		"store/loadcopy.go", "		if got := sum(k); got != sums[k] {", "		if got := sum(k); got != sums[k] && len(sums) == 0 {",
	}}},
	{"store", "TestLayersInOrderWhileBlocksAreLookedUp", []edit{{
		"store/loadcopy.go", "	return int(first) + 1\n", "	return int(first)\n",
	}}},
	{"store", "TestLayersInOrderWhileBlocksAreLookedUp", []edit{{
		"store/loadcopy.go", "	for plan(); len(t.sc.todo) > 0 && g.err == nil; plan() {\n", "	for plan(); len(t.sc.todo) > 0 && g.err == nil; {\n",
	}}},
	{"store", "TestLayersWhoseCopyIsRefusedOnTheWay", []edit{{
		"store/loadcopy.go", "	if len(g.flights) == 1 {\n		t.flying++\n	}\n	for i := range g.all {\n		t.sc.items[i].touched = true\n	}\n", "	if len(g.flights) == 1 {\n		t.flying++\n	}\n	for i := range g.all {\n		t.sc.items[i].touched = len(g.flights) > 1\n	}\n",
	}}},
	{"tier/cache", "TestIndex", []edit{{
		"tier/cache/index.go", "(at-first)&mask >= (at-gap)&mask {", "(at-first)&mask >= 0 {",
	}}},
	{"tier/cache", "TestIndex", []edit{{
		"tier/cache/index.go", "			x.cells[gap], gap = x.cells[at], at\n", "			_ = first\n",
	}}},
	// Streams and engines.
	{"stream/copy", "TestDefectTransientLackOfMemoryTakesAPathAwayForAWhileOnly", []edit{{
		"stream/copy/prepare.go", "!errors.Is(why, errdefs.ErrNoMemory) {", "errors.Is(why, errdefs.ErrNoMemory) {",
	}}},
	{".", "TestDefectConcurrentEngineClose", []edit{{
		"internal/unwind/unwind.go", "turn: make(chan struct{}, 1)}", "turn: make(chan struct{}, 64)}",
	}}},
	{".", "TestDefectEngineCloseFreesMemoryThatIsInUse", []edit{{
		"internal/unwind/unwind.go", "if ctx.Err() != nil || last.close(ctx) != nil {", "if ctx.Err() != nil {",
	}}},
	// The index of blocks that other processes have.
	{"store/manager", "TestForgottenBlockIsStoredAnew", []edit{{
		"store/manager/job.go", "		if bad && m.names[h.key] == h.name {", "		if bad {",
	}}},
	{"store/manager", "TestFilesOfAllRanks", []edit{{
		"store/manager/manager.go", "			there[i] = s == tier.Ready && (rank == 0 || there[i])\n", "			there[i] = s == tier.Ready || there[i]\n",
	}}},
	{"store/manager", "TestModel", []edit{{
		"store/manager/manager.go", "	m.evicted = append(m.evicted, *m.names[key])\n	delete(m.names, key)\n	m.stats.Evicted++\n", "	delete(m.names, key)\n	m.stats.Evicted++\n",
	}}},
}
