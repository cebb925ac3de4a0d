// Mirrors: what is staged is read together with the container, bit for bit; what is not of this
// container, or spoilt, is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "experts/routing_trace.h"
#include "experts/usage_history.h"
#include "platform/aligned_memory.h"
#include "platform/file.h"
#include "storage/manifest.h"
#include "storage/mirror.h"
#include "storage/replica_set.h"
#include "tests/convert/tiny_checkpoint.h"
#include "tools/convert/converter.h"
#include "tools/mirror/staging.h"

namespace glmd {
namespace {

void use(UsageHistory& history, int32_t layer, uint16_t expert) {
  const uint32_t position = 0;
  history.routed({.layer = layer, .positions = {&position, 1}, .experts = {&expert, 1}});
}

class MirrorTest : public testing::Test {
 protected:
  void SetUp() override {
    test::TinyCheckpoint::make().write(folder_ / "source");
    const Result<void> converted = convert(
        {.source = folder_ / "source", .target = folder_ / "c", .policies = {}, .ignored = {}},
        [](const ConvertProgress&) { return true; });
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    container_.emplace(Container::open(folder_ / "c").value());
  }

  Result<void> stage(const MirrorPlan& plan) {
    return stage_mirror(*container_, plan, folder_ / "m", 0,
                        [](const StageProgress&) { return true; });
  }
  MirrorPlan whole() { return plan_mirror(even_order(*container_), INT64_MAX); }
  MirrorPlan first(size_t count) {
    MirrorPlan plan = whole();
    plan.experts.resize(count);
    plan.bytes = 0;
    for (const Tensor* tensor : plan.experts) plan.bytes += tensor->bytes;
    return plan;
  }
  void expect_right_bytes(BlockReader& reader) {
    for (const Tensor* tensor : even_order(*container_)) {
      AlignedMemory memory = AlignedMemory::allocate(tensor->bytes).value();
      reader.submit({.file = tensor->file,
                     .offset = tensor->offset,
                     .bytes = tensor->bytes,
                     .target = memory.data(),
                     .tag = 1});
      const ReadCompletion completion = reader.wait();
      ASSERT_TRUE(completion.result.ok()) << completion.result.error().message;
      EXPECT_EQ(hash_bytes(memory.bytes()), tensor->hash) << tensor->name;
    }
  }

  std::string same_device(const std::string& name) {
    return "mirror " + (folder_ / name) + ": on the device of " + container_->folder() +
           ", which gives no more for a second copy";
  }

  test::TemporaryFolder folder_;
  std::optional<Container> container_;
};

TEST_F(MirrorTest, a_partial_mirror_is_sound_and_read_with_the_container) {
  ASSERT_TRUE(stage(first(3)).ok());
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
  EXPECT_EQ(Mirror::open(folder_ / "m", *container_).value().expert_places.size(), 3U);
  OpenedReader opened = open_expert_reader(*container_, {folder_ / "m"}, {}).value();
  expect_right_bytes(*opened.reader);
  EXPECT_THAT(opened.reader->take_events(), testing::ElementsAre(same_device("m")));
  EXPECT_GT(opened.reader->disks()[1].counters.bytes, 0);
}

TEST_F(MirrorTest, a_plain_copy_of_the_container_is_a_mirror) {
  std::filesystem::copy(folder_ / "c", folder_ / "m");
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
  OpenedReader opened = open_expert_reader(*container_, {folder_ / "m"}, {}).value();
  expect_right_bytes(*opened.reader);
}

TEST_F(MirrorTest, a_mirror_deleted_under_the_reader_is_survived) {
  ASSERT_TRUE(stage(whole()).ok());
  OpenedReader opened = open_expert_reader(*container_, {folder_ / "m"}, {}).value();
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "m")) {
    std::filesystem::resize_file(entry.path(), 0);
  }
  expect_right_bytes(*opened.reader);
  EXPECT_THAT(opened.reader->take_events(),
              testing::ElementsAre(same_device("m"), testing::HasSubstr("the file is short")));
}

TEST_F(MirrorTest, of_another_container_it_is_refused_with_both_identities) {
  ASSERT_TRUE(stage(first(1)).ok());
  MirrorManifest manifest = MirrorManifest::read(folder_ / "m").value();
  manifest.identity ^= 1;
  test::write_text(folder_ / "m/mirror.json", manifest.to_json().to_string());
  const auto opened = open_expert_reader(*container_, {folder_ / "m"}, {});
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message,
              testing::AllOf(testing::HasSubstr(hash_text(manifest.identity)),
                             testing::HasSubstr(hash_text(container_->identity()))));
}

