#include "doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "doctor/doctor_facts.h"
#include "plan/plan_table.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t gib = int64_t{1} << 30;

FileFact file(std::string path, uint32_t mode, uint32_t rights = may_read | may_enter) {
  return {
      .path = std::move(path), .exists = true, .is_folder = true, .rights = rights, .mode = mode};
}

// A machine on which nothing is wrong.
MachineFacts sound_machine() {
  MachineFacts facts;
  facts.processor = "Processor";
  facts.kernels = "avx2";
  facts.core_count = facts.thread_count = 8;
  facts.memory_bytes = 64 * gib;
  facts.identity = {"glmd", 999, {999}};
  facts.places = {{.purpose = "model",
                   .folders = {file("/", 0755), file("/srv", 0755), file("/srv/m", 0755)},
                   .contents = {file("/srv/m/dense.safetensors", 0644)},
                   .file_system = "ext4",
                   .has_direct = true,
                   .free_bytes = gib}};
  facts.model_file_count = 80;
  facts.memlock_bytes = ~uint64_t{0};
  facts.descriptor_count = 65536;
  facts.huge_pages = "madvise";
  facts.dense_bytes = 11 * gib;
  facts.plan = MemoryPlan{.budget_bytes = 56 * gib,
                          .budget_source = "MemAvailable x 0.88",
                          .dense_bytes = 11 * gib,
                          .arena_bytes = 40 * gib,
                          .experts_bytes = 358 * gib};
  facts.cost = {
      .dense_bytes = 10 * gib, .expert_bytes = 20'054'016, .experts = 600, .expert_count = 19'200};
  facts.speed = MachineSpeed{.disk_bytes_per_s = 7e9, .memory_bytes_per_s = 75e9};
  return facts;
}

// The findings of a machine that differs in one thing.
std::string findings_after(const std::function<void(MachineFacts&)>& change) {
  MachineFacts facts = sound_machine();
  change(facts);
  return findings_text(examine(facts));
}

TEST(DoctorFacts, of_a_model_that_does_not_open_the_files_are_examined) {
  const TemporaryFolder folder;
  std::ofstream(folder / "experts-003.safetensors") << "x";
  MachineFacts facts =
      gather_facts(Settings(), folder / ".", error(ErrorKind::denied, "cannot be opened"));
  ASSERT_EQ(facts.places.front().contents.size(), 1U);
  facts.identity = {"somebody", 65534, {65534}};
  FileFact& expert = facts.places.front().contents.front();
  expert.rights = 0;
  expert.mode = 0600;
  const std::vector<Finding> findings = examine(facts);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().kind, ErrorKind::denied);
  EXPECT_THAT(findings.front().what, HasSubstr("user somebody may not read"));
  EXPECT_EQ(findings.front().remedy, "chmod a+r " + expert.path);
}

TEST(Doctor, a_sound_machine_has_no_findings) {
  const std::vector<Finding> findings = examine(sound_machine());
  EXPECT_THAT(findings, IsEmpty());
  EXPECT_EQ(exit_code_of(findings), 0);
  EXPECT_EQ(findings_text(findings), "nothing is wrong\n");
}

TEST(Doctor, every_parent_folder_is_tried_as_the_user_of_the_service) {
  MachineFacts facts = sound_machine();
  facts.places[0].folders[1] = file("/srv", 0750, 0);
  std::vector<Finding> findings = examine(facts);
  EXPECT_THAT(findings_text(findings),
              HasSubstr("error: model: user glmd may not enter /srv (mode 0750, owner 0)\n"
                        "  remedy: chmod o+x /srv"));
  EXPECT_EQ(exit_code_of(findings), 77);
  facts.places[0].folders[1].rights = may_enter;
  EXPECT_THAT(examine(facts), IsEmpty()) << "an access control list grants it";
}

