#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <map>
#include <thread>

#include "client/daemon_client.h"
#include "platform/unix_socket.h"
#include "tests/support/scripted_engine.h"

namespace glmd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A client as a shell would be one: text out, text in.
class RawClient {
 public:
  explicit RawClient(const std::string& path) : descriptor_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_un address = unix_address(path, ErrorKind::usage).value();
    CHECK(::connect(descriptor_, base_of(address), sizeof(address)) == 0);
  }
  ~RawClient() { hang_up(); }

  void hang_up() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }
  void end_input() { ::shutdown(descriptor_, SHUT_WR); }
  void send(const std::string& text) {
    ::send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
  }

  // All that came until `mark` did, or the end, or ten seconds of silence.
  std::string read_until(const std::string& mark) {
    while (received_.find(mark) == std::string::npos && read_more()) {
    }
    const size_t found = received_.find(mark);
    const size_t end = found == std::string::npos ? received_.size() : found + mark.size();
    std::string text = received_.substr(0, end);
    received_.erase(0, end);
    return text;
  }
  std::string read_all() {
    while (read_more()) {
    }
    return std::exchange(received_, {});
  }

 private:
  bool read_more() {
    pollfd ready{descriptor_, POLLIN, 0};
    if (::poll(&ready, 1, 10'000) <= 0) {
      received_ += "<silence>";
      return false;
    }
    char bytes[65536];
    const ssize_t count = ::recv(descriptor_, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    received_.append(bytes, static_cast<size_t>(count));
    return true;
  }

  int descriptor_;
  std::string received_;
};

std::string submit(int id, const std::string& script, const std::string& keys = "") {
  return "SUBMIT " + std::to_string(id) + " - " + std::to_string(script.size()) + " 64 0 1" + keys +
         "\n" + script + "\n";
}

bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000 && !condition(); ++i) ::poll(nullptr, 0, 10);
  return condition();
}

TEST(Server, a_request_ends_in_done) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(7, "echo hi", " seed=42"));
  const std::string text = client.read_until("DONE 7");
  EXPECT_THAT(text, HasSubstr("ACCEPT 7 slot=0 prompt=1 cached=0\n"));
  EXPECT_THAT(text, HasSubstr("THINK 7 2\nhm\nDATA 7 2\nhi\n"));
  EXPECT_THAT(client.read_until("\n"), HasSubstr("seed=42"));
}

TEST(Server, hello_ping_and_status_are_answered) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send("HELLO GLMD/1 client=x\nPING\nSTATUS\nNONSENSE\n");
  const std::string text = client.read_until("UNKNOWN_VERB");
  EXPECT_THAT(text, HasSubstr("OK HELLO GLMD/1 state="));
  EXPECT_THAT(text, HasSubstr("INFO ping "));
  EXPECT_THAT(text, HasSubstr("\"engine\":"));
}

TEST(Server, plan_and_doctor_are_answered_with_what_they_were_at_the_start) {
  ServerOptions options;
  options.plan_json = R"({"a":1})";
  options.doctor_json = R"({"b":2})";
  ServerUnderTest test(options);
  RawClient client(test.path());
  client.send("PLAN\nDOCTOR\n");
  EXPECT_EQ(client.read_until("{\"b\":2}\n"), "INFO plan 7\n{\"a\":1}\nINFO doctor 7\n{\"b\":2}\n");
}

TEST(Server, a_half_closed_connection_gets_its_answer_and_ends) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(1, "echo hi"));
  client.end_input();
  EXPECT_THAT(client.read_all(), HasSubstr("DONE 1 "));
}

TEST(Server, a_half_close_cancels_nothing_until_it_is_a_full_one) {
  ServerUnderTest test;
  RawClient client(test.path()), other(test.path());
  client.send(submit(1, "wait"));
  client.read_until("begun");
  client.end_input();
  other.send("PING\n");
  other.read_until("INFO ping");
  EXPECT_EQ(test.engine().cancel_count(), 0);
  client.hang_up();
  EXPECT_TRUE(becomes_true([&] { return test.engine().cancel_count() == 1; }));
}

TEST(Server, a_closed_connection_cancels_its_requests_and_no_others) {
  ServerUnderTest test;
  RawClient leaver(test.path()), stayer(test.path()), third(test.path());
  for (RawClient* client : {&leaver, &stayer, &third}) {
    client->send(submit(1, "wait"));
    client->read_until("begun");
  }
  leaver.hang_up();
  EXPECT_TRUE(becomes_true([&] { return test.engine().cancel_count() == 1; }));
  for (RawClient* client : {&stayer, &third}) {
    client->send("STOP 1\n");
    EXPECT_THAT(client->read_until("DONE 1 reason=stop"), Not(HasSubstr("ERROR")));
  }
}

