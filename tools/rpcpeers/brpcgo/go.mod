// ../run replaces brpc-go by a checkout, in a copy of this file.
module github.com/kvlane/kvlane/tools/rpcpeers/brpcgo

go 1.25.0

require github.com/icexin/brpc-go v0.0.0