TEST(Doctor, where_the_bits_allow_it_they_are_no_remedy) {
  MachineFacts facts = sound_machine();
  facts.places[0].folders[1].rights = 0;
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("may not enter /srv (mode 0755, owner 0)\n"
                        "  remedy: getfacl /srv and findmnt -T /srv tell what forbids it"));
  facts.places[0].folders[1] = file("/srv", 0750, 0);
  facts.places[0].folders[1].gid = 999;
  EXPECT_THAT(findings_text(examine(facts)), HasSubstr("getfacl")) << "as a member of its group";
  facts.places[0].folders[1].uid = 999;
  facts.places[0].folders[1].mode = 0070;
  EXPECT_THAT(findings_text(examine(facts)), HasSubstr("chmod")) << "the owner's bits come first";
}

TEST(Doctor, files_must_be_there_and_readable) {
  MachineFacts facts = sound_machine();
  facts.places[0].contents[0] = file("/srv/m/dense.safetensors", 0600, 0);
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("error: model: user glmd may not read /srv/m/dense.safetensors"));
  facts.places[0].contents[0].exists = false;
  EXPECT_EQ(exit_code_of(examine(facts)), 66);
}

TEST(Doctor, a_missing_model_is_said_once) {
  MachineFacts facts = sound_machine();
  facts.places[0].folders[2].exists = false;
  facts.plan.reset();
  facts.plan_error = Error{ErrorKind::not_found, "/srv/m: no container"};
  EXPECT_EQ(examine(facts).size(), 1u);
  EXPECT_EQ(exit_code_of(examine(facts)), 66);
}

TEST(Doctor, a_folder_that_is_written_must_be_writable_and_have_room) {
  const PlaceFact state{.purpose = "state",
                        .folders = {file("/", 0755), file("/state", 0755)},
                        .is_required = false,
                        .is_written = true,
                        .free_bytes = 5};
  const std::string text = findings_after([&](MachineFacts& f) { f.places.push_back(state); });
  EXPECT_THAT(text, HasSubstr("warning: state: user glmd may not write in /state"));
  EXPECT_THAT(text, HasSubstr("state: 5 bytes are free"));
}

// /run is small, and a socket takes nothing of it.
TEST(Doctor, a_socket_needs_no_room) {
  const PlaceFact socket{.purpose = "socket",
                         .folders = {file("/", 0755), file("/run", 0777, may_write | may_enter)},
                         .is_required = false,
                         .is_written = true,
                         .free_bytes = 5};
  EXPECT_EQ(findings_after([&](MachineFacts& f) { f.places.push_back(socket); }),
            findings_after([](MachineFacts&) {}));
}

TEST(Doctor, the_service_does_not_see_home) {
  const auto at_home = [](MachineFacts& f) {
    f.is_service = true;
    f.places[0].folders.back().path = "/tmp/m";
  };
  EXPECT_THAT(findings_after(at_home), HasSubstr("the service does not see /tmp/m"));
}

TEST(Doctor, a_refused_plan_is_an_error_with_its_sum) {
  MachineFacts facts = sound_machine();
  facts.plan.reset();
  facts.plan_error = Error{ErrorKind::no_memory, "a sum of many lines"};
  facts.floor = MemoryPlan{
      .budget_bytes = 1, .budget_source = "--memory", .dense_bytes = 2, .floor_bytes = 2};
  const std::vector<Finding> findings = examine(facts);
  EXPECT_EQ(exit_code_of(findings), 75);
  EXPECT_EQ(findings.front().what, "memory: wanted at least 2 bytes, got 1");
  EXPECT_EQ(findings.front().remedy, floor_remedy);
  const std::string text = findings_text(findings);
  EXPECT_THAT(text, HasSubstr("got 1\nbudget "));
  EXPECT_THAT(text, HasSubstr("\n  remedy: a larger budget"));
  const Json json = findings_json(findings).find("findings")->items().front();
  EXPECT_THAT(json.find("details")->as_string(), HasSubstr("dense weights"));
}

