// A client and a server of the echo service on brpc, for tools/rpcpeers/run. `peer serve` prints its
// port, then SLEEP when a call with that message begins, and stops when its input ends. `peer call`
// prints an outcome per line. rpc/peers_test.go has the cases and the meaning of the messages.
#include <signal.h>
#include <stdio.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <brpc/authenticator.h>
#include <brpc/channel.h>
#include <brpc/server.h>
#include <brpc/stream.h>
#include <butil/logging.h>
#include <gflags/gflags.h>
#include <google/protobuf/descriptor.pb.h>

#include "echo.pb.h"

DEFINE_string(addr, "", "server");
DEFINE_string(auth, "", "credential: the client's, or the one that the server wants");
DEFINE_int32(max_concurrency, 0, "limit of the server");
DEFINE_int32(method_max_concurrency, 0, "limit of the method");
DEFINE_string(service, "example.EchoService", "service");
DEFINE_string(method, "Echo", "method");
DEFINE_string(msg, "", "message");
DEFINE_string(att, "", "attachment");
DEFINE_int32(bigmsg, 0, "bytes of a message");
DEFINE_int32(bigatt, 0, "bytes of an attachment");
DEFINE_string(comp, "", "compression");
DEFINE_bool(crc, false, "checksum of the message");
DEFINE_bool(crcatt, false, "checksum of the message and the attachment");
DEFINE_string(content, "", "content type");
DEFINE_bool(fields, false, "send user fields");
DEFINE_string(reqid, "", "request id");
DEFINE_int64(logid, 0, "log id");
DEFINE_string(conn, "single", "connection type");
DEFINE_int32(timeout, 5000, "milliseconds");
DEFINE_bool(deliver, false, "send the time limit");
DEFINE_bool(tls, false, "encrypt; the server has cert.pem and key.pem of the folder KVLANE_RPC_PEERS");
DEFINE_int32(cancel, 0, "milliseconds until the call is cancelled");
DEFINE_int32(second, 0, "milliseconds until a second call, with the message hello, while the first is in progress");
DEFINE_int32(n, 1, "calls one after another");
DEFINE_int32(parallel, 1, "threads");
DEFINE_string(stream, "", "open streams: one, two or small messages");
DEFINE_int32(streams, 1, "number of streams");
DEFINE_int32(big, 0, "bytes of a further message");
DEFINE_int32(flood, 0, "messages of 64 KiB that are echoed");
DEFINE_bool(noclienthandler, false, "do not receive messages");

static std::mutex print_mutex;

static void Print(const std::string& line) {
    std::lock_guard<std::mutex> lock(print_mutex);
    puts(line.c_str());
    fflush(stdout);
}

class Credential : public brpc::Authenticator {
public:
    int GenerateCredential(std::string* out) const override { return *out = FLAGS_auth, 0; }
    int VerifyCredential(const std::string& got, const butil::EndPoint&, brpc::AuthContext*) const override {
        return got == FLAGS_auth ? 0 : -1;
    }
};

// write sends a message and waits while the peer has not consumed enough.
static int Write(brpc::StreamId id, const butil::IOBuf& message) {
    int rc;
    while ((rc = brpc::StreamWrite(id, message)) == EAGAIN) {
        if ((rc = brpc::StreamWait(id, nullptr)) != 0) return rc;
    }
    return rc;
}

// The server's side of streams. Several streams may share it, and the process is too short to free it.
class ServerStream : public brpc::StreamInputHandler {
public:
    explicit ServerStream(const std::string& text) : text_(text) {}
    int on_received_messages(brpc::StreamId id, butil::IOBuf* const messages[], size_t n) override {
        for (size_t i = 0; i < n; i++) {
            if (text_ == "echo") Write(id, *messages[i]);
            if (text_ == "srvclose") brpc::StreamClose(id);
        }
        return 0;
    }
    void on_idle_timeout(brpc::StreamId) override {}
    void on_closed(brpc::StreamId id) override { brpc::StreamClose(id); }

private:
    std::string text_;
};

