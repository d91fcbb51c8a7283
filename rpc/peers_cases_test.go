package rpc_test

// peerCase is a case of TestPeers. The flags are those of `peer call` and `peer serve` of
// tools/rpcpeers, and of the captures.
type peerCase struct {
	name, about    string
	client, server string
	want           string // sorted outcomes, with the number of equal ones; alternatives after "or"
	live           bool   // not recorded, because it is long or depends on timing
}

// brpcCases are the cases between rpc and brpc.
func brpcCases() []peerCase {
	list := []peerCase{
		{name: "plain", about: "a call", client: "-msg=hello", want: "ok len=5 att=0"},
		{name: "plain-att", about: "an attachment", client: "-msg=hello -att=ATTACHED", want: "ok len=5 att=8"},
		{name: "empty", about: "an empty message with an attachment", client: "-msg= -att=ATTACHED", want: "ok len=0 att=8"},
		{name: "snappy", about: "snappy in both directions", client: "-msg=snappysnappysnappy -comp=snappy -att=ATTACHED", want: "ok len=18 att=8"},
		{name: "gzip", about: "gzip in both directions", client: "-msg=gzipgzipgzipgzip -comp=gzip -att=ATTACHED", want: "ok len=16 att=8"},
		{name: "zlib", about: "zlib in both directions", client: "-msg=zlibzlibzlibzlib -comp=zlib -att=ATTACHED", want: "ok len=16 att=8"},
		{name: "crc", about: "checksums", client: "-msg=crc -crc -att=ATTACHED", want: "ok len=3 att=8"},
		{name: "crc-att", about: "checksums that cover the attachment", client: "-msg=crcatt -crcatt -att=ATTACHED", want: "ok len=6 att=8"},
		{name: "crc-gzip", about: "checksums of compressed messages", client: "-msg=gzip-crcatt -comp=gzip -crcatt -att=ATTACHED", want: "ok len=11 att=8"},
		{name: "content-json", about: "JSON", client: "-msg=hello -content=json", want: "ok len=5 att=0"},
		{name: "content-proto-json", about: "JSON of protobuf", client: "-msg=hello -content=proto_json", want: "ok len=5 att=0"},
		{name: "content-text", about: "text of protobuf", client: "-msg=hello -content=text", want: "ok len=5 att=0"},
		{name: "fields", about: "user fields, request id and log id", client: "-msg=fields -fields -reqid=req-0001 -logid=77", want: "ok len=6 att=0"},
		{name: "auth-ok", about: "a credential", client: "-msg=hello -auth=kvlane-secret -n=2", server: "-auth=kvlane-secret", want: "2x ok len=5 att=0"},
		{name: "auth-missing", about: "no credential", client: "-msg=hello", server: "-auth=kvlane-secret", want: "failed code=1004"},
		{name: "auth-wrong", about: "a wrong credential", client: "-msg=hello -auth=wrong", server: "-auth=kvlane-secret", want: "failed code=1004"},
		{name: "noservice", about: "an unknown service", client: "-msg=hello -service=NoService", want: "failed code=1001"},
		{name: "nomethod", about: "an unknown method", client: "-msg=hello -method=Nope", want: "failed code=1002"},
		{name: "err-unset", about: "a response without a required field", client: "-msg=UNSET", want: "failed code=2002"},
		{name: "err-closeconn", about: "the handler closes the connection", client: "-msg=CLOSE", want: "failed code=1014"},
		{name: "err-timeout", about: "a time limit of 100 ms", client: "-msg=SLEEP -timeout=100", want: "failed code=1008"},
		{name: "err-timeout-late", about: "late responses are dropped", client: "-msg=SLEEP -timeout=100 -n=10", want: "10x failed code=1008"},
		{name: "err-cancel", about: "the caller cancels after 100 ms", client: "-msg=SLEEP -cancel=100", want: "failed code=125", live: true},
		{name: "deadline", about: "the time limit is sent", client: "-msg=hello -timeout=1234 -deliver", want: "ok len=5 att=0", live: true},
		{name: "tls", about: "TLS", client: "-msg=hello -att=ATTACHED -tls -n=2", server: "-tls", want: "2x ok len=5 att=8", live: true},
		{name: "tls-stream", about: "a stream over TLS", client: "-stream=flood -flood=64 -msg=echo -tls", server: "-tls", want: "close 0 / echoed 64 wrong 0 / stream closed / stream open ok", live: true},
		{name: "err-limit-server", about: "limit of the server", client: "-msg=SLEEP -parallel=2 -conn=pooled", server: "-max_concurrency=1", want: "failed code=2004 / ok len=5 att=0", live: true},
		{name: "err-limit-method", about: "limit of the method", client: "-msg=SLEEP -parallel=2 -conn=pooled", server: "-method_max_concurrency=1", want: "failed code=2004 / ok len=5 att=0", live: true},
		{name: "logoff", about: "a call during the shutdown, and the call before it", client: "-msg=SLEEP -second=300", want: "failed code=2003 / ok len=5 att=0", live: true},
		{name: "pooled", about: "a pool of connections", client: "-msg=SLEEP -parallel=3 -conn=pooled", want: "3x ok len=5 att=0", live: true},
		{name: "short", about: "a connection for each call", client: "-msg=hello -conn=short", want: "ok len=5 att=0"},
		{name: "single-two", about: "two calls on a connection", client: "-msg=hello -n=2", want: "2x ok len=5 att=0"},
		{name: "pipelined", about: "50 callers on a connection, 40 calls each", client: "-timeout=30000 -msg=hello -att=ATTACHED -parallel=50 -n=40", want: "2000x ok len=5 att=8", live: true},
		{name: "mixed", about: "8 callers with 1 MiB attachments", client: "-timeout=30000 -msg=crcatt -crcatt -bigatt=1048576 -parallel=8 -n=20", want: "160x ok len=6 att=1048576", live: true},
		{name: "big-message", about: "a message of 48 MiB", client: "-timeout=30000 -bigmsg=50331648", want: "ok len=50331648 att=0", live: true},
		{name: "big-attachment", about: "an attachment of 60 MiB", client: "-timeout=30000 -msg=hello -bigatt=62914560", want: "ok len=5 att=62914560", live: true},
		{name: "big-snappy", about: "48 MiB in snappy", client: "-timeout=30000 -bigmsg=50331648 -comp=snappy", want: "ok len=50331648 att=0", live: true},
		{name: "big-gzip", about: "48 MiB in gzip", client: "-timeout=30000 -bigmsg=50331648 -comp=gzip", want: "ok len=50331648 att=0", live: true},
		{name: "too-big", about: "an attachment of 65 MiB, over the limit", client: "-msg=hello -bigatt=68157440", want: "failed code=1009 or failed code=1014 or failed code=104 or failed code=32", live: true},
		{name: "stream-one", about: "a stream, a message, close", client: "-stream=one -msg=sink", want: "close 0 / stream closed / stream open ok / write 0"},
		{name: "stream-two", about: "four messages, feedback", client: "-stream=two -msg=sink", want: "close 0 / stream closed / stream open ok / 4x write 0"},
		{name: "stream-echo", about: "messages in both directions", client: "-stream=two -msg=echo", want: "close 0 / stream closed / 3x stream got 10 bytes / stream got 26 bytes / stream open ok / 4x write 0"},
		{name: "stream-small", about: "a window of 64 bytes at the server", client: "-stream=small -msg=small", want: "close 0 / stream closed / stream open ok / 4x write 0"},
		{name: "stream-srvclose", about: "the server closes after a message", client: "-stream=two -msg=srvclose", want: "close 0 / stream closed / stream open ok / write 0 / 3x write closed"},
		{name: "stream-multi", about: "three streams of a call", client: "-stream=one -streams=3 -msg=multi", want: "3x close 0 / 3x stream closed / stream open ok / 3x write 0"},
		{name: "stream-noaccept", about: "a stream that is not accepted", client: "-stream=one -msg=noaccept", want: "failed code=1003"},
		{name: "stream-nohandler", about: "a server that does not receive", client: "-stream=one -msg=nohandler", want: "close 0 / stream closed / stream open ok / write closed"},
		{name: "stream-client-nohandler", about: "a client that does not receive", client: "-stream=one -msg=echo -noclienthandler", want: "close 0 / stream open ok / write 0"},
		{name: "stream-error", about: "a call with a stream fails", client: "-stream=one -msg=ERR2001", want: "failed code=2001"},
		{name: "stream-auth", about: "a stream with a credential", client: "-stream=one -msg=sink -auth=kvlane-secret", server: "-auth=kvlane-secret", want: "close 0 / stream closed / stream open ok / write 0"},
		{name: "stream-big", about: "a message of 20 MiB", client: "-stream=one -big=20971520 -msg=sink", want: "close 0 / stream closed / stream open ok / write 0 / write big 0", live: true},
		{name: "stream-big-echo", about: "a message of 20 MiB and back", client: "-stream=one -big=20971520 -msg=echo", want: "close 0 / stream closed / stream got 20971520 bytes / stream got 26 bytes / stream open ok / write 0 / write big 0", live: true},
		{name: "stream-flood", about: "512 messages of 64 KiB and back, 16 windows", client: "-stream=flood -flood=512 -msg=echo", want: "close 0 / echoed 512 wrong 0 / stream closed / stream open ok", live: true},
		{name: "stream-parallel", about: "16 floods on a connection", client: "-stream=flood -flood=64 -msg=echo -parallel=16", want: "16x close 0 / 16x echoed 64 wrong 0 / 16x stream closed / 16x stream open ok", live: true},
		{name: "stream-continuation", about: "pieces of 1 KiB, where brpc sends", client: "-stream=one -big=30000 -msg=echo -stream_write_max_segment_size=1024", server: "-stream_write_max_segment_size=1024", want: "close 0 / stream closed / stream got 26 bytes / stream got 30000 bytes / stream open ok / write 0 / write big 0", live: true},
	}
	for _, code := range []string{"1", "1001", "1003", "1004", "1008", "1011", "1014", "1018", "12345", "2001", "2002", "2003", "2004", "2005", "3001", "3002"} {
		list = append(list, peerCase{name: "err-set-" + code, about: "the handler fails with the code", client: "-att=ATTACHED -msg=ERR" + code, want: "failed code=" + code})
	}
	return append(list, peerCase{name: "err-set--1", about: "the handler fails without a code", client: "-att=ATTACHED -msg=ERR-1", want: "failed code=2001"})
}