TEST(Doctor, a_model_that_is_a_file_is_no_matter_of_rights) {
  MachineFacts facts = sound_machine();
  FileFact& model = facts.places[0].folders.back();
  model.is_folder = false;
  model.rights = may_read;
  facts.places[0].contents.clear();
  facts.plan.reset();
  facts.plan_error = Error{ErrorKind::not_found, "/srv/m: no container"};
  const std::vector<Finding> findings = examine(facts);
  EXPECT_EQ(exit_code_of(findings), 66);
  EXPECT_EQ(findings.front().what, "/srv/m: no container");
}

// A place that a setting names, with what the start says of it.
PlaceFact refused_place(std::vector<FileFact> folders, ErrorKind kind) {
  return {.purpose = "trace-routing",
          .folders = std::move(folders),
          .is_required = false,
          .is_written = true,
          .fault = Error{kind, "trace-routing: /x: the fault"},
          .remedy = "the remedy",
          .free_bytes = gib};
}

TEST(Doctor, what_the_start_refuses_is_an_error_with_its_exit_code) {
  const struct {
    std::vector<FileFact> folders;
    ErrorKind kind;
    const char* wanted;
  } cases[] = {
      {{file("/", 0755), FileFact{.path = "/x"}},
       ErrorKind::config,
       "error: trace-routing: /x does not exist\n  remedy: the remedy\n"},
      {{file("/", 0755), file("/x", 0755)},
       ErrorKind::denied,
       "error: trace-routing: user glmd may not write in /x (mode 0755, owner 0)\n"
       "  remedy: another place, or chown glmd /x\n"},
      {{file("/", 0755), file("/x", 0777, may_write | may_enter)},
       ErrorKind::busy,
       "error: trace-routing: /x: the fault\n  remedy: the remedy\n"},
  };
  for (const auto& c : cases) {
    MachineFacts facts = sound_machine();
    facts.places.push_back(refused_place(c.folders, c.kind));
    const std::vector<Finding> findings = examine(facts);
    EXPECT_EQ(findings_text(findings), c.wanted);
    EXPECT_EQ(exit_code_of(findings), exit_code(c.kind));
  }
}

TEST(Doctor, a_tokeniser_that_cannot_be_read_is_an_error) {
  MachineFacts facts = sound_machine();
  facts.text_error = Error{ErrorKind::bad_input, "/srv/m/tokenizer.json: no JSON"};
  EXPECT_EQ(exit_code_of(examine(facts)), 65);
  EXPECT_THAT(findings_text(examine(facts)), HasSubstr("remedy: glmd-inspect verify"));
}

TEST(Doctor, a_model_without_a_tokenizer_is_warned_of) {
  MachineFacts facts = sound_machine();
  facts.has_tokenizer = false;
  EXPECT_EQ(exit_code_of(examine(facts)), 0);
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("warning: tokenizer: the model has no tokenizer.json: only fmt=tokens is "
                        "served\n  remedy: cp tokenizer.json"));
}

TEST(Doctor, forbidden_io_uring_is_an_error_only_for_who_wants_it) {
  MachineFacts facts = sound_machine();
  facts.ring_error = Error{ErrorKind::unavailable, "io_uring: set up: Operation not permitted"};
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("note: reader: io_uring: set up: Operation not permitted: experts are "
                        "read by threads\n  remedy: --reader threads"));
  facts.reader = ReaderKind::io_uring;
  EXPECT_EQ(exit_code_of(examine(facts)), 78);
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("error: reader: io_uring: set up: Operation not permitted\n"));
  facts.io_uring_disabled = 2;
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("not permitted; kernel.io_uring_disabled is 2\n"
                        "  remedy: sysctl kernel.io_uring_disabled=0"));
  facts.reader = ReaderKind::threads;
  EXPECT_THAT(examine(facts), IsEmpty());
}

TEST(Doctor, a_ring_without_room_needs_a_higher_limit) {
  MachineFacts facts = sound_machine();
  facts.ring_error = Error{ErrorKind::no_memory, "io_uring: set up: Cannot allocate memory"};
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("Cannot allocate memory: experts are read by threads\n"
                        "  remedy: LimitMEMLOCK=infinity"));
}