static bool Starts(const std::string& s, const char* prefix) { return s.compare(0, strlen(prefix), prefix) == 0; }
static bool Has(const std::string& s, const char* part) { return s.find(part) != std::string::npos; }

class Service : public example::EchoService {
public:
    void Echo(google::protobuf::RpcController* base, const example::EchoRequest* in, example::EchoResponse* out,
              google::protobuf::Closure* done) override {
        brpc::ClosureGuard guard(done);
        auto* c = static_cast<brpc::Controller*>(base);
        const std::string& text = in->message();
        if (c->has_remote_stream() && text != "noaccept") {
            brpc::StreamOptions o;
            if (text == "small") o.min_buf_size = o.max_buf_size = 64;
            brpc::StreamIds ids;
            if (text != "nohandler") o.handler = new ServerStream(text);
            brpc::StreamAccept(ids, *c, &o);
        }
        if (Starts(text, "ERR")) {
            int code = atoi(text.c_str() + 3);
            if (code == -1) return c->SetFailed("general failure");
            return c->SetFailed(code, "told to");
        }
        if (text == "CLOSE") return c->CloseConnection("told to");
        if (text == "UNSET") return;
        if (text == "SLEEP") {
            Print("SLEEP");
            bthread_usleep(800 * 1000);
        }
        if (Starts(text, "snappy")) c->set_response_compress_type(brpc::COMPRESS_TYPE_SNAPPY);
        if (Starts(text, "gzip")) c->set_response_compress_type(brpc::COMPRESS_TYPE_GZIP);
        if (Starts(text, "zlib")) c->set_response_compress_type(brpc::COMPRESS_TYPE_ZLIB);
        if (Starts(text, "fields")) (*c->response_user_fields())["answer"] = "42";
        if (Has(text, "crc")) c->set_response_checksum_type(brpc::CHECKSUM_TYPE_CRC32C);
        if (Has(text, "crcatt")) c->set_response_checksum_attachment(true);
        out->set_message(text);
        c->response_attachment() = c->request_attachment();
    }
};

static int Serve() {
    brpc::Server server;
    Service service;
    Credential credential;
    brpc::ServerOptions o;
    o.max_concurrency = FLAGS_max_concurrency;
    if (!FLAGS_auth.empty()) o.auth = &credential;
    if (FLAGS_tls) {
        const std::string folder = getenv("KVLANE_RPC_PEERS");
        o.mutable_ssl_options()->default_cert.certificate = folder + "/cert.pem";
        o.mutable_ssl_options()->default_cert.private_key = folder + "/key.pem";
    }
    if (server.AddService(&service, brpc::SERVER_DOESNT_OWN_SERVICE) != 0) return 1;
    if (FLAGS_method_max_concurrency > 0) server.MaxConcurrencyOf("example.EchoService.Echo") = FLAGS_method_max_concurrency;
    if (server.Start("127.0.0.1:0", &o) != 0) return 1;
    Print(std::to_string(server.listen_address().port));
    while (getchar() != EOF) {
    }
    server.Stop(0);
    server.Join();
    return 0;
}

// The client's side of streams: it checks the order of a flood.
class ClientStream : public brpc::StreamInputHandler {
public:
    int on_received_messages(brpc::StreamId, butil::IOBuf* const messages[], size_t n) override {
        for (size_t i = 0; i < n; i++) {
            uint32_t index = 0;
            messages[i]->copy_to(&index, sizeof index);
            if (FLAGS_flood == 0) {
                Print("stream got " + std::to_string(messages[i]->size()) + " bytes");
            } else if (index != echoed || messages[i]->size() != 64 << 10) {
                wrong++;
            }
            echoed++;
        }
        return 0;
    }
    void on_idle_timeout(brpc::StreamId) override {}
    void on_closed(brpc::StreamId) override { closed++; }
    std::atomic<uint32_t> echoed{0}, wrong{0}, closed{0};
};

