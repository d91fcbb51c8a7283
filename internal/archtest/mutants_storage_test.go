package archtest

// storageMutants has the defects of files that a device reaches.
var storageMutants = []mutant{
	{"internal/sys/cufile", "TestDefectSecondDriverOpenForgetsTheFailure", []edit{{
		"internal/sys/cufile/driver.go",
		"			d.failed = err\n			return nil, err\n",
		"			return nil, err\n",
	}}},
	{"device/cuda", "TestDefectSecondStorageOpenForgetsTheFailure", []edit{{
		"internal/sys/cufile/driver.go",
		"			d.failed = err\n			return nil, err\n",
		"			return nil, err\n",
	}}},
	{"device/storage", "TestDefectWordsUsedAgainBeforeTheTransferIsDone", []edit{{
		"device/storage/transfer.go",
		"	case last && t.event != nil:\n",
		"	case last && t.event != nil:\n		t.f.s.words.put(t.w)\n",
	}}},
	{"device/storage", "TestDefectFileLetGoOfUnderATransfer", []edit{{
		"device/storage/file.go",
		"	for t := range f.live {\n		if t.hold() {\n			return t, nil, false\n		}\n	}\n	if len(f.live) > 0 {\n" +
			"		return nil, f.changed, false // the last of them is just ending\n	}\n",
		"",
	}}},
}
