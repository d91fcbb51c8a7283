package archtest

// fileMutants has the defects of what moves files and of the log of blocks.
var fileMutants = []mutant{
	// The log of blocks.
	{"tier/log", "TestDefectFailedWriteIsFound", []edit{{
		"tier/log/write.go",
		"	at := off + h.bytes\n	for _, p := range recs {\n		a.enter(p, place{g.number, uint32(at / page), uint16((at - off) / page)})\n" +
			"		at += int64(len(p.data))\n	}\n	g.end.Store(at)\n",
		"	g.end.Store(at)\n",
	}, {
		"tier/log/write.go",
		"	err := a.writer.writeAt(g.file, parts, off)\n",
		"	at := off + h.bytes\n	for _, p := range recs {\n		a.enter(p, place{g.number, uint32(at / page), uint16((at - off) / page)})\n" +
			"		at += int64(len(p.data))\n	}\n	err := a.writer.writeAt(g.file, parts, off)\n",
	}}},
	{"tier/log", "TestDefectFailedWriteIsFound/sync", []edit{{
		"tier/log/write.go",
		"	_, err := a.head.file.WriteAt(a.t.zeros[:], off) // where it cannot be cut\n	return errors.Join(err, a.seal())\n",
		"	_ = off\n	return nil\n",
	}}},
	{"tier/log", "TestDefectCheckpointCoversWhatIsNotDurable", []edit{{
		"tier/log/checkpoint.go", "	if err := t.syncAll(context.WithoutCancel(t.ctx)); err != nil {\n", "	if err := context.Cause(context.WithoutCancel(t.ctx)); err != nil {\n",
	}}},
	{"tier/log", "TestPowerFailure/interval", []edit{{
		"tier/log/open.go", "				continue // torn\n", "				err = nil\n",
	}}},
	{"tier/log", "TestDefectSegmentIsClosedUnderARead", []edit{{
		"tier/log/get.go",
		"			err := t.read(ctx, g, e, key, buf, dst, every)\n			if cerr := g.release(); cerr != nil {\n",
		"			cerr := g.release()\n			err := t.read(ctx, g, e, key, buf, dst, every)\n			if cerr != nil {\n",
	}}},
	{"tier/log", "TestDefectRetainedBlockIsEvicted", []edit{{
		"tier/log/collect.go", "	keep := pinned || e.all\n", "	keep := pinned && e.all\n",
	}, {
		"tier/log/collect.go", "	if !t.owners.TryOwn(r.key) {\n", "	if t.owners.Try(r.key, usage.Removing) != nil {\n",
	}}},
	{"tier/log", "TestDefectDeletedBlockComesBack", []edit{{
		"tier/log/collect.go", "	if v.deletes.Load() {\n", "	if v.deletes.Load() && v.unread {\n",
	}}},
	{"tier/log", "TestOneOfManyGroupsFails", []edit{{
		"tier/log/write.go", "		if t.lowestHead() == g.number {\n", "		if g.number > 0 {\n",
	}}},
	{"tier/log", "TestOneOfManyGroupsFails", []edit{{
		"tier/log/sync.go", " && g.number <= lowest;", " && lowest > 0;",
	}}},
	{"tier/log", "TestDefectDeletionBeforeWhatItDeletes", []edit{{
		"tier/log/open.go", "return a.h.turn.compare(b.h.turn)", "return a.h.at.compare(b.h.at)",
	}}},
	{"tier/log", "TestDefectDeletionBeforeWhatItDeletes", []edit{{
		"tier/log/open.go", "	return !knows && e.off()", "	return (!knows || knows) && e.off()",
	}}},
	{"tier/log", "TestDefectOldDeletionTakesANewBlock", []edit{{
		"tier/log/open.go", "	return !knows && e.off()", "	return !knows && knows && e.off()",
	}}},
	{"tier/log", "TestDefectCheckpointCoversWhatCameLater", []edit{{
		"tier/log/checkpoint.go", "	if err := t.syncAll(context.WithoutCancel(t.ctx)); err != nil {\n", "	if err := context.Cause(context.WithoutCancel(t.ctx)); err != nil {\n",
	}, {
		"tier/log/checkpoint.go", "	t.order.Lock()\n", "	if err := t.syncAll(context.WithoutCancel(t.ctx)); err != nil {\n		return err\n	}\n	t.order.Lock()\n",
	}}},
	{"tier/log", "TestCollectAfterManyAppended", []edit{{
		"tier/log/write.go", "	for _, a := range t.appenders { // as many as there are\n", "	for _, a := range t.appenders[:1] {\n",
	}}},
	{"tier/log", "TestDefectNoRoomBesideSegmentsThatAreAppendedTo", []edit{{
		"tier/log/collect.go", "		if v == nil && mayEnd && t.room.waiting() > 0 {", "		if v == nil && mayEnd && t.room.waiting() < 0 {",
	}}},
	// Files that are kept open.
	{"stream/file", "TestHandlesSurviveRenameAndUnlink", []edit{{
		"stream/file/handles.go",
		"		case !mine && (absent != nil || now.Device != e.file.info.Device || now.Inode != e.file.info.Inode):\n",
		"		case !mine && absent != nil:\n",
	}}},
	{"stream/file", "TestDefectReferencesCountedTwice", []edit{{
		"stream/file/handles.go", "	e.refs++\n", "	e.refs += 2\n",
	}}},
	{"stream/file", "TestDefectHandleThatIsAcquiredAgainIsEvicted", []edit{{
		"stream/file/handles.go", "	if e.at != nil {\n		h.idle.Remove(e.at)\n		e.at = nil\n	}\n", "",
	}}},
	{"stream/file", "TestDefectDescriptorClosedBeforeItIsDeregistered", []edit{{
		"stream/file/file.go", "	if f.registered != nil {\n		if err", "	_, _ = unix.Close(f.direct), f.base.Close()\n	if f.registered != nil {\n		if err",
	}}},
	// Moving them.
	{"stream/file", "TestShortFile", []edit{{
		"stream/file/transfer.go", "		return false, io.ErrUnexpectedEOF\n", "		return false, nil\n",
	}}},
	{"stream/file", "TestDefectChunkIsFilledBeforeItIsCopied", []edit{{
		"stream/file/flow.go", "	b.copying = append(b.copying, p)\n", "	b.copying = append(b.copying, p)\n	if !p.write {\n		b.release(p)\n	}\n",
	}}},
	{"stream/file", "TestDefectCanceledBatchLeavesATransferBehind", []edit{{
		"stream/file/flow.go", "		if b.over() {\n", "		if b.over() || b.ctx.Err() != nil {\n",
	}}},
	{"stream/file", "TestDefectWriteOverwritesItsNeighbours", []edit{{
		"stream/file/part.go", "(!q.write || start%Align == 0 && end%Align == 0)", "(!q.write || start%Align == 0)",
	}, {
		"stream/file/piece.go", "	if buffered && pieces[0].write {\n", "	if buffered && !pieces[0].write {\n",
	}}},
	{"stream/file", "TestDefectBrokenQueueIsWaitedForWithoutEnd", []edit{{
		"stream/file/queue_cufile.go", "		return // it is open still\n", "		_ = 0 // it is open still\n",
	}}},
	{"stream/file", "TestDefectBrokenQueueIsWaitedForWithoutEnd", []edit{{
		"stream/file/queue_cufile.go", "context.WithDeadline(context.Background(), l.until)", "context.WithCancel(context.Background())",
	}}},
	// What moves them.
	{"internal/sys/uring", "TestCompletionsComeInAnyOrder", []edit{{
		"internal/sys/uring/wait.go", "		op := &r.slots[c.userData]\n", "		c.userData = uint64(r.depth-1) - uint64(head-1)%uint64(r.depth)\n		op := &r.slots[c.userData]\n",
	}}},
	{"internal/sys/uring", "TestCloseWaitsForWhatIsInFlight", []edit{{
		"internal/sys/uring/ring.go", "	for r.InFlight() > 0 {\n", "	for r.InFlight() > r.depth {\n",
	}}},
	{"device/storage", "TestWaitGivesUp", []edit{{
		"device/storage/storage.go", "	if free && calls+busy > 0 {\n", "	if free && calls > 0 {\n",
	}}},
}