// Each folder has whole copies of the experts, spoilt as told.
TEST_F(MirrorTest, a_damaged_copy_is_left_out_at_the_start_and_one_that_is_set_wrongly_refused) {
  const auto kind_of = [&](const std::string& folder) {
    const Result<Mirror> mirror = Mirror::open(folder, *container_);
    const auto opened = open_expert_reader(*container_, {folder}, {});
    EXPECT_FALSE(mirror.ok());
    const bool is_refused = mirror.error().kind == ErrorKind::bad_input;
    EXPECT_EQ(opened.ok(), !is_refused);
    if (!opened.ok()) return mirror.error().kind;
    EXPECT_THAT(
        opened.value().reader->take_events(),
        testing::ElementsAre(testing::HasSubstr(
            mirror.error().message + "; reading from the other disks, trying again in 30 s")));
    expect_right_bytes(*opened.value().reader);
    return mirror.error().kind;
  };
  const std::string m = folder_ / "m", copy = folder_ / "copy";
  ASSERT_TRUE(stage(whole()).ok());
  const std::string sound = test::read_text(m + "/mirror.json");
  for (const std::string& text : {std::string(), sound.substr(0, sound.size() / 2),
                                  std::string("[]"), std::string(sound.size(), '\0')}) {
    test::write_text(m + "/mirror.json", text);
    EXPECT_EQ(kind_of(m), ErrorKind::corrupt);
  }
  MirrorManifest manifest = MirrorManifest::parse(parse_json(sound, "").value(), "").value();
  manifest.experts.begin()->second ^= 1;
  test::write_text(m + "/mirror.json", manifest.to_json().to_string());
  EXPECT_EQ(kind_of(m), ErrorKind::corrupt);
  test::write_text(m + "/mirror.json", sound);
  const std::string name = "/experts-001.safetensors", path = m + name;
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(kind_of(m), ErrorKind::corrupt);
  std::filesystem::remove(path);
  EXPECT_EQ(kind_of(m), ErrorKind::not_found);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(kind_of(m), ErrorKind::corrupt);

  std::filesystem::copy(folder_ / "c", copy);
  test::write_text(copy + "/glmd.json", "");
  EXPECT_EQ(kind_of(copy), ErrorKind::corrupt);
  EXPECT_EQ(kind_of(folder_ / "nowhere"), ErrorKind::not_found);

  EXPECT_EQ(kind_of(folder_ / "c"), ErrorKind::bad_input);
  std::filesystem::remove(path);
  std::filesystem::create_hard_link((folder_ / "c") + name, path);
  test::write_text(m + "/mirror.json", "");
  EXPECT_EQ(kind_of(m), ErrorKind::bad_input) << "damaged, but set wrongly too";
  std::filesystem::copy(copy, folder_ / "c/copy");
  EXPECT_EQ(kind_of(folder_ / "c/copy"), ErrorKind::bad_input);
}

TEST_F(MirrorTest, a_wrong_manifest_is_told_in_one_line) {
  ASSERT_TRUE(stage(first(1)).ok());
  const auto refuses = [&](const std::string& text, const std::string& why) {
    test::write_text(folder_ / "m/mirror.json", text);
    const Result<MirrorManifest> read = MirrorManifest::read(folder_ / "m");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().kind, ErrorKind::bad_input);
    EXPECT_EQ(read.error().message, (folder_ / "m/mirror.json: ") + why);
  };
  const std::string begin = R"({"format_version":1,"identity":"0123456789abcdef")";
  refuses("[]", "wanted an object, got []");
  refuses(R"({"format_version":2})", "format_version: wanted 1, got 2");
  refuses(R"({"format_version":1})", "identity: wanted 16 hexadecimal digits, got nothing");
  refuses(begin + "}", "experts: wanted an object, got nothing");
  refuses(begin + R"(,"experts":{"a":"x"}})",
          R"(experts: a: wanted 16 hexadecimal digits, got "x")");
  refuses(begin + R"(,"experts":{"a\nb":"0123456789abcdef"}})",
          R"(experts: wanted printable names, got "a\nb")");
}

