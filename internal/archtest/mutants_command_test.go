package archtest

// commandMutants has the defects of the command line.
var commandMutants = []mutant{
	defect("replay", "TestDefectRequestStartsBeforeItsTime",
		"replay/pace.go", "	if left <= 0 {\n", "	if left <= time.Second {\n"),
	defect("replay", "TestDefectRequestStartsBeforeItsTime",
		"replay/pace.go", "p.start, p.first = p.clock.Now(), req.Timestamp", "p.start = p.clock.Now()"),
	defect("internal/present", "TestDefectLineIsWiderThanTheScreen",
		"internal/present/page.go", "indent+n+1+long <= width:", "n+1+long <= width:"),
	defect("internal/present", "TestDefectLineIsWiderThanTheScreen",
		"internal/present/table.go", "screen > 0 && next > first && used+w > screen", "screen > 0 && next > first && w > screen"),
	defect("cmd/kvlane", "TestDefectFlagValuesComplete",
		"cmd/kvlane/completion.go", "	cmd.PersistentFlags().VisitAll(register)\n", ""),
	defect("cmd/kvlane", "TestDefectFlagValuesComplete",
		"cmd/kvlane/completion.go", "			complete = cobra.NoFileCompletions\n", "			return\n"),
	defect("cmd/kvlane", "TestVersionOfEveryWayToBuild",
		"cmd/kvlane/version.go", "		r.Commit = m[7]\n", ""),
	defect("cmd/kvlane", "TestDoctorRequires",
		"cmd/kvlane/doctor.go", "		default:\n			unknown = append(unknown, p.Name)\n", ""),
	defect("cmd/kvlane", "TestDefectDirectorySaysWhichGeometryItHolds",
		"cmd/kvlane/geometry.go", "g.Validate() != nil || g.Identity(\"\", \"\") != id {", "g.Validate() != nil {"),
	defect("block", "TestDTypeByAnyNameIsOneIdentity",
		"block/geometry.go", "DType: g.dtype(), Layout", "DType: g.DType, Layout"),
	defect("cmd/kvlane", "TestDefectBenchRDMASaysWhatToInstall",
		"cmd/kvlane/bench_rdma.go", "		return withoutNIC(err)\n", "		return err\n"),
	defect("cmd/kvlane", "TestExitCodesAreDocumented",
		"cmd/kvlane/main.go", "	exitMissing:   \"", "	5:   \""),
}