// brpcGoServerCases are the cases of our client with a brpc-go server: it has no attachments,
// streams, checksums and credentials, its snappy is in another format, and its failures all have
// the code 500.
func brpcGoServerCases() []peerCase {
	return []peerCase{
		{name: "plain", about: "a call", client: "-msg=hello", want: "ok len=5 att=0"},
		{name: "gzip", about: "a request in gzip, a plain response", client: "-msg=hello -comp=gzip", want: "ok len=5 att=0"},
		{name: "zlib", about: "a request in zlib, a plain response", client: "-msg=hello -comp=zlib", want: "ok len=5 att=0"},
		{name: "snappy", about: "brpc-go reads the framed format, brpc the block format", client: "-msg=hello -comp=snappy", want: "failed code=500 or failed code=1014", live: true},
		{name: "crc", about: "a checksum, which it ignores", client: "-msg=hello -crc", want: "ok len=5 att=0"},
		{name: "fields", about: "user fields, which it ignores", client: "-msg=hello -fields -reqid=req-0001 -logid=77", want: "ok len=5 att=0"},
		{name: "attachment", about: "it closes the connection", client: "-msg=hello -att=ATTACHED", want: "failed code=1014"},
		{name: "stream", about: "it ignores the stream", client: "-stream=one -msg=sink", want: "failed code=1003", live: true},
		{name: "err", about: "the handler fails", client: "-msg=ERR2001", want: "failed code=500"},
		{name: "noservice", about: "an unknown service", client: "-msg=hello -service=NoService", want: "failed code=500"},
		{name: "nomethod", about: "an unknown method", client: "-msg=hello -method=Nope", want: "failed code=500"},
		{name: "err-timeout", about: "a time limit of 100 ms", client: "-msg=SLEEP -timeout=100", want: "failed code=1008"},
		{name: "err-cancel", about: "the caller cancels after 100 ms", client: "-msg=SLEEP -cancel=100", want: "failed code=125", live: true},
		{name: "pipelined", about: "50 callers on a connection, 40 calls each", client: "-timeout=30000 -msg=hello -parallel=50 -n=40", want: "2000x ok len=5 att=0", live: true},
		{name: "big-message", about: "a message of 48 MiB", client: "-timeout=30000 -bigmsg=50331648", want: "ok len=50331648 att=0", live: true},
	}
}