TEST(Doctor, what_root_may_with_io_uring_says_nothing_of_the_service) {
  MachineFacts facts = sound_machine();
  facts.io_uring_disabled = 1;
  facts.is_service = true;
  EXPECT_THAT(findings_text(examine(facts)),
              HasSubstr("note: reader: io_uring: kernel.io_uring_disabled is 1"));
}

TEST(Doctor, limits_too_low_for_the_start_are_errors) {
  MachineFacts facts = sound_machine();
  facts.descriptor_count = 80;
  EXPECT_EQ(exit_code_of(examine(facts)), 74);
  facts.descriptor_count = 100;
  EXPECT_EQ(exit_code_of(examine(facts)), 0);
  facts.places.push_back({.purpose = "mirrors", .folders = facts.places[0].folders});
  EXPECT_EQ(exit_code_of(examine(facts)), 74) << "each mirror has as many files";
  facts = sound_machine();
  facts.address_space_bytes = gib;
  EXPECT_EQ(exit_code_of(examine(facts)), 75);
  EXPECT_THAT(findings_text(examine(facts)), HasSubstr("ulimit -v unlimited"));
}

TEST(Doctor, each_shortcoming_is_named_with_a_remedy) {
  const struct {
    const char* wanted;
    std::function<void(MachineFacts&)> change;
  } cases[] = {
      {"plain C++", [](MachineFacts& f) { f.kernels = "scalar"; }},
      {"threads: 16 threads on 8 cores", [](MachineFacts& f) { f.thread_count = 16; }},
      {"are set, 60129542144 are the limit: MemAvailable",
       [](MachineFacts& f) { f.memory_setting_bytes = 60 * gib; }},
      {"of the experts fit", [](MachineFacts& f) { f.plan->arena_bytes = gib; }},
      {"warning: memory lock",
       [](MachineFacts& f) {
         f.memlock_bytes = 8 << 20;
         f.swap_bytes = gib;
       }},
      {"note: memory lock", [](MachineFacts& f) { f.memlock_bytes = 8 << 20; }},
      {"open files: the limit is 256", [](MachineFacts& f) { f.descriptor_count = 256; }},
      {"huge pages: never", [](MachineFacts& f) { f.huge_pages = "never"; }},
      {"overcommit", [](MachineFacts& f) { f.overcommit = 2; }},
      {"io_uring_disabled is 2",
       [](MachineFacts& f) {
         f.io_uring_disabled = 2;
         f.ring_error = Error{ErrorKind::unavailable, "io_uring: set up: not permitted"};
       }},
      {"/proc cannot be read", [](MachineFacts& f) { f.memory_bytes = 0; }},
      {"/proc/pressure/memory is missing", [](MachineFacts& f) { f.has_pressure = false; }},
      {"no direct reads",
       [](MachineFacts& f) {
         f.places[0].has_direct = false;
         f.places[0].file_system = "tmpfs";
       }},
      {"experts come at 0.20 GB/s", [](MachineFacts& f) { f.speed->disk_bytes_per_s = 2e8; }},
  };
  for (const auto& c : cases) {
    const std::string text = findings_after(c.change);
    EXPECT_THAT(text, HasSubstr(c.wanted));
    EXPECT_THAT(text, HasSubstr("remedy: ")) << c.wanted;
    EXPECT_THAT(text, Not(HasSubstr("error"))) << c.wanted;
  }
}

TEST(Doctor, limits_of_a_shell_say_nothing_of_the_service) {
  EXPECT_EQ(findings_after([](MachineFacts& f) {
              f.is_service = true;
              f.memlock_bytes = f.descriptor_count = 1;
            }),
            "nothing is wrong\n");
}

TEST(Doctor, the_gravest_finding_comes_first) {
  MachineFacts facts = sound_machine();
  facts.has_pressure = false;
  facts.kernels = "scalar";
  facts.places[0].contents[0].exists = false;
  const std::vector<Finding> findings = examine(facts);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].severity, Severity::error);
  EXPECT_EQ(findings[1].severity, Severity::warning);
  EXPECT_EQ(findings[2].severity, Severity::note);
}