TEST_F(MirrorTest, a_flipped_bit_is_found_and_named) {
  const MirrorPlan plan = first(2);
  ASSERT_TRUE(stage(plan).ok());
  const Tensor& tensor = *plan.experts[1];
  const std::string path =
      folder_ / ("m/" + std::filesystem::path(container_->files()[static_cast<size_t>(tensor.file)])
                            .filename()
                            .string());
  std::string text = test::read_text(path);
  text[static_cast<size_t>(tensor.offset) + 5] ^= 1;
  test::write_text(path, text);
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"),
              testing::ElementsAre(testing::HasSubstr(tensor.name + ": checksum")));
}

TEST_F(MirrorTest, staging_continues_where_it_was_stopped_and_appears_whole) {
  int64_t reports = 0;
  const Result<void> stopped = stage_mirror(*container_, whole(), folder_ / "m", 0,
                                            [&](const StageProgress&) { return ++reports < 3; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().kind, ErrorKind::cancelled);
  EXPECT_FALSE(path_exists(folder_ / "m"));
  StageProgress last;
  const Result<void> staged =
      stage_mirror(*container_, whole(), folder_ / "m", 0, [&](const StageProgress& progress) {
        last = progress;
        return true;
      });
  ASSERT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_GT(last.bytes_kept, 0);
  EXPECT_EQ(last.bytes_done, last.bytes_total);
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
  EXPECT_FALSE(path_exists(folder_ / "m.partial"));
}

TEST_F(MirrorTest, without_room_nothing_is_begun) {
  const Result<void> staged = stage_mirror(*container_, whole(), folder_ / "m", INT64_MAX,
                                           [](const StageProgress&) { return true; });
  ASSERT_FALSE(staged.ok());
  EXPECT_EQ(staged.error().kind, ErrorKind::io);
  EXPECT_THAT(staged.error().message,
              testing::ContainsRegex("free space: wanted [0-9]+ bytes beside a reserve of "));
  EXPECT_FALSE(path_exists(folder_ / "m.partial"));
}

TEST_F(MirrorTest, where_no_expert_fits_there_is_no_room) {
  const Result<void> staged = stage(plan_mirror(even_order(*container_), 0));
  ASSERT_FALSE(staged.ok());
  EXPECT_EQ(staged.error().kind, ErrorKind::io);
  EXPECT_FALSE(path_exists(folder_ / "m.partial"));
}

TEST_F(MirrorTest, two_runs_do_not_stage_the_same_folder) {
  std::optional<Result<void>> second;
  const Result<void> first =
      stage_mirror(*container_, whole(), folder_ / "m", 0, [&](const StageProgress&) {
        if (!second) second = stage(whole());
        return true;
      });
  ASSERT_TRUE(first.ok()) << first.error().message;
  ASSERT_FALSE(second->ok());
  EXPECT_EQ(second->error().kind, ErrorKind::busy);
  EXPECT_THAT(second->error().message, testing::HasSubstr("another glmd-mirror stages it"));
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
}

TEST_F(MirrorTest, what_another_program_left_is_refused_and_not_touched) {
  const std::string partial = folder_ / "m.partial";
  const auto refuses = [&](const std::string& name, const std::string& text,
                           const std::string& why) {
    std::filesystem::remove_all(partial);
    std::filesystem::create_directory(partial);
    test::write_text(partial + "/" + name, text);
    const auto before = test::read_folder(partial);
    const Result<void> staged = stage(whole());
    ASSERT_FALSE(staged.ok()) << name;
    EXPECT_EQ(staged.error().kind, ErrorKind::usage);
    EXPECT_THAT(staged.error().message, testing::StartsWith(partial + ": exists, not touched: "));
    EXPECT_THAT(staged.error().message, testing::HasSubstr(why));
    EXPECT_EQ(test::read_folder(partial), before);
  };
  refuses("conversion.journal", "{}\n", "glmd-convert continues it");
  refuses("experts-001.safetensors", "x", "as glmd-make-model leaves when killed");
  refuses("notes", "x", "files of others");
  MirrorManifest other;
  other.identity = 0x1234;
  refuses("mirror.json", other.to_json().to_string(), "a mirror of the container 0000000000001234");
}

TEST_F(MirrorTest, what_another_program_writes_is_left_to_it) {
  std::optional<Result<void>> staged;
  const Result<void> converted = convert(
      {.source = folder_ / "source", .target = folder_ / "m", .policies = {}, .ignored = {}},
      [&](const ConvertProgress& progress) {
        if (!staged && progress.bytes_done > 0) staged = stage(whole());
        return true;
      });
  EXPECT_TRUE(converted.ok()) << converted.error().message;
  ASSERT_TRUE(staged);
  EXPECT_EQ(staged->error().kind, ErrorKind::busy);
  EXPECT_EQ(staged->error().message, folder_ / "m.partial: another glmd-convert writes it");
}

TEST_F(MirrorTest, a_stage_killed_before_or_in_its_first_write_is_continued) {
  std::filesystem::create_directory(folder_ / "m.partial");
  test::write_text(folder_ / "m.partial/mirror.json.new", "{");
  EXPECT_TRUE(stage(first(1)).ok());
}

TEST_F(MirrorTest, a_smaller_plan_releases_what_a_larger_one_left) {
  const auto staged_bytes = [&](const std::string& folder) {
    int64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      struct stat status {};
      EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
      if (entry.path().extension() == ".safetensors") bytes += status.st_blocks * 512;
    }
    return bytes;
  };
  const auto left_by = static_cast<int64_t>(whole().experts.size()) - 1;
  int64_t reports = 0;
  ASSERT_FALSE(stage_mirror(*container_, whole(), folder_ / "m", 0, [&](const StageProgress&) {
                 return ++reports < left_by;
               }).ok());
  MirrorPlan plan = whole();
  std::reverse(plan.experts.begin(), plan.experts.end());
  plan.experts.resize(2);
  plan.bytes = plan.experts[0]->bytes + plan.experts[1]->bytes;
  ASSERT_GT(staged_bytes(folder_ / "m.partial"), plan.bytes);
  const Result<void> staged =
      stage_mirror(*container_, plan, folder_ / "m", 0, [&](const StageProgress&) {
        EXPECT_LE(staged_bytes(folder_ / "m.partial"), plan.bytes);
        return true;
      });
  ASSERT_TRUE(staged.ok()) << staged.error().message;
  EXPECT_EQ(staged_bytes(folder_ / "m"), plan.bytes);
  EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
}