TEST(Server, a_live_id_is_not_taken_twice) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(1, "wait") + submit(1, "wait"));
  EXPECT_THAT(client.read_until("still live"),
              HasSubstr("ERROR - DUPLICATE_ID msg=\"the id 1 is still live"));
  client.send("STOP 1\n");  // the only frame that ends it
  client.end_input();
  EXPECT_THAT(client.read_all(), AllOf(HasSubstr("DONE 1 "), Not(HasSubstr("ERROR 1"))));
}

TEST(Server, cancel_ends_in_one_error) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send("CANCEL 9\n" + submit(1, "wait"));
  EXPECT_THAT(client.read_until("begun"), HasSubstr("ERROR 9 NOT_FOUND"));
  client.send("CANCEL *\n");
  EXPECT_THAT(client.read_until("CANCELLED"), HasSubstr("ERROR 1 "));
  client.end_input();
  EXPECT_THAT(client.read_all(), Not(HasSubstr("ERROR")));
}

// The engine looks at its commands between layers, while weights load only keeps them.
TEST(Server, a_command_that_is_repeated_reaches_the_engine_once) {
  BareServer server;
  RawClient client(server.path());
  std::string text = submit(1, "wait") + submit(2, "wait");
  for (int i = 0; i < 1000; ++i) text += "STOP 1\nCANCEL 2\nCANCEL *\n";
  client.send(text + "PING\n");
  client.read_until("INFO ping");
  std::map<size_t, int> counts;  // by kind
  for (const Command& command : server.channel().take_commands()) ++counts[command.index()];
  EXPECT_EQ(counts[Command(Stop{}).index()], 1);
  EXPECT_EQ(counts[Command(Cancel{}).index()], 2);
  EXPECT_TRUE(server.stop().ok());
}

TEST(Server, a_slow_client_is_held_while_others_go_on) {
  ServerUnderTest test;
  RawClient slow(test.path()), other(test.path());
  slow.send(submit(1, "flood"));
  EXPECT_TRUE(becomes_true([&] { return test.engine().hold_count() > 0; }));
  other.send(submit(1, "echo hi"));
  EXPECT_THAT(other.read_until("DONE 1"), HasSubstr("hi"));
}

// No tokens are made while weights load, and commands pile up: who reads now and then would add to
// them each time.
TEST(Server, who_does_not_read_is_held_once_the_engine_is_ready) {
  ServerOptions options;
  options.limits.output_hold_bytes = 1000;
  BareServer server(options);
  std::vector<Command> commands;
  const auto count_holds = [&] {
    for (Command& command : server.channel().take_commands())
      commands.push_back(std::move(command));
    return std::count_if(commands.begin(), commands.end(), [](const Command& command) {
      return std::holds_alternative<Hold>(command);
    });
  };
  RawClient client(server.path()), other(server.path());
  // A second turn of the loop has seen what was sent before the first.
  const auto wait_for_loop = [&] {
    for (int turn = 0; turn < 2; ++turn) {
      other.send("PING\n");
      other.read_until("INFO ping");
    }
  };
  client.send(submit(1, "wait"));
  std::string pings;  // answers that no socket buffer holds
  for (int i = 0; i < 10'000; ++i) pings += "PING\n";
  for (int round = 0; round < 3; ++round) {
    client.send(pings + "NONSENSE\n");
    wait_for_loop();
    client.read_until("UNKNOWN_VERB");
  }
  EXPECT_EQ(count_holds(), 0);
  client.send(pings);
  wait_for_loop();
  server.channel().send(EngineReady{});
  EXPECT_TRUE(becomes_true([&] { return count_holds() == 1; }));
  client.hang_up();
  EXPECT_TRUE(server.stop().ok());
}

TEST(Server, a_client_that_never_reads_ends_with_slow_client) {
  ServerOptions options;
  options.limits.output_stall_ms = 100;
  ServerUnderTest test(options);
  RawClient slow(test.path());
  slow.send(submit(1, "flood"));
  EXPECT_TRUE(becomes_true([&] { return test.engine().cancel_count() > 0; }));
}

TEST(Server, a_full_queue_says_so) {
  ServerOptions options;
  options.requests_max = 1;
  ServerUnderTest test(options);
  RawClient client(test.path());
  client.send(submit(1, "wait") + submit(2, "wait"));
  EXPECT_THAT(client.read_until("QUEUE_FULL"), HasSubstr("ERROR 2"));
}

TEST(Server, one_user_leaves_half_of_the_queue_to_others) {
  ServerOptions options;
  options.requests_max = 4;
  ServerUnderTest test(options);
  RawClient client(test.path()), other(test.path());
  client.send(submit(1, "wait") + submit(2, "wait"));
  for (int i = 0; i < 2; ++i) client.read_until("begun");
  other.send(submit(3, "wait"));  // of the same user
  EXPECT_THAT(other.read_until("\n"), HasSubstr("ERROR 3 QUEUE_FULL retry_ms=2000 msg=\"2 live"));
  client.send("STOP 1\n");
  client.read_until("DONE 1");
  other.send(submit(4, "echo hi"));
  EXPECT_THAT(other.read_until("DONE 4"), HasSubstr("hi"));
}

// Otherwise each connection could hold a prompt that no limit counts, all but its last byte.
TEST(Server, a_prompt_counts_from_its_first_byte_on) {
  ServerOptions options;
  options.limits.payload_bytes_max = 1000;
  options.limits.queued_input_bytes_max = 2000;  // one user: half
  ServerUnderTest test(options);
  RawClient slow(test.path()), other(test.path());
  const std::string prompt = "echo " + std::string(895, 'x');
  const std::string frame = submit(1, prompt);
  slow.send("PING\n" + frame.substr(0, 500));
  slow.read_until("INFO ping");
  const std::string second = submit(2, prompt);
  other.send(second.substr(0, 500));
  EXPECT_THAT(other.read_until("msg="), HasSubstr("ERROR 2 QUEUE_FULL retry_ms="));
  other.send(second.substr(500) + "PING\n");  // what was refused is passed over
  EXPECT_THAT(other.read_until("INFO ping"), Not(HasSubstr("ERROR")));
  slow.send(frame.substr(500));
  EXPECT_THAT(slow.read_until("DONE 1"), HasSubstr("ACCEPT 1"));
  other.send(second);
  EXPECT_THAT(other.read_until("DONE 2"), HasSubstr("ACCEPT 2"));
}

TEST(Server, a_loading_server_queues_or_says_so) {
  ServerUnderTest test({}, false);
  RawClient client(test.path());
  client.send(submit(1, "wait", " nowait=1"));
  EXPECT_THAT(client.read_until("\n"), HasSubstr("ERROR 1 LOADING"));
}

TEST(Server, other_slots_are_bad) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send("SUBMIT 1 name:x 1 - - -\nx\n");
  EXPECT_THAT(client.read_until("\n"), HasSubstr("ERROR 1 SLOT_BAD"));
}