static std::string WriteOutcome(int rc) {
    return rc == 0 ? "0" : rc == EBADF || rc == EINVAL ? "closed" : std::to_string(rc);
}

static void UseStreams(const brpc::StreamIds& ids, ClientStream* handler) {
    Print("stream open ok");
    uint32_t want = FLAGS_flood; // echoed messages
    std::string flood(64 << 10, 'f');
    for (uint32_t i = 0; i < uint32_t(FLAGS_flood); i++) {
        memcpy(&flood[0], &i, sizeof i);
        butil::IOBuf message;
        message.append(flood);
        if (int rc = Write(ids[0], message)) Print("write " + WriteOutcome(rc));
    }
    for (size_t k = 0; FLAGS_flood == 0 && k < ids.size(); k++) {
        int count = FLAGS_stream == "one" ? 1 : 4;
        for (int i = 0; i < count; i++) {
            butil::IOBuf message;
            message.append(i == 0 ? "abcdefghijklmnopqrstuvwxyz" : "0123456789");
            Print("write " + WriteOutcome(Write(ids[k], message)));
            usleep(100 * 1000);
        }
        if (FLAGS_big > 0) {
            butil::IOBuf message;
            message.append(std::string(FLAGS_big, 'x'));
            Print("write big " + WriteOutcome(Write(ids[k], message)));
        }
        if (FLAGS_msg == "echo" && !FLAGS_noclienthandler) want += count + (FLAGS_big > 0);
    }
    for (int i = 0; i < 500 && handler->echoed < want; i++) usleep(20 * 1000);
    if (FLAGS_flood > 0) Print("echoed " + std::to_string(handler->echoed) + " wrong " + std::to_string(handler->wrong));
    usleep(200 * 1000);
    for (brpc::StreamId id : ids) Print("close " + WriteOutcome(brpc::StreamClose(id)));
    size_t closed = FLAGS_noclienthandler ? 0 : ids.size();
    for (int i = 0; i < 100 && handler->closed < closed; i++) usleep(20 * 1000);
    for (uint32_t i = 0; i < handler->closed; i++) Print("stream closed");
}

// A call with its messages, so that it can be in progress while the thread continues.
struct Call {
    brpc::Controller c;
    example::EchoRequest in;
    example::EchoResponse out;
    explicit Call(const std::string& message) {
        in.set_message(message);
        c.request_attachment().append(FLAGS_att);
        if (FLAGS_bigatt > 0) c.request_attachment().append(std::string(FLAGS_bigatt, 'a'));
        if (FLAGS_comp == "snappy") c.set_request_compress_type(brpc::COMPRESS_TYPE_SNAPPY);
        if (FLAGS_comp == "gzip") c.set_request_compress_type(brpc::COMPRESS_TYPE_GZIP);
        if (FLAGS_comp == "zlib") c.set_request_compress_type(brpc::COMPRESS_TYPE_ZLIB);
        if (FLAGS_crc || FLAGS_crcatt) c.set_request_checksum_type(brpc::CHECKSUM_TYPE_CRC32C);
        c.set_request_checksum_attachment(FLAGS_crcatt);
        if (FLAGS_content == "json") c.set_request_content_type(brpc::CONTENT_TYPE_JSON);
        if (FLAGS_content == "proto_json") c.set_request_content_type(brpc::CONTENT_TYPE_PROTO_JSON);
        if (FLAGS_content == "text") c.set_request_content_type(brpc::CONTENT_TYPE_PROTO_TEXT);
        if (FLAGS_fields) (*c.request_user_fields())["tenant"] = "kvlane";
        if (!FLAGS_reqid.empty()) c.set_request_id(FLAGS_reqid);
        if (FLAGS_logid != 0) c.set_log_id(FLAGS_logid);
    }
    void Outcome() {
        if (c.Failed()) return Print("failed code=" + std::to_string(c.ErrorCode()) + " text=" + c.ErrorText());
        const bool same = out.message() == in.message() && c.response_attachment().equals(c.request_attachment()) &&
                          (!Starts(in.message(), "fields") || (*c.response_user_fields())["answer"] == "42");
        Print((same ? "ok len=" : "differs len=") + std::to_string(out.message().size()) +
              " att=" + std::to_string(c.response_attachment().size()));
    }
};