TEST_F(MirrorTest, links_to_the_container_are_replaced_not_written_through) {
  const MirrorPlan plan = first(1);
  const std::string original = container_->files()[static_cast<size_t>(plan.experts[0]->file)];
  const std::string name = std::filesystem::path(original).filename().string();
  const std::string before = test::read_text(original);
  for (const bool is_hard : {true, false}) {
    std::filesystem::remove_all(folder_ / "m");
    const std::string link = folder_ / ("m.partial/" + name);
    ASSERT_FALSE(stage_mirror(*container_, plan, folder_ / "m", 0, [](const StageProgress&) {
                   return false;
                 }).ok());
    std::filesystem::remove(link);
    if (is_hard) std::filesystem::create_hard_link(original, link);
    if (!is_hard) std::filesystem::create_symlink(original, link);
    ASSERT_TRUE(stage(plan).ok());
    EXPECT_EQ(test::read_text(original), before);
    EXPECT_THAT(verify_mirror(*container_, folder_ / "m"), testing::IsEmpty());
  }
}

// The program: exit codes, and folders as people type them.
class MirrorProgram : public MirrorTest {
 protected:
  int run(const std::string& arguments) {
    const std::string line = "cd " + (folder_ / ".") + " && " GLMD_BINARY_DIR "/bin/glmd-mirror " +
                             arguments + " >" + (folder_ / "said") + " 2>&1";
    const int code = WEXITSTATUS(std::system(line.c_str()));
    said_ = test::read_text(folder_ / "said");
    return code;
  }
  std::string said_;
};

TEST_F(MirrorProgram, a_slash_at_the_end_changes_nothing) {
  EXPECT_EQ(run("stage c m/ --reserve 0"), 0) << said_;
  EXPECT_EQ(run("verify c m/"), 0) << said_;
  EXPECT_EQ(run("stage c '' --reserve 0"), 64);
  EXPECT_THAT(said_, testing::HasSubstr("FOLDER : wanted the name of a folder to make"));
  EXPECT_FALSE(path_exists(folder_ / ".partial"));
}