TEST(Server, foreign_protocols_are_cut_off_silently) {
  ServerUnderTest test;
  for (const char* text : {"GET / HTTP/1.1\r\n\r\n", "POST / HTTP/1.1\r\n", "\x16\x03\x01"}) {
    RawClient client(test.path());
    client.send(text);
    EXPECT_EQ(client.read_all(), "") << text;
  }
}

TEST(Server, a_bad_line_closes_after_saying_why) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(1, "wait"));
  client.read_until("begun");
  client.send("PING\r\n");
  const std::string text = client.read_all();
  EXPECT_THAT(text, HasSubstr("ERROR 1 CANCELLED"));
  EXPECT_THAT(text, HasSubstr("ERROR - BAD_LINE"));
}

TEST(Server, a_line_that_does_not_end_times_out) {
  ServerOptions options;
  options.limits.header_timeout_ms = 50;
  ServerUnderTest test(options);
  RawClient client(test.path());
  client.send("PI");
  EXPECT_THAT(client.read_all(), HasSubstr("ERROR - BAD_LINE"));
}

TEST(Server, connections_of_a_user_are_bounded) {
  ServerOptions options;
  options.limits.connections_per_uid_max = 1;
  ServerUnderTest test(options);
  RawClient first(test.path());
  first.send("PING\n");
  first.read_until("INFO ping");
  RawClient second(test.path());
  EXPECT_THAT(second.read_all(), AllOf(HasSubstr("ERROR - QUEUE_FULL"), HasSubstr("at most 1")));
}

std::atomic<bool> is_loop_stopped, may_loop_go_on;

// Both reach the loop in one turn, which is made to come late.
TEST(Server, a_connection_that_closed_makes_room_for_the_next_at_once) {
  ServerOptions options;
  options.limits.connections_per_uid_max = 1;
  BareServer server(options);
  RawClient first(server.path());
  first.send("PING\n");
  first.read_until("INFO ping");

  is_loop_stopped = may_loop_go_on = false;
  ::signal(SIGURG, [](int) {
    is_loop_stopped = true;
    while (!may_loop_go_on) ::poll(nullptr, 0, 1);
  });
  pthread_kill(server.loop().native_handle(), SIGURG);
  ASSERT_TRUE(becomes_true([] { return is_loop_stopped.load(); }));
  first.hang_up();
  RawClient second(server.path());
  may_loop_go_on = true;
  second.send("PING\n");
  EXPECT_THAT(second.read_until("INFO ping"), Not(HasSubstr("QUEUE_FULL")));

  ::signal(SIGURG, SIG_DFL);
  EXPECT_TRUE(server.stop().ok());
}

