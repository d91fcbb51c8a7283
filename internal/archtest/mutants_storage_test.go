package archtest

// storageMutants has the defects of files that a device reaches.
var storageMutants = []mutant{
	defect("internal/sys/cufile", "TestDefectSecondDriverOpenForgetsTheFailure",
		"internal/sys/cufile/driver.go", "			d.failed = err\n			return nil, err\n", "			return nil, err\n"),
	defect("device/cuda", "TestDefectSecondStorageOpenForgetsTheFailure",
		"internal/sys/cufile/driver.go", "			d.failed = err\n			return nil, err\n", "			return nil, err\n"),
	defect("device/storage", "TestDefectWordsUsedAgainBeforeTheTransferIsDone",
		"device/storage/transfer.go", "	case last && t.event != nil:\n",
		"	case last && t.event != nil:\n		t.f.s.words.put(t.w)\n"),
	defect("device/storage", "TestDefectFileLetGoOfUnderATransfer",
		"device/storage/file.go",
		"	for t := range f.live {\n		if t.retain() {\n			return t, nil, false\n		}\n	}\n	if len(f.live) > 0 {\n"+
			"		return nil, f.changed, false // the last of them is about to finish\n	}\n",
		""),
}
