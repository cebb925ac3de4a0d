#include "fio.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"

extern char** environ;

namespace glmd {
namespace {

// fio takes a colon for the border between two files.
std::string escaped(const std::string& path) {
  std::string text;
  for (const char c : path) {
    if (c == ':') text += '\\';
    text += c;
  }
  return text;
}

// What a program printed; its errors go where ours go.
Result<std::string> output_of(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return error(ErrorKind::internal, "pipe: {}", std::strerror(errno));
  }
  const File reading(ends[0], words[0]);
  std::optional<File> writing(std::in_place, ends[1], words[0]);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int spawned =
      ::posix_spawnp(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  writing.reset();
  if (spawned != 0) {
    return error(ErrorKind::not_found, "{}: {}", words[0], std::strerror(spawned));
  }
  std::string output;
  std::array<char, 65536> buffer;
  ssize_t got = 0;
  while ((got = ::read(reading.descriptor(), buffer.data(), buffer.size())) > 0 ||
         (got < 0 && errno == EINTR)) {
    if (got > 0) output.append(buffer.data(), static_cast<size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return error(ErrorKind::io, "{}: ended with status {}", words[0], status);
  }
  return output;
}

}  // namespace

bool has_fio() {
  return output_of({"fio", "--version"}).ok();
}

Result<double> run_fio(const FioJob& job) {
  // The allocator asks for huge pages; it gets them where buffers lie at multiples of 2 MiB. With
  // small ones a disk that takes few segments a request gives a third.
  std::vector<std::string> words = {"env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "fio"};
  if (job.aligns_buffers) words.insert(words.end(), {"--iomem=malloc", "--iomem_align=2M"});
  words.insert(
      words.end(),
      {"--name=reads", "--filename=" + escaped(job.path), "--readonly",
       fmt::format("--rw=randread:{}", job.run_length), "--norandommap", "--direct=1",
       "--ioengine=io_uring", fmt::format("--bs={}", job.block_bytes),
       fmt::format("--iodepth={}", job.depth), "--time_based",
       fmt::format("--runtime={}ms", std::lround(job.seconds * 1e3)), "--output-format=json"});
  const std::string output = TRY(output_of(words));
  const Json report = TRY(parse_json(output, "fio"));
  const Json* jobs = report.find("jobs");
  if (jobs != nullptr && jobs->is_array() && !jobs->items().empty()) {
    const Json* read = jobs->items()[0].find("read");
    const Json* rate = read == nullptr ? nullptr : read->find("bw_bytes");
    if (rate != nullptr && rate->is_number()) return rate->as_real();
  }
  return error(ErrorKind::bad_input, "fio: wanted jobs[0].read.bw_bytes in its report");
}

}  // namespace glmd