// Finds the method of the flags. Names that the service does not have are described here.
static const google::protobuf::MethodDescriptor* FindMethod(google::protobuf::DescriptorPool* pool) {
    google::protobuf::FileDescriptorProto f;
    f.set_name("peer.proto");
    const size_t dot = FLAGS_service.find('.');
    if (dot != std::string::npos) f.set_package(FLAGS_service.substr(0, dot));
    f.add_message_type()->set_name("Any");
    auto* service = f.add_service();
    service->set_name(FLAGS_service.substr(dot == std::string::npos ? 0 : dot + 1));
    auto* method = service->add_method();
    method->set_name(FLAGS_method);
    method->set_input_type("Any"); // not checked
    method->set_output_type("Any");
    return pool->BuildFile(f)->service(0)->method(0);
}

static int CallServer() {
    Credential credential;
    brpc::ChannelOptions o;
    o.protocol = "baidu_std";
    o.connection_type = FLAGS_conn;
    o.timeout_ms = FLAGS_timeout;
    o.connect_timeout_ms = 5000; // the default of 200 is too short on a loaded machine
    o.max_retry = 0;
    if (!FLAGS_auth.empty()) o.auth = &credential;
    if (FLAGS_tls) o.mutable_ssl_options();
    if (FLAGS_deliver) gflags::SetCommandLineOption("baidu_std_protocol_deliver_timeout_ms", "true");
    brpc::Channel channel;
    if (channel.Init(FLAGS_addr.c_str(), &o) != 0) return 1;
    google::protobuf::DescriptorPool pool;
    const auto* method = FindMethod(&pool);
    const std::string text = FLAGS_bigmsg > 0 ? std::string(FLAGS_bigmsg, 'm') : FLAGS_msg;
    if (FLAGS_cancel > 0 || FLAGS_second > 0) {
        Call call(text);
        const brpc::CallId id = call.c.call_id();
        channel.CallMethod(method, &call.c, &call.in, &call.out, brpc::DoNothing());
        usleep((FLAGS_cancel + FLAGS_second) * 1000);
        Call second("hello");
        if (FLAGS_cancel > 0) {
            brpc::StartCancel(id);
        } else {
            channel.CallMethod(method, &second.c, &second.in, &second.out, nullptr);
        }
        brpc::Join(id);
        call.Outcome();
        if (FLAGS_second > 0) second.Outcome();
        return 0;
    }
    std::vector<std::thread> threads;
    for (int t = 0; t < FLAGS_parallel; t++) {
        threads.emplace_back([&] {
            for (int i = 0; i < FLAGS_n; i++) {
                Call call(text);
                brpc::StreamIds ids;
                brpc::StreamOptions so;
                auto* handler = new ClientStream; // callbacks may follow the end of this function
                if (!FLAGS_noclienthandler) so.handler = handler;
                if (!FLAGS_stream.empty()) brpc::StreamCreate(ids, FLAGS_streams, call.c, &so);
                channel.CallMethod(method, &call.c, &call.in, &call.out, nullptr);
                if (FLAGS_stream.empty() || call.c.Failed()) {
                    call.Outcome();
                } else {
                    UseStreams(ids, handler);
                }
            }
        });
    }
    for (auto& t : threads) t.join();
    return 0;
}

int main(int argc, char* argv[]) {
    gflags::ParseCommandLineFlags(&argc, &argv, true);
    logging::SetMinLogLevel(logging::BLOG_FATAL);
    signal(SIGPIPE, SIG_IGN);
    const std::string mode = argc == 2 ? argv[1] : "";
    const int rc = mode == "serve" ? Serve() : mode == "call" ? CallServer() : 2;
    fflush(stdout);
    _exit(rc); // without the destructors of a library whose threads still run
}