TEST(Server, draining_lets_the_running_finish_and_refuses_the_new) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(1, "wait"));
  client.read_until("begun");
  test.server().request_drain();
  client.send("PING\n");
  while (client.read_until("}").find("draining") == std::string::npos) client.send("PING\n");
  client.send(submit(2, "wait"));
  EXPECT_THAT(client.read_until("DRAINING"), HasSubstr("ERROR 2"));
  client.send("STOP 1\n");
  EXPECT_THAT(client.read_until("DONE 1"), HasSubstr("DONE 1"));
  EXPECT_TRUE(test.join().ok());
}

TEST(Server, asked_twice_to_stop_it_still_ends_each_request_with_a_frame) {
  ServerUnderTest test;
  RawClient client(test.path());
  client.send(submit(1, "wait"));
  client.read_until("begun");
  test.server().request_drain();
  test.server().request_drain();
  EXPECT_THAT(client.read_until("DRAINING"), HasSubstr("ERROR 1 "));
  EXPECT_TRUE(test.join().ok());
}

TEST(Server, what_is_not_done_at_the_drain_limit_gets_its_final_frame) {
  ServerOptions options;
  options.drain_limit_ms = 50;
  ServerUnderTest test(options);
  RawClient client(test.path());
  client.send(submit(1, "wait"));
  client.read_until("begun");
  test.server().request_drain();
  EXPECT_THAT(client.read_until("DRAINING"), HasSubstr("ERROR 1"));
  EXPECT_TRUE(test.join().ok());
}

TEST(Server, a_live_socket_is_private_and_not_stolen) {
  ServerUnderTest test;
  struct stat status {};
  ASSERT_EQ(::stat(test.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0660u);
  Channel channel;
  ServerOptions options;
  options.adopt_sockets = false;
  options.socket_path = test.path();
  const auto second = Server::create(options, channel);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::busy);
}

TEST(Server, a_stale_socket_is_replaced) {
  const std::string path = "/tmp/glmd-stale-" + std::to_string(getpid());
  const sockaddr_un address = unix_address(path, ErrorKind::usage).value();
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(descriptor, base_of(address), sizeof(address)), 0);
  ::close(descriptor);
  Channel channel;
  ServerOptions options;
  options.adopt_sockets = false;
  options.socket_path = path;
  EXPECT_TRUE(Server::create(options, channel).ok());
  EXPECT_NE(::access(path.c_str(), F_OK), 0);  // gone with its server
}

TEST(Server, the_socket_of_another_daemon_at_its_path_is_left_alone) {
  auto first = std::make_unique<ServerUnderTest>();
  const std::string path = first->path();
  ASSERT_EQ(::unlink(path.c_str()), 0);
  Channel channel;
  ServerOptions options;
  options.adopt_sockets = false;
  options.socket_path = path;
  auto second = Server::create(options, channel);
  ASSERT_TRUE(second.ok());
  first.reset();
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  second.value().reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  ::rmdir(path.substr(0, path.rfind('/')).c_str());
}

TEST(Server, a_path_without_a_folder_cannot_be_had) {
  Channel channel;
  ServerOptions options;
  options.adopt_sockets = false;
  options.socket_path = "/nonexistent/glmd.sock";
  const auto server = Server::create(options, channel);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().kind, ErrorKind::unavailable);
}

TEST(Server, a_path_too_long_for_a_socket_is_a_wrong_setting) {
  Channel channel;
  ServerOptions options;
  options.adopt_sockets = false;
  options.socket_path = "/tmp/" + std::string(200, 'x');
  const auto server = Server::create(options, channel);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().kind, ErrorKind::config);
  EXPECT_THAT(server.error().message, HasSubstr("a socket path has 1 to 107 bytes, got 205"));
}

TEST(Peer, roles_follow_user_and_group) {
  const Peer peer{1000, 1, {100, 200}};
  EXPECT_EQ(role_of(peer, 1, std::nullopt), Role::user);
  EXPECT_EQ(role_of(peer, 1, 300), Role::user);
  EXPECT_EQ(role_of(peer, 1, 200), Role::admin);
  EXPECT_EQ(role_of(peer, 1000, std::nullopt), Role::admin);
  EXPECT_EQ(role_of(Peer{0, 1, {}}, 1, std::nullopt), Role::admin);
}

}  // namespace
}  // namespace glmd