TEST(Doctor, the_plan_names_hardware_model_sum_and_expected_speed) {
  const std::string text = plan_table(plan_json(sound_machine()));
  for (const char* part :
       {"Processor, 8 cores", "64.0 GiB", "/srv/m on ext4, direct reads", "19200 of 20054016 bytes",
        "expert arena", "memory 75.0 GB/s", "bound by disk"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const Json json = plan_json(sound_machine());
  EXPECT_EQ(json.find("expected")->find("bound")->as_string(), "disk");
  EXPECT_EQ(json.find("memory")->find("arena_bytes")->as_integer(), 40 * gib);
}

Identity myself() {
  return {"me", geteuid(), {getegid()}};
}

// An access control list that says what one user may, and nothing else than the bits say.
bool set_access_list(const std::string& path, uid_t user, uint16_t rights, uint16_t mode) {
  struct Entry {
    uint16_t tag = 0, rights = 0;
    uint32_t id = ~uint32_t{0};
  };
  struct {  // <linux/posix_acl_xattr.h>: owner, user, group, mask, others
    uint32_t version = 2;
    Entry entries[5];
  } list;
  const auto bits = [&](int shift) { return static_cast<uint16_t>(mode >> shift & 7); };
  list.entries[0] = {0x01, bits(6)};
  list.entries[1] = {0x02, rights, user};
  list.entries[2] = {0x04, bits(3)};
  list.entries[3] = {0x10, 7};
  list.entries[4] = {0x20, bits(0)};
  return setxattr(path.c_str(), "system.posix_acl_access", &list, sizeof list, 0) == 0;
}

uint32_t rights_to(const std::string& path, const Identity& identity) {
  return gather_place("model", path, identity).folders.back().rights;
}

TEST(Doctor, rights_are_those_that_the_kernel_grants_access_control_lists_included) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  std::ofstream(path) << "x";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(rights_to(path, myself()) & (may_read | may_write), may_read | may_write);
  if (geteuid() != 0) GTEST_SKIP() << "only root may act as somebody else";

  ASSERT_EQ(chmod((folder / "").c_str(), 0755), 0);
  const Identity nobody{"nobody", 65534, {65534}}, member{"member", 65534, {65534, 4711}};
  EXPECT_EQ(rights_to(path, nobody), 0u);
  ASSERT_EQ(chmod(path.c_str(), 0604), 0);
  EXPECT_EQ(rights_to(path, nobody), may_read);
  ASSERT_EQ(chown(path.c_str(), 0, 4711), 0);
  ASSERT_EQ(chmod(path.c_str(), 0620), 0);
  EXPECT_EQ(rights_to(path, member), may_write);
  EXPECT_EQ(rights_to(path, nobody), 0u);
  EXPECT_EQ(rights_to(path, myself()) & (may_read | may_write), may_read | may_write)
      << "and root is root again";
  EXPECT_TRUE(std::ofstream(path).is_open());

  if (!set_access_list(path, 65534, 4, 0600)) {
    GTEST_SKIP() << "no access control lists in " << path << ": " << std::strerror(errno);
  }
  EXPECT_EQ(rights_to(path, nobody), may_read) << "granted by the list";
  ASSERT_TRUE(set_access_list(path, 65534, 0, 0644));
  EXPECT_EQ(rights_to(path, nobody), 0u) << "denied by the list";
}

TEST(Doctor, small_experts_say_nothing_of_a_disk) {
  const auto slow_with = [](int64_t expert_bytes) {
    return findings_after([&](MachineFacts& facts) {
      facts.speed->disk_bytes_per_s = 2e8;
      facts.cost->expert_bytes = expert_bytes;
    });
  };
  EXPECT_THAT(slow_with(32 << 10), Not(HasSubstr("disk:")));
  EXPECT_THAT(slow_with(1 << 20), HasSubstr("disk: experts come at 0.20 GB/s"));
}

TEST(Plan, of_a_model_that_does_not_open_only_its_path_is_told) {
  const TemporaryFolder folder;
  const MachineFacts facts =
      gather_facts(Settings(), folder / "absent", error(ErrorKind::not_found, "no container"));
  const std::string text = plan_table(plan_json(facts));
  EXPECT_THAT(text, HasSubstr("model            " + (folder / "absent") + "\n"));
  EXPECT_THAT(text, Not(HasSubstr("direct reads")));
  EXPECT_THAT(text, Not(HasSubstr("experts")));
  const Json json = plan_json(facts);
  const Json* model = json.find("model");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->members().size(), 1U) << "the path";
  EXPECT_EQ(json.find("error")->as_string(), "no container");
}