TEST_F(MirrorProgram, plan_refuses_what_stage_refuses_in_the_same_line) {
  const auto both_refuse = [&](const std::string& arguments, int code, const std::string& why) {
    EXPECT_EQ(run("stage " + arguments), code) << said_;
    EXPECT_THAT(said_, testing::HasSubstr(why));
    const std::string said = said_;
    EXPECT_EQ(run("plan " + arguments), code) << said_;
    EXPECT_EQ(said_, said);
  };
  both_refuse("c m --bytes 0 --reserve 0", 74, "m: no expert fits");
  both_refuse("c m --reserve 99999T", 74, "m: no expert fits");
  both_refuse("c c", 64, "c: exists already");
  both_refuse("c c/m --reserve 0", 64, "c/m: wanted a place on another disk, got one inside c\n");
  std::filesystem::create_directory_symlink(folder_ / "c", folder_ / "link");
  both_refuse("c link/m --reserve 0", 64, "link/m: wanted a place on another disk");
  both_refuse("c nonexistent/m", 74, "nonexistent");
  both_refuse("c /proc/m --reserve 0", 74, "/proc/m");
  test::write_text(folder_ / "file.partial", "x");
  both_refuse("c file --reserve 0", 64, "file.partial: exists, not touched: no folder");
  std::filesystem::create_directory(folder_ / "other.partial");
  test::write_text(folder_ / "other.partial/notes", "x");
  both_refuse("c other --reserve 0", 64, "other.partial: exists, not touched: files of others");
  EXPECT_EQ(run("plan c m --reserve 0"), 0) << said_;
}

TEST_F(MirrorProgram, a_place_on_the_containers_device_is_warned_of) {
  const std::string warning =
      "glmd-mirror: warning: mirror m: on the device of c, which gives no more for a second copy\n";
  for (const std::string command : {"plan", "stage"}) {
    EXPECT_EQ(run(command + " c m --reserve 0"), 0) << said_;
    EXPECT_THAT(said_, testing::StartsWith(warning));
  }
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat((folder_ / ".").c_str(), &here), 0);
  if (::stat("/dev/shm", &there) != 0 || here.st_dev == there.st_dev) GTEST_SKIP();
  const std::string other =
      "/dev/shm/" + std::filesystem::path(folder_ / ".").parent_path().filename().string();
  EXPECT_EQ(run("plan c " + other + " --reserve 0"), 0) << said_;
  EXPECT_THAT(said_, testing::StartsWith(other + ": "));
}

TEST_F(MirrorProgram, a_model_without_experts_has_none_to_copy) {
  Json config = test::TinyCheckpoint::make().config;
  config.set("num_nextn_predict_layers", Json::integer(0));
  config.set("num_hidden_layers", Json::integer(1));
  test::write_text(folder_ / "config.json", config.to_string());
  const std::string make = GLMD_BINARY_DIR "/bin/glmd-make-model --layers dense --config " +
                           (folder_ / "config.json") + " " + (folder_ / "dense") + " 2>/dev/null";
  ASSERT_EQ(std::system(make.c_str()), 0);
  for (const std::string command : {"plan", "stage"}) {
    EXPECT_EQ(run(command + " dense m --reserve 0"), 65) << said_;
    EXPECT_EQ(said_, "glmd-mirror: dense: the model has no experts to copy\n");
  }
}

// In a mount namespace of its own, on a disk that is full of an interrupted stage of others.
TEST_F(MirrorProgram, on_a_full_disk_what_is_planned_is_staged) {
  if (std::system("unshare -rm true 2>/dev/null") != 0) GTEST_SKIP() << "no namespaces here";
  Json config = test::TinyCheckpoint::make().config;
  config.set("moe_intermediate_size", Json::integer(4096));  // experts larger than what is beside
  test::write_text(folder_ / "config.json", config.to_string());
  const std::string make = GLMD_BINARY_DIR "/bin/glmd-make-model --config " +
                           (folder_ / "config.json") + " " + (folder_ / "big") + " 2>/dev/null";
  ASSERT_EQ(std::system(make.c_str()), 0);
  const Container big = Container::open(folder_ / "big").value();
  const std::vector<const Tensor*> even = even_order(big);
  const auto half = static_cast<int64_t>(even.size()) / 2;
  ASSERT_GT(even.front()->bytes, 100 << 10);
  int64_t reports = 0;
  ASSERT_FALSE(
      stage_mirror(big, plan_mirror(even, INT64_MAX), folder_ / "m", 0, [&](const StageProgress&) {
        return ++reports < half;
      }).ok());
  const int64_t disk_bytes = half * even.back()->bytes + (96 << 10);
  const std::string script = fmt::format(
      "cd {} && mount -t tmpfs -o size={} none disk && cp -a --sparse=always m.partial disk/ && "
      "for what in plan stage; do {}/bin/glmd-mirror $what big disk/m --reserve 0 --history uses "
      "2>err || {{ cat err; exit 1; }}; done; {}/bin/glmd-mirror verify big disk/m",
      folder_ / ".", disk_bytes, GLMD_BINARY_DIR, GLMD_BINARY_DIR);
  std::filesystem::create_directory(folder_ / "disk");
  test::write_text(folder_ / "script", script);
  // The draft layer's file comes last, and first in this order.
  UsageHistory history(routing_shape(big));
  for (int64_t expert = 0; expert < half; ++expert) {
    use(history, static_cast<int32_t>(big.checkpoint().layers), static_cast<uint16_t>(expert));
  }
  ASSERT_TRUE(history.save(folder_ / "uses").ok());
  const int code = WEXITSTATUS(std::system(
      ("unshare -rm sh " + (folder_ / "script") + " >" + (folder_ / "said") + " 2>&1").c_str()));
  said_ = test::read_text(folder_ / "said");
  EXPECT_EQ(code, 0) << said_;
  EXPECT_THAT(said_, testing::MatchesRegex("disk/m: [1-9][0-9]* of .*\ndisk/m: [1-9][0-9]* of .*\n"
                                           "disk/m: sound\n"));
  const size_t line = said_.find('\n');
  EXPECT_EQ(said_.substr(0, line), said_.substr(line + 1, line)) << said_;
}

