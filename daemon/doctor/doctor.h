// What of this machine will not do, or will be slow: facts, and what follows from them. The facts
// are gathered in doctor_facts; the findings are pure functions of them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_plan.h"
#include "plan/speed_estimate.h"
#include "platform/json.h"
#include "platform/result.h"
#include "storage/reader_choice.h"

namespace glmd {

// Who the daemon runs as.
struct Identity {
  std::string name;
  uid_t uid = 0;
  std::vector<gid_t> groups;
};

// What the kernel lets the identity do with a file: R_OK, W_OK, X_OK of <unistd.h> together.
constexpr uint32_t may_read = 4, may_write = 2, may_enter = 1;

struct FileFact {
  std::string path;
  bool exists = false;
  bool is_folder = false;
  uint32_t rights = 0;  // with access control lists and how it is mounted
  uint32_t mode = 0;    // permission bits
  uid_t uid = 0;
  gid_t gid = 0;
};

// A place on disk that the daemon needs.
struct PlaceFact {
  std::string purpose;             // "model", "socket", "state", the name of a setting
  std::vector<FileFact> folders;   // from / down to the place itself
  std::vector<FileFact> contents;  // what must be readable in it
  bool is_required = true;
  bool is_written = false;
  std::optional<Error> fault;      // why the start or --check refuses it
  bool is_survived = false;        // the start warns of the fault and goes on
  std::string remedy;              // of what folders and contents do not explain
  std::string file_system;         // "ext4"; empty: not known
  std::optional<bool> has_direct;  // whether reads can go past the page cache
  int64_t free_bytes = 0;
};

struct MachineFacts {
  std::string processor;
  std::string kernel_release;
  std::string kernels;  // the table that is used
  int core_count = 1;
  int thread_count = 1;
  double load_average = 0;                // of a minute
  std::optional<double> waiting_percent;  // of the last 10 s, work that had no processor
  int64_t memory_bytes = 0, swap_bytes = 0;
  std::optional<int64_t> memory_setting_bytes;
  ReaderKind reader = ReaderKind::automatic;
  std::optional<Error> ring_error;  // why io_uring cannot be used; unset: it can, or is not wanted
  Identity identity;
  bool is_service = false;  // the identity is that of the systemd service, whose sandbox applies
  std::vector<PlaceFact> places;
  int64_t model_file_count = 0;
  uint64_t memlock_bytes = 0, descriptor_count = 0;  // limits
  uint64_t address_space_bytes = UINT64_MAX;         // another
  std::string huge_pages;                            // "always", "madvise", "never"; empty: unknown
  int io_uring_disabled = 0;                         // sysctl; 0 where there is none
  int overcommit = 0;
  bool has_pressure = true;  // /proc/pressure/memory
  int64_t dense_bytes = 0;
  std::optional<MemoryPlan> plan;        // unset: refused
  std::optional<Error> plan_error;       // then this says why, the model's fault included
  std::optional<MemoryPlan> floor;       // the sum, where memory is why
  std::optional<Error> text_error;       // of a model that opens: its tokeniser and the like
  std::vector<std::string> text_doubts;  // chat_doubts()
  bool has_tokenizer = true;             // of a model that opens
  std::optional<TokenCost> cost;         // of a model that opens
  std::optional<MachineSpeed> speed;     // where it was measured
};

enum class Severity { note, warning, error };
std::string_view to_string(Severity severity);

struct Finding {
  Severity severity = Severity::note;
  ErrorKind kind = ErrorKind::config;  // the exit code, of an error
  std::string what;
  std::string remedy;        // never empty
  std::string details = {};  // further lines, each with its end; may be empty
};

// Of what goes wrong before there are facts.
Finding finding_of(const Error& fault);
// The gravest first.
std::vector<Finding> examine(const MachineFacts& facts);
// 0 where no finding is an error; otherwise that of the first one.
int exit_code_of(const std::vector<Finding>& findings);

std::string findings_text(const std::vector<Finding>& findings);
Json findings_json(const std::vector<Finding>& findings);

// Hardware, model, sum and expected speed; plan_table prints it.
Json plan_json(const MachineFacts& facts);

}  // namespace glmd