TEST(Plan, of_a_machine_whose_processors_are_taken_says_so) {
  const auto told = [](double average, std::optional<double> waiting_percent) {
    MachineFacts facts = sound_machine();
    facts.load_average = average;
    facts.waiting_percent = waiting_percent;
    return plan_table(plan_json(facts));
  };
  EXPECT_THAT(told(9.04, 93.2),
              HasSubstr("busy             load 9.0 on 8 cores, work waited 93 % of the time: "));
  EXPECT_THAT(told(9.04, std::nullopt), HasSubstr("busy             load 9.0 on 8 cores: "));
  EXPECT_THAT(told(9.04, 0), Not(HasSubstr("busy"))) << "the load is that of a minute";
  EXPECT_THAT(told(1, std::nullopt), Not(HasSubstr("busy")));
}

TEST(Plan, of_a_sound_machine_tells_how_the_model_is_read) {
  const std::string text = plan_table(plan_json(sound_machine()));
  EXPECT_THAT(text, HasSubstr("8 cores, 8 threads"));
  EXPECT_THAT(text, HasSubstr("model            /srv/m on ext4, direct reads\n"));
  EXPECT_THAT(text, HasSubstr("experts          19200 of 20054016 bytes, 600 for each token\n"));
}

TEST(Doctor, a_place_is_looked_at_from_the_root_down) {
  const TemporaryFolder folder;
  const PlaceFact place = gather_place("model", folder / "absent", myself());
  ASSERT_GE(place.folders.size(), 3u);
  EXPECT_EQ(place.folders.front().path, "/");
  EXPECT_TRUE(place.folders[place.folders.size() - 2].exists);
  EXPECT_FALSE(place.folders.back().exists);
  EXPECT_EQ(place.folders.back().path, folder / "absent");
}

TEST(Doctor, the_machine_is_read_from_proc_and_sys) {
  const TemporaryFolder root;
  const auto put = [&](const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root / path).parent_path());
    std::ofstream(root / path) << content;
  };
  put("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU @ 3 GHz\n");
  put("proc/meminfo", "MemTotal:  1000 kB\nSwapTotal:     10 kB\n");
  put("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  put("proc/sys/kernel/io_uring_disabled", "2\n");
  put("proc/sys/vm/overcommit_memory", "1\n");
  put("proc/loadavg", "3.50 4.00 4.48 8/160 18236\n");
  put("proc/pressure/cpu", "some avg10=12.25 avg60=1.00 avg300=2.00 total=3\n");
  const MachineFacts facts = gather_machine(Settings(), root / "");
  EXPECT_EQ(facts.processor, "Some CPU @ 3 GHz");
  EXPECT_EQ(facts.memory_bytes, 1'024'000);
  EXPECT_EQ(facts.swap_bytes, 10'240);
  EXPECT_EQ(facts.huge_pages, "never");
  EXPECT_EQ(facts.io_uring_disabled, 2);
  EXPECT_EQ(facts.load_average, 3.5);
  EXPECT_EQ(facts.waiting_percent, 12.25);
  EXPECT_EQ(facts.overcommit, 1);
  EXPECT_FALSE(facts.has_pressure);
}

}  // namespace
}  // namespace glmd