// brpcGoClientCases are the cases of a brpc-go client with our server. It sends plain calls only.
func brpcGoClientCases() []peerCase {
	return []peerCase{
		{name: "plain", about: "a call", client: "-msg=hello", want: "ok len=5 att=0"},
		{name: "single-two", about: "two calls on a connection", client: "-msg=hello -n=2", want: "2x ok len=5 att=0"},
		{name: "err-set-2001", about: "the handler fails with the code", client: "-msg=ERR2001", want: "failed code=2001"},
		{name: "noservice", about: "an unknown service", client: "-msg=hello -service=NoService", want: "failed code=1001"},
		{name: "nomethod", about: "an unknown method", client: "-msg=hello -method=Nope", want: "failed code=1002"},
		{name: "gzip", about: "a response in gzip", client: "-msg=gzip", want: "ok len=4 att=0"},
		{name: "zlib", about: "a response in zlib", client: "-msg=zlib", want: "ok len=4 att=0"},
		{name: "crc", about: "a response with a checksum, which it ignores", client: "-msg=crc", want: "ok len=3 att=0"},
		{name: "pipelined", about: "50 callers on a connection, 40 calls each", client: "-timeout=30000 -msg=hello -parallel=50 -n=40", want: "2000x ok len=5 att=0", live: true},
		{name: "big-message", about: "a message of 48 MiB", client: "-timeout=30000 -bigmsg=50331648", want: "ok len=50331648 att=0", live: true},
	}
}