TEST_F(MirrorProgram, exit_codes_are_those_of_the_manual) {
  EXPECT_EQ(run("stage c m --bytes 0 --reserve 0"), 74) << said_;
  EXPECT_EQ(run("stage c m --reserve 99999T"), 74) << said_;
  EXPECT_EQ(run("stage c m --history nonexistent"), 66) << said_;
  EXPECT_EQ(run("stage c m --history c/config.json"), 65) << said_;
  EXPECT_EQ(run("stage nonexistent m"), 66) << said_;
  EXPECT_EQ(run("stage c/config.json/below m"), 66) << said_;
  EXPECT_EQ(run("stage c nonexistent/m"), 74) << said_;
  EXPECT_EQ(run("stage c /proc/m --reserve 0"), 74) << said_;
  std::filesystem::remove(container_->files().back());
  EXPECT_EQ(run("stage c m --reserve 0"), 66) << said_;
  EXPECT_FALSE(path_exists(folder_ / "m.partial"));
}

TEST_F(MirrorTest, what_was_used_most_is_copied_first_as_far_as_the_bytes_go) {
  UsageHistory history(routing_shape(*container_));
  for (const auto& [layer, expert] : {std::pair{1, 3}, {2, 1}, {2, 1}}) {
    use(history, layer, static_cast<uint16_t>(expert));
  }
  ASSERT_TRUE(history.save(folder_ / "uses").ok());
  const std::vector<const Tensor*> order = order_of_use(folder_ / "uses", *container_).value();
  std::vector<const Tensor*> rest = even_order(*container_);
  ASSERT_EQ(order.size(), rest.size());
  EXPECT_EQ(order[0]->name, "layers.2.experts.1");
  EXPECT_EQ(order[1]->name, "layers.1.experts.3");
  std::erase_if(rest, [&](const Tensor* one) { return one == order[0] || one == order[1]; });
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), order.begin() + 2)) << "in even order";
  const MirrorPlan plan = plan_mirror(order, order[0]->bytes);
  ASSERT_EQ(plan.experts.size(), 1U);
  EXPECT_EQ(plan.experts[0], order[0]);
}

TEST_F(MirrorTest, a_history_that_is_none_of_this_container_is_told) {
  UsageHistory history(routing_shape(*container_));
  use(history, 1, 0);
  const std::string path = folder_ / "uses";
  ASSERT_TRUE(history.save(path).ok());
  const std::string sound = test::read_text(path);
  const auto refuses = [&](const std::string& text, ErrorKind kind, const std::string& why) {
    test::write_text(path, text);
    const auto order = order_of_use(path, *container_);
    ASSERT_FALSE(order.ok());
    EXPECT_EQ(order.error().kind, kind);
    EXPECT_THAT(order.error().message, testing::StartsWith(path + ": " + why));
  };
  std::string other = sound, flipped = sound;
  other[24] ^= 1;  // the identity
  flipped[40] ^= 1;
  refuses(other, ErrorKind::bad_input, "of another model: wanted identity ");
  refuses(flipped, ErrorKind::corrupt, "the checksum does not match");
  refuses(sound.substr(0, sound.size() / 2), ErrorKind::corrupt, "size: wanted ");
  refuses("", ErrorKind::corrupt, "the header is cut off");
  refuses("1 2\n3 4\n", ErrorKind::bad_input, "exists and is no usage history");
  EXPECT_EQ(order_of_use(folder_ / "nowhere", *container_).error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace glmd
