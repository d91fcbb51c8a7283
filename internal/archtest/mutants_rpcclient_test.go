package archtest

// rpcClientMutants are defects of clients of RPC servers.
var rpcClientMutants = []mutant{
	defect("rpc", "TestCredentialAfterARequestThatIsNotSent",
		"rpc/client_conn.go", "			meta.AuthenticationData = c.c.o.Credential\n", "			meta.AuthenticationData = c.c.o.Credential\n			c.introduced.Store(true)\n"),
	defect("rpc", "TestTLSWithTokens",
		"rpc/client_conn.go", "		if introduces = !c.introduced.Load(); introduces {\n", "		if introduces = false; introduces {\n"),
	defect("rpc", "TestCredentialIsSentOnce",
		"rpc/client_conn.go", "		defer c.introduced.Store(true)\n", ""),
	defect("rpc", "TestTLSWithTokens",
		"rpc/client.go", "		c.o.TLS.ServerName = host\n", "		_ = host\n"),
	defect("rpc", "TestTLSWithTokens",
		"rpc/server_conn.go", "		if err := c.authenticate(meta); err != nil {\n", "		if err := c.authenticate(meta); err != nil && false {\n"),
	defect("rpc", "TestMutualTLS",
		"rpc/call.go", "	return &state\n", "	_ = state\n	return nil\n"),
	defect("rpc", "TestConnectTakesLongerThanDeadlines",
		"rpc/client.go", "c.dial(c.ctx)", "c.dial(ctx)"),
}
