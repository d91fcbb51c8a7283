package archtest

// commandMutants has the defects of the command line.
var commandMutants = []mutant{
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
