package main

import (
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"syscall"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rpc"
)

// rpcStep returns advice for the error of a call, or "".
func (f *failure) rpcStep() string {
	var e *rpc.Error
	if !of("rpc")(f) || !errors.As(f.err, &e) {
		return ""
	}
	switch e.Code {
	case rpc.Unauthorized:
		return "the server refuses the token: give --token FILE with one of the tokens in its --tokens file."
	case rpc.NoService, rpc.NoMethod:
		return "the server does not offer example.EchoService: start kvlane rpc serve, or give the address of another server."
	case rpc.BadRequest:
		return "the server cannot read the request: if it exceeds a limit of the server, send fewer bytes."
	case rpc.TimedOut:
		return "the server has not answered in time: check that its address can be reached and that it is not overloaded, or give a longer --timeout."
	case rpc.Overcrowded, rpc.LimitReached:
		return "the server is overloaded: try again later, or with fewer calls at a time."
	case rpc.LogOff:
		return "the server shuts down: start it again, or give the address of another server."
	default:
		return f.connectionStep()
	}
}

// connectionStep returns advice for the error of a connection, or "".
func (f *failure) connectionStep() string {
	var untrusted *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	isOp := errors.As(f.err, &op)
	switch {
	case errors.As(f.err, &untrusted):
		return "give --tls-ca FILE with the authority of the server's certificate, and in --addr a host for which the certificate is valid."
	case errors.As(f.err, &record):
		return "the server does not use TLS: omit --tls-ca."
	case isOp && op.Op == "remote error":
		return "the server refuses the client's certificate: give --tls-cert and --tls-key, with a certificate of an authority in its --tls-client-ca."
	case isErr(syscall.ECONNREFUSED)(f) || isOp && op.Net == "unix" && isErr(fs.ErrNotExist)(f):
		return "no process listens there: start kvlane rpc serve --listen HOST:PORT, or give the address of another server."
	case isErr(errdefs.ErrNoSpace)(f):
		return "the response exceeds a limit of the client: request less data."
	case isErr(errdefs.ErrMismatch)(f):
		return "the server uses another protocol: give the address of a server of baidu_std."
	case isErr(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE)(f) && changed("tls-ca")(f):
		return "the server may not use TLS: omit --tls-ca; or it refuses the certificate or the size of the request."
	case isErr(io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE)(f):
		return "the server may need TLS: give --tls-ca FILE; or it uses another protocol, or the request exceeds its limits."
	}
	return ""
}
