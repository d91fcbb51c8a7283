module github.com/kvlane/kvlane/tools/rpcbench

go 1.25.0

require (
	github.com/kvlane/kvlane v0.0.0
	google.golang.org/grpc v1.84.0
)

require (
	github.com/klauspost/compress v1.20.4 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/term v0.45.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260706201446-f0a921348800 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace github.com/kvlane/kvlane => ../..
